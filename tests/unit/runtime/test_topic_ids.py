"""Ids of topics: what is believed of a commit after a topic was made again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from weft.core.starting import Found
from weft.kafka.ports import KafkaUnavailable
from weft.runtime.topic_ids import TopicIds

WHERE = ("t", 0)


class Cluster:
    """Topic ids that change, and a member that does at once what it is told."""

    def __init__(self):
        self.ids: dict[str, str] | None = {"t": "first"}
        self.again = []
        self.reread_of = []
        self.topic_ids = TopicIds(self.ask, self.again.append)
        self.partition = SimpleNamespace(
            topic="t", number=0, committed=5, sent_plan=SimpleNamespace(frontier=7)
        )
        self.member = SimpleNamespace(
            partitions={WHERE: self.partition},
            on_poll_thread=lambda action: action(),
            consumer=SimpleNamespace(pause=lambda _: None),
            reread=self.reread,
        )

    def ask(self, topics):
        if self.ids is None:
            raise KafkaUnavailable("away")
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def reread(self, where):
        self.reread_of.append(where)
        self.topic_ids.closed([self.partition])

    def look(self):
        self.topic_ids._due = 0.0
        self.topic_ids.look(self.member)

    def found(self, committed):
        one = Found(committed, "map", 0, 9, 9)
        return self.topic_ids.fresh({WHERE: one})[WHERE]


@pytest.mark.parametrize("committed", [5, 7])
def test_what_we_committed_for_the_former_topic_is_not_believed(committed):
    """Its partitions are read anew, from the log's start."""
    cluster = Cluster()
    cluster.look()
    cluster.ids = {"t": "second"}
    cluster.look()
    assert (cluster.again, cluster.reread_of) == (["t"], [[WHERE]])
    start = cluster.found(committed)
    assert (start.committed, start.metadata, start.reset_to) == (None, "", 0)


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
    assert cluster.again == []


def test_a_topic_made_again_while_the_partition_was_away_is_noticed():
    """Its id is asked for where the partition was ours before."""
    cluster = Cluster()
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    cluster.ids = {"t": "second"}
    assert cluster.found(5).committed is None


def test_brokers_that_do_not_answer_change_nothing():
    """They are asked again later."""
    cluster = Cluster()
    cluster.look()
    cluster.topic_ids.closed([cluster.partition])
    cluster.ids = None
    cluster.look()
    assert cluster.found(5).committed == 5
    assert cluster.again == []


def test_a_deleted_topic_is_no_other_topic():
    """Only one that is there again is."""
    cluster = Cluster()
    cluster.look()
    del cluster.ids["t"]
    cluster.look()
    assert cluster.again == []
