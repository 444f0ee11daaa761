"""One transaction with a table: what goes where, in which order, and what each failure leaves."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weft.kafka.ports import Delivery, OutMessage, ToCommit, TransactionEnd
from weft.spark.table.log import TableLog
from weft.spark.table.pace import Pace
from weft.spark.table.rows import columns_of, row_of
from weft.spark.table.sink import TABLE
from weft.spark.table.transactions import TableTransactions
from weft.types import ErrorInfo, Record, Sent

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


@pytest.fixture
def port(kafka, tmp_path) -> TableTransactions:
    held = SimpleNamespace(log=TableLog(tmp_path, "g"), columns=COLUMNS, topic_ids={"t": "id"})
    return TableTransactions(kafka, held, Pace(0.0))


def row(offset: int, value: bytes | None = None) -> OutMessage:
    """A record's result."""
    value = b'{"n":%d}' % offset if value is None else value
    return row_of(OutMessage(TABLE, value, b"k"), Record("t", 0, offset, 1, b"k", b""))


def table(tmp_path) -> list[int]:
    """The offsets in the table."""
    files = sorted(tmp_path.glob("*.parquet"))
    return [one["offset"] for file in files for one in pq.read_table(file).to_pylist()]


def test_topics_first_then_the_table_then_the_offsets(port, kafka, tmp_path) -> None:
    """Dead letters are produced before the rows are there, the group's offsets after."""
    letter = OutMessage("t.dlq", b"v", b"k")
    end = port.transact([row(0), letter, row(2)], [ToCommit("t", 0, 3)], None, None)
    assert end.outcome == "committed"
    assert kafka.calls == [(["t.dlq"], []), ([], [3])]
    topics = [one.sent.topic for one in end.deliveries]
    assert topics == [TABLE, "t.dlq", TABLE]
    assert table(tmp_path) == [0, 2]


def test_offsets_refused_after_the_table_has_the_rows(port, kafka, tmp_path) -> None:
    """It is done again, and the rows are recognised."""
    kafka.ends = [TransactionEnd("aborted", [], "the group has moved on")]
    assert port.transact([row(0)], [ToCommit("t", 0, 1)], None, None).outcome == "aborted"
    again = port.transact([row(0), row(1)], [ToCommit("t", 0, 2)], None, None)
    assert again.outcome == "committed"
    assert table(tmp_path) == [0, 1]


def test_topics_refused_leave_the_table_alone(port, kafka, tmp_path) -> None:
    """No row of a transaction whose dead letters the broker does not take."""
    refused = Delivery(None, ErrorInfo("TOPIC_AUTHORIZATION_FAILED", "no"))
    kafka.ends = [TransactionEnd("aborted", [refused])]
    end = port.transact([row(0), OutMessage("x", b"", None)], [ToCommit("t", 0, 2)], None, None)
    assert (end.outcome, end.deliveries[0]) == ("aborted", None)
    assert port.is_refusal(end.deliveries[1])
    assert table(tmp_path) == []


def test_what_had_to_be_settled_is_done_again(port, kafka, tmp_path) -> None:
    """Without offsets nothing tells which way a broken transaction went."""
    kafka.ends = [TransactionEnd("committed", [None], "timed out")]
    end = port.transact([row(0), OutMessage("x", b"", None)], [ToCommit("t", 0, 2)], None, None)
    assert end.outcome == "aborted"
    assert table(tmp_path) == []


def test_what_is_no_row_fails_its_record_alone(port, kafka, tmp_path) -> None:
    """The culprit is refused, and nothing of the transaction is done."""
    end = port.transact([row(0), row(1, b"[]")], [ToCommit("t", 0, 2)], None, None)
    assert [port.is_refusal(one) for one in end.deliveries] == [False, True]
    assert end.outcome == "aborted"
    assert "return a dict or model with its columns, n" in end.deliveries[1].error.message
    assert (kafka.calls, table(tmp_path)) == ([], [])


def test_a_folder_that_fails_aborts_with_its_reason(port, monkeypatch) -> None:
    """A full disk stands in the log, and it is tried again."""

    def full(*_arguments) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableLog, "publish", full)
    end = port.transact([row(0)], [ToCommit("t", 0, 1)], None, None)
    assert end.outcome == "aborted"
    assert "No space left" in end.reason


def test_records_without_results_commit_offsets_alone(port, kafka, tmp_path) -> None:
    """No file without rows."""
    assert port.transact([], [ToCommit("t", 0, 9)], None, None).outcome == "committed"
    assert kafka.calls == [([], [9])]
    assert list(tmp_path.glob("*.parquet")) == []


def test_the_pace_waits_for_its_interval_alone() -> None:
    """Not while much waits, and not while somebody is in a hurry."""
    clock = [0.0]
    pace = Pace(30.0, now=lambda: clock[0])
    looked = []

    def nothing_waits() -> bool:
        looked.append(clock[0])
        clock[0] += 7.0
        return False

    pace.wait(nothing_waits)
    assert looked == [0.0, 7.0, 14.0, 21.0, 28.0]
    pace.wait(lambda: True)
    pace.hurry(5.0)
    pace.wait(nothing_waits)
    assert len(looked) == 5
