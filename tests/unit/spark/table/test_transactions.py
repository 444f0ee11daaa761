"""One transaction with a table: what goes where, in which order, and what each failure leaves."""

from __future__ import annotations

import pyarrow as pa
import pytest

from perkey.kafka.ports import Delivery, OutMessage, ToCommit, TransactionEnd
from perkey.spark.table.rows import columns_of, row_of
from perkey.spark.table.sink import TABLE
from perkey.spark.table.transactions import TablePace, TableTransactions
from perkey.types import ErrorInfo, Record, Sent

COLUMNS = columns_of(pa.schema([("n", pa.int64())]))


class Kafka:
    """Answers transactions as it is told, and remembers them."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[int]]] = []
        self.ends: list[TransactionEnd] = []

    def transact(self, messages, offsets, _membership, _read_back) -> TransactionEnd:
        self.calls.append(([one.topic for one in messages], [one.offset for one in offsets]))
        sent = [Delivery(Sent(one.topic, 0, 0, None), None) for one in messages]
        return self.ends.pop(0) if self.ends else TransactionEnd("committed", sent)

    def is_refusal(self, delivery) -> bool:
        return delivery is not None and delivery.error is not None


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


class Line:
    """The driver's end, which adds rows to a list."""

    columns = COLUMNS

    def __init__(self) -> None:
        self.added: list[int] = []
        self.answers: list = []

    def hand_over(self, rows, offsets, _hurried, _over):
        answer = self.answers.pop(0) if self.answers else {"version": 7}
        if answer is not None and "version" in answer:
            self.added += rows["offset"].to_pylist()
        return answer


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def port(kafka, line) -> TableTransactions:
    return TableTransactions(kafka, line, TablePace(0.0))


def row(offset: int, value: bytes | None = None) -> OutMessage:
    """A record's result."""
    value = b'{"n":%d}' % offset if value is None else value
    return row_of(OutMessage(TABLE, value, b"k"), Record("t", 0, offset, 1, b"k", b""))


def test_topics_first_then_the_table_then_the_offsets(port, kafka, line) -> None:
    """Dead letters are produced before the rows are there, the group's offsets after."""
    letter = OutMessage("t.dlq", b"v", b"k")
    end = port.transact([row(0), letter, row(2)], [ToCommit("t", 0, 3)], None, None)
    assert end.outcome == "committed"
    assert kafka.calls == [(["t.dlq"], []), ([], [3])]
    topics = [one.sent.topic for one in end.deliveries]
    assert topics == [TABLE, "t.dlq", TABLE]
    assert line.added == [0, 2]


def test_topics_refused_leave_the_table_alone(port, kafka, line) -> None:
    """No row of a transaction whose dead letters the broker does not take."""
    refused = Delivery(None, ErrorInfo("TOPIC_AUTHORIZATION_FAILED", "no"))
    kafka.ends = [TransactionEnd("aborted", [refused])]
    end = port.transact([row(0), OutMessage("x", b"", None)], [ToCommit("t", 0, 2)], None, None)
    assert (end.outcome, end.deliveries[0]) == ("aborted", None)
    assert port.is_refusal(end.deliveries[1])
    assert line.added == []


def test_what_had_to_be_settled_is_done_again(port, kafka, line) -> None:
    """Without offsets nothing tells which way a broken transaction went."""
    kafka.ends = [TransactionEnd("committed", [None], "timed out")]
    end = port.transact([row(0), OutMessage("x", b"", None)], [ToCommit("t", 0, 2)], None, None)
    assert end.outcome == "aborted"
    assert line.added == []


def test_what_is_no_row_fails_its_record_alone(port, kafka, line) -> None:
    """The culprit is refused, and nothing of the transaction is done."""
    end = port.transact([row(0), row(1, b"[]")], [ToCommit("t", 0, 2)], None, None)
    assert [port.is_refusal(one) for one in end.deliveries] == [False, True]
    assert end.outcome == "aborted"
    assert "return a dict or model with its columns, n" in end.deliveries[1].error.message
    assert (kafka.calls, line.added) == ([], [])


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        (None, "aborted", "the driver does not answer"),
        ({"stale": "t:0"}, "aborted", "another member has claimed t:0"),
        ({"error": "no"}, "fenced", "the table: no"),
    ],
)
def test_no_offset_is_committed_without_the_rows(port, kafka, line, answer, outcome, said) -> None:
    """Whatever the driver answers, also without an answer; a table that takes no rows ends the member."""
    line.answers = [answer]
    end = port.transact([row(0)], [ToCommit("t", 0, 1)], None, None)
    assert (end.outcome, kafka.calls, line.added) == (outcome, [], [])
    assert said in end.reason
    assert port.transact([row(0)], [ToCommit("t", 0, 1)], None, None).outcome == "committed"


def test_refusals_in_a_row_are_counted(port, line) -> None:
    """Those of a member that others have replaced; an answer ends the row."""
    line.answers = [{"stale": "t:0"}, {"stale": "t:0"}]
    for _ in range(2):
        port.transact([row(0)], [ToCommit("t", 0, 1)], None, None)
    assert port.stale == 2
    port.transact([row(0)], [ToCommit("t", 0, 1)], None, None)
    assert port.stale == 0


def test_records_without_results_commit_offsets_alone(port, kafka, line) -> None:
    """Nothing is handed over without rows."""
    line.answers = [None]
    assert port.transact([], [ToCommit("t", 0, 9)], None, None).outcome == "committed"
    assert kafka.calls == [([], [9])]


def test_the_pace_waits_for_its_interval_alone() -> None:
    """Not while much waits, and not while somebody is in a hurry."""
    clock = [0.0]
    pace = TablePace(30.0, now=lambda: clock[0])
    looked = []

    def nothing_waits() -> bool:
        looked.append(clock[0])
        clock[0] += 7.0
        return False

    pace.wait(nothing_waits)
    assert looked == [0.0, 7.0, 14.0, 21.0, 28.0]
    pace.answered()
    pace.wait(lambda: True)
    pace.hurry(5.0)
    pace.wait(nothing_waits)
    assert len(looked) == 5
