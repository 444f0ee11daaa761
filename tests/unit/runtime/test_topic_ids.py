"""Ids of topics: what is believed of a commit after a topic was made again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perkey.core.commits import Found
from perkey.kafka.ports import KafkaUnavailable, LoginRefused
from perkey.runtime.member.topic_ids import MISSED_MAX, TopicIds

WHERE = ("t", 0)


class Cluster:
    """Topic ids that change, and a membership that does at once what it is told."""

    def __init__(self):
        self.ids: dict[str, str] | None = {"t": "first"}
        self.error: Exception = KafkaUnavailable("away")
        self.unsure = []
        self.reread_of = []
        self.refreshed = []
        self.topic_ids = TopicIds(self.ask, self.unsure.append)
        self.partition = SimpleNamespace(
            where=WHERE,
            topic="t",
            claiming=False,
            handler=SimpleNamespace(exact=False),
            in_flight=1,
            sending=0,
            committed_or_sent=lambda: [range(5, 6), range(7, 8)],
        )
        self.membership = SimpleNamespace(
            partitions={WHERE: self.partition},
            on_poll_thread=lambda action: action(),
            background=lambda action: action(),
            consumer=SimpleNamespace(pause=lambda _: None, refresh=self.refresh),
        )

    def refresh(self, topics, _timeout_s):
        self.refreshed.append(topics)

    def ask(self, topics):
        if self.ids is None:
            raise self.error
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def reread(self, where):
        self.reread_of.append(where)
        self.topic_ids.closed([self.partition])

    def look(self):
        self.topic_ids._due = 0.0
        self.topic_ids.look(self.membership, self.reread)

    def found(self, committed):
        one = Found(committed, "map", 0, 9, 9)
        return self.topic_ids.fresh({WHERE: one})[WHERE]


@pytest.mark.parametrize("committed", [5, 7])
def test_what_we_committed_for_the_former_topic_is_not_believed(committed, caplog):
    """Its partitions are read anew, from the log's start."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {"t": "second"}
    cluster.look()
    assert cluster.reread_of == [[WHERE]]
    assert cluster.refreshed == [()]  # of all topics: it may have fewer partitions
    assert caplog.messages == []  # it is said when they begin
    start = cluster.found(committed)
    assert (start.committed, start.metadata, start.reset_to) == (None, "", 0)


def test_a_start_that_no_one_has_committed_is_kept():
    """A new topic without a commit starts where `auto.offset.reset` says."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {"t": "second"}
    cluster.look()
    assert cluster.found(None).reset_to == 9


def test_what_others_committed_for_the_new_topic_is_believed():
    """It is not what we had committed, so it is of the topic there is now."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {"t": "second"}
    cluster.look()
    assert cluster.found(3).committed == 3


def test_a_partition_that_comes_back_of_the_same_topic_keeps_its_commit():
    """The usual rebalance."""
    cluster = Cluster()
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    assert cluster.found(5).committed == 5
    cluster.look()
    assert cluster.reread_of == []


def test_a_topic_recreated_while_the_partition_was_away_is_noticed(caplog):
    """Its id is asked for where the partition was ours before; it is said, whoever saw it first."""
    cluster = Cluster()
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    cluster.ids = {"t": "second"}
    assert cluster.found(5).committed is None
    assert caplog.messages == ["topic was recreated topic=t topic_id=second"]


@pytest.mark.parametrize("error", [KafkaUnavailable("away"), LoginRefused("a new password")])
def test_brokers_that_do_not_answer_change_nothing(error):
    """They are asked again later; what ends the run after 30 s is the client's refusals, not these."""
    cluster = Cluster()
    cluster.error = error
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    cluster.ids = None
    cluster.look()
    assert cluster.found(5).committed == 5
    assert cluster.reread_of == []


def test_a_deleted_topic_is_no_other_topic():
    """Only one that is there again is."""
    cluster = Cluster()
    cluster.look()
    del cluster.ids["t"]
    cluster.look()
    assert cluster.reread_of == []


