"""What waits behind another producer's transaction: asked for where a partition stands, and told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from perkey.core import states
from perkey.kafka.ports import KafkaUnavailable
from perkey.runtime.run.run_snapshot import behind_transactions
from perkey.runtime.run.watching import STABLE_QUERY_EVERY_S, UNMOVED_S, OpenTransactions

WHERE = ("orders", 3)


class Member:
    """One partition, and a broker that counts what it is asked."""

    def __init__(self, position: int, log_end: int) -> None:
        self.ending = False
        self.partition: Any = SimpleNamespace(
            state=states.OPEN,
            intake_paused=False,
            log_end=log_end,
            position=position,
        )
        self.partitions = {WHERE: self.partition}
        self.lines: list[dict[str, Any]] = []
        self.run_log = SimpleNamespace(stable_ends={}, line=self.line)
        self.membership = SimpleNamespace(consumer=self)
        self.asked: list[Any] = []
        self.away = False

    def line(self, level: str, what: str, **fields: Any) -> None:
        """As the run log's."""
        self.lines.append({"level": level, "what": what, **fields})

    def stable_ends(self, partitions: list[Any], timeout_s: float) -> dict[Any, int]:
        """As the port's."""
        self.asked.append(partitions)
        if self.away:
            raise KafkaUnavailable
        return {WHERE: 12}

    def watched(self, *times: float) -> Member:
        """Looked at, at these times."""
        looking = OpenTransactions(self)
        for now in times:
            looking.look(now)
        return self


def test_a_partition_that_stands_before_its_logs_end_is_asked_for():
    """Once it has stood there for a while; what is found is told."""
    member = Member(12, 40).watched(100.0, 102.0)
    assert member.asked == []
    member = Member(12, 40).watched(100.0, 100.0 + UNMOVED_S)
    assert member.asked == [[WHERE]]
    assert member.run_log.stable_ends == {WHERE: 12}


def test_it_is_asked_for_now_and_then():
    """However long it stands there."""
    member = Member(12, 40).watched(*range(100, 131))
    assert len(member.asked) == 1 + (30 - int(UNMOVED_S)) // int(STABLE_QUERY_EVERY_S)


def test_what_is_read_to_its_end_or_not_fetched_is_not_asked_for():
    """No broker hears of it."""
    times = range(100, 130)
    assert Member(40, 40).watched(*times).asked == []
    full, gone, ending = Member(12, 40), Member(12, 40), Member(12, 40)
    full.partition.intake_paused = True
    gone.partition.state = states.REVOKING
    ending.ending = True
    assert [one.watched(*times).asked for one in (full, gone, ending)] == [[], [], []]


def test_it_is_logged_once():
    """After a while: a default run would end its day without a word of it."""
    member = Member(12, 40)
    looking = OpenTransactions(member)
    for now in range(100, 130):
        looking.look(float(now))
    assert member.lines == []
    for now in range(130, 300):
        looking.look(float(now))
    (line,) = member.lines
    assert (line["level"], line["topic"], line["partition"]) == ("warning", "orders", 3)
    assert (line["stable_end"], line["next"]) == (12, "perkey why orders:3")
    elsewhere = Member(13, 40)  # it is behind something else
    assert elsewhere.watched(*range(100, 300)).lines == []


def test_what_moves_is_not_asked_for():
    """It is behind, and comes nearer: nothing holds it up."""
    member = Member(12, 4_000)
    looking = OpenTransactions(member)
    for now in range(100, 130):
        member.partition.position += 1
        looking.look(float(now))
    assert member.asked == []


def test_what_was_found_is_forgotten_once_nothing_stands():
    """The transaction has ended, and all was read."""
    member = Member(12, 40)
    looking = OpenTransactions(member)
    looking.look(100.0)
    looking.look(106.0)
    assert member.run_log.stable_ends
    member.partition.position = 40
    looking.look(108.0)
    assert member.run_log.stable_ends == {}


def test_no_one_answers():
    """Nothing is said, and it is asked again later."""
    member = Member(12, 40)
    member.run_log.stable_ends = {WHERE: 12}
    member.away = True
    assert member.watched(100.0, 106.0).run_log.stable_ends == {}
    assert len(member.asked) == 1


def row(highest_seen: int, end: int) -> dict[str, Any]:
    """A partition of a snapshot."""
    return {"topic": "orders", "partition": 3, "highest_seen": highest_seen, "end": end}


def test_only_who_stands_there_still_waits():
    """A snapshot is newer than what was asked: it may have gone on since."""
    (cause,) = behind_transactions([row(11, 40)], {WHERE: 12})
    assert cause == {
        "cause": "open_transaction",
        "topic": "orders",
        "partition": 3,
        "stable_end": 12,
        "end": 40,
    }
    assert behind_transactions([row(12, 40)], {WHERE: 12}) == []
    assert behind_transactions([row(10, 40)], {WHERE: 12}) == []
    assert behind_transactions([row(11, 12)], {WHERE: 12}) == []
    assert behind_transactions([row(11, 40)], {("orders", 4): 12}) == []
