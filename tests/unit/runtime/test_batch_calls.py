"""A batch in its handler's hands: its records, their acknowledgement, its cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import perkey
from perkey.kafka.ports import OutMessage
from perkey.runtime.calls.batch_calls import _Calls
from perkey.runtime.calls.record_batch import (
    Acks,
    Nacked,
    RecordBatch,
    earlier_in_lane,
)
from perkey.runtime.histogram import CALL_S, Latency, summed
from perkey.runtime.shared import MESSAGE_OVERHEAD_BYTES, SharedOutputs, size_of
from perkey.testing import run
from perkey.types import Record


def record(offset: int, key: bytes | None = b"k", partition: int = 0) -> Record:
    """A record of topic t."""
    return Record("t", partition, offset, 0, key, b"v")


class Told:
    """The call behind a batch: what it was told."""

    def __init__(self, *, explicit: bool) -> None:
        self.explicit = explicit
        self.acked: list[tuple[int, Any]] = []
        self.nacked: list[tuple[int, Any]] = []

    def ack(self, index: int, outputs: Any) -> None:
        """Keep it."""
        self.acked.append((index, outputs))

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """Keep it."""
        self.nacked.append((index, error))


def test_a_record_is_of_the_latest_call() -> None:
    """An earlier one acknowledged it and still runs: it is not that one which is cancelled."""

    class Running:
        def __init__(self, *works: str) -> None:
            self.works = works

    calls: Any = _Calls()
    earlier, later = Running("first", "second"), Running("first")
    calls.add(earlier)
    calls.add(later)
    assert (calls.of("first"), calls.of("second")) == (later, earlier)
    calls.remove(later)
    assert calls.all() == [earlier]


RECORDS = [record(0), record(1), record(0, partition=1)]


def test_a_batch_is_a_sequence_of_its_records() -> None:
    """By index, by slice, by turns."""
    batch = RecordBatch(Told(explicit=True), RECORDS)
    assert (len(batch), list(batch), batch[1], batch[1:]) == (3, RECORDS, RECORDS[1], RECORDS[1:])
    assert repr(batch) == "<RecordBatch of 3>"


def test_records_are_acknowledged_by_what_they_are() -> None:
    """Topic, partition and offset: a changed copy is the same record."""
    told = Told(explicit=True)
    batch = RecordBatch(told, RECORDS)
    batch.ack(RECORDS[2]._replace(value=b"other"), "out")
    batch.nack(RECORDS[1], "no")
    assert (told.acked, told.nacked) == ([(2, "out")], [(1, "no")])
    with pytest.raises(ValueError, match="is not in this batch"):
        batch.ack(record(7))


def test_a_batch_that_is_acknowledged_as_a_whole_reports_it() -> None:
    """Neither ack nor nack."""
    told = Told(explicit=False)
    batch = RecordBatch(told, RECORDS)
    for call in (batch.ack, batch.nack):
        with pytest.raises(TypeError, match="acknowledged as a whole"):
            call(RECORDS[0])
    assert (told.acked, told.nacked) == ([], [])


def test_fewer_records_of_the_same_call() -> None:
    """What a ledger knows is left out; both are cancelled together."""
    batch = RecordBatch(Told(explicit=True), RECORDS)
    fewer = batch.only([0, 2])
    assert list(fewer) == [RECORDS[0], RECORDS[2]]
    batch.cancel_event.set()
    assert fewer.cancelled


def test_a_cancelled_batch_is_waited_for() -> None:
    """Not before it is cancelled, whoever does that; and at once where it was before."""
    batch = RecordBatch(Told(explicit=True), RECORDS)

    async def main() -> bool:
        waiting = asyncio.ensure_future(batch.wait_cancelled())
        for _ in range(5):
            await asyncio.sleep(0)
        early = waiting.done() or batch.cancelled
        threading.Thread(target=batch.cancel_event.set).start()
        await asyncio.wait_for(waiting, 20)
        await asyncio.wait_for(batch.wait_cancelled(), 20)
        return early

    assert asyncio.run(main()) is False
    assert batch.cancelled


@pytest.mark.parametrize(
    ("ordering", "before"),
    [
        ("key", [None, None, 0, None, 1, None, None]),
        ("partition", [None, 0, 1, None, 2, 4, 3]),
        ("unordered", [None] * 7),
    ],
)
def test_who_is_before_whom(ordering: str, before: list[int | None]) -> None:
    """In one lane of one partition."""
    keys: list[tuple[bytes | None, int]] = [
        (b"a", 0), (b"b", 0), (b"a", 0), (b"a", 1), (b"b", 0), (None, 0), (None, 1),
    ]  # fmt: skip
    records = [record(n, key, partition) for n, (key, partition) in enumerate(keys)]
    assert earlier_in_lane(records, ordering) == before


def test_acknowledgements_keep_the_lane() -> None:
    """One by one; each is told once."""
    acks, told = Acks([record(0), record(1), record(2, b"other")], "key"), list[int]()
    acks.check(0)
    acks.check(2)
    with pytest.raises(perkey.OutOfOrder, match="comes before"):
        acks.check(1)
    assert acks.ack(0, lambda: told.append(0))
    acks.check(1)
    assert not acks.ack(0, lambda: told.append(0))
    assert (told, acks.left()) == ([0], [1, 2])


def test_after_the_end_nothing_is_acknowledged() -> None:
    """What is left has failed: as the handler said, or as its call ended."""
    acks = Acks([record(0), record(1), record(2)], "unordered")
    acks.ack(1, lambda: None)
    error, other = RuntimeError("own"), RuntimeError("the call's")
    acks.nack(0, error)
    assert acks.end() == [0, 2]
    assert not acks.ack(2, lambda: pytest.fail("told"))
    assert (acks.why(0, other), acks.why(2, other), acks.why(2, None)) == (error, other, None)


def test_a_word_about_a_record_may_change_until_it_is_acknowledged() -> None:
    """Then it is done."""
    acks = Acks([record(0)], "key")
    acks.nack(0, "why")
    assert isinstance(acks.why(0, None), Nacked)
    acks.ack(0, lambda: None)
    assert acks.why(0, None) is None
    with pytest.raises(ValueError, match="is acknowledged already"):
        acks.nack(0, "why")


def message(value: bytes | None, key: bytes | None = None) -> OutMessage:
    """One output."""
    return OutMessage(topic="out", value=value, key=key)


def test_outputs_of_a_batch_weigh_a_share_each() -> None:
    """Values, keys and what Python adds."""
    messages = [message(b"12345", b"123"), message(None)]
    whole = 2 * MESSAGE_OVERHEAD_BYTES + 8
    assert size_of(messages) == whole
    assert size_of([]) == 0
    shared = SharedOutputs(messages, 4)
    assert (size_of(shared), len(shared), shared.records) == (whole // 4, 2, 4)
    assert (shared[0], shared[1:]) == (messages[0], messages[1:])
    assert SharedOutputs(messages, 0).size_bytes == whole
    assert SharedOutputs([], 1).number > shared.number


def test_durations_are_counted_in_buckets() -> None:
    """A duration at a bound is within it; sums of two members add up."""
    latency = Latency((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 1.0, 7.0):
        latency.add(seconds)
    row = latency.buckets()
    assert row == {"le": [0.1, 1.0], "counts": [2, 2, 1], "sum": 8.65}
    assert latency.buckets() == row  # counted once
    assert summed(row, row) == {"le": [0.1, 1.0], "counts": [4, 4, 2], "sum": 17.3}
    assert (summed(None, row), summed(row, None), summed(None, None)) == (row, row, None)


def test_percentiles_are_of_the_latest_calls() -> None:
    """In milliseconds; None before the first call."""
    latency = Latency()
    assert set(latency.percentiles_ms().values()) == {None}
    assert latency.samples() == []
    for number in range(1, 1_001):
        latency.add(number / 1_000)
    told = latency.percentiles_ms()
    assert told["p50"] == pytest.approx(500, abs=2)
    assert told["p99"] == pytest.approx(990, abs=2)
    samples = latency.samples(100)
    assert (len(samples), samples) == (100, sorted(samples))
    assert len(CALL_S) + 1 == len(latency.buckets()["counts"])


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_the_time_of_a_batch_is_its_handlers_latency(kind: str) -> None:
    """One sample for each call, as of a call with one record."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    times: list[float | None] = []

    def look(_batch: perkey.RecordBatch) -> None:
        (row,) = app.snapshot()["handlers"].values()
        times.append(row["latency_ms"]["p50"])

    async def wait(batch: perkey.RecordBatch) -> None:
        look(batch)

    batch = perkey.Batch(max_records=1)
    app.consume("t", concurrency=1, batch=batch)(wait if kind == "async" else look)
    run(app, [(b"k", b"1"), (b"k", b"2")])
    assert times[0] is None
    assert times[1] is not None