def test_the_ledger_is_reported_when_a_topic_came_again_while_its_partition_was_away():
    """It would look for the new topic's records under the old id, and find them done."""
    cluster = Cluster()
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    cluster.ids = {"t": "second"}
    cluster.unsure.clear()
    cluster.found(5)
    assert cluster.unsure == ["t"]


def test_the_ledger_is_reported_of_an_epoch_that_ended_before_its_id_was_known():
    """Nobody can say then whether the topic that is assigned now is the same."""
    cluster = Cluster()
    cluster.topic_ids.closed([cluster.partition])
    cluster.found(5)
    assert cluster.unsure == ["t"]


def test_the_ledger_is_reported_after_the_former_topics_epochs_are_closed():
    """A record of theirs that began in between would be kept under the new topic's id."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {"t": "second"}
    cluster.unsure.clear()
    cluster.topic_ids._on_unsure = lambda _: cluster.unsure.append(list(cluster.reread_of))
    cluster.look()
    assert cluster.unsure == [[[WHERE]]]


def test_an_epoch_that_began_with_the_new_topic_does_not_hide_those_of_the_old():
    """One of two partitions came back after the topic was made again: the other is read anew."""
    cluster, other = Cluster(), ("t", 1)
    cluster.membership.partitions[other] = SimpleNamespace(
        where=("t", 1), committed_or_sent=lambda: [range(3, 4)]
    )
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    cluster.ids = {"t": "second"}
    cluster.found(5)
    cluster.look()
    assert cluster.reread_of == [[other]]


GONE = "topic no longer exists"


def test_a_topic_that_was_deleted_is_reported_once(caplog):
    """A consumer waits for it in silence, for ever (found on a real broker)."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {}
    for _ in range(MISSED_MAX - 1):
        cluster.look()
    assert caplog.messages == []
    for _ in range(MISSED_MAX):
        cluster.look()
    (line,) = caplog.messages
    assert GONE in line
    assert "topic=t" in line
    assert "perkey topics create" in line


def test_a_deleted_topic_is_known_until_it_can_be_read_again():
    """`perkey why` names it: "no leader answers" sent the operator to brokers that were well."""
    cluster = Cluster()
    cluster.look()
    assert cluster.topic_ids.gone == frozenset()
    cluster.ids = {}
    for _ in range(MISSED_MAX):
        cluster.look()
    assert cluster.topic_ids.gone == {"t"}
    cluster.ids = {"t": "second"}
    cluster.found(None)
    assert cluster.topic_ids.gone == frozenset()


def test_a_topic_is_missed_only_where_someone_answers(caplog):
    """Brokers that are away, or one that is a moment behind, say nothing of it."""
    cluster = Cluster()
    for ids in [None] * 10 + [{}, {"t": "first"}] * MISSED_MAX:
        cluster.ids = ids
        cluster.look()
    assert caplog.messages == []


@pytest.mark.parametrize(
    "waits",
    [{"claiming": True}, {"handler": SimpleNamespace(exact=True)}, {"in_flight": 0}],
    ids=["a claim", "exactly_once", "no call runs"],
)
def test_a_deleted_topic_is_given_up_so_that_it_holds_up_no_other(waits):
    """Its commits are refused for ever, and with them those of the other topics (found so)."""
    cluster = Cluster()
    vars(cluster.partition).update(waits)
    cluster.look()
    cluster.ids = {}
    for _ in range(MISSED_MAX - 1):
        cluster.look()
    assert cluster.reread_of == []
    cluster.look()
    assert cluster.reread_of == [[WHERE]]
    cluster.ids = {"t": "second"}
    assert cluster.found(5).committed is None


def test_calls_of_a_deleted_topic_end_first():
    """At least once, what was fetched is handled as long as calls run."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {}
    for _ in range(2 * MISSED_MAX):
        cluster.look()
    assert cluster.reread_of == []
