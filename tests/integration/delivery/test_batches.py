"""Batch handlers on the real broker: every sentence of the contract's section on batches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.app.conftest import Kafka
from tests.support.exactness import read_committed
from tests.support.waiting import wait_for

import perkey

KINDS = ("async", "threads")
LINGER_S = 4.0  # in it a busy machine sends a second record


def as_kind(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same handler as a plain or an async function."""
    if kind == "threads":
        return function

    async def handler(batch: perkey.RecordBatch) -> Any:
        return function(batch)

    return handler


def keyed(count: int, keys: int) -> list[dict[str, bytes]]:
    """Records whose values are 0, 1, 2 and so on."""
    return [{"value": b"%d" % n, "key": b"%d" % (n % keys)} for n in range(count)]


def values_of(batch: perkey.RecordBatch) -> list[int]:
    return [int(record.value) for record in batch]


class InOrder:
    """Remembers what was handled, and whether a key went backwards."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self.broken: list[perkey.Record] = []
        self._last: dict[tuple[int, bytes | None], int] = {}
        self._lock = threading.Lock()

    def take(self, record: perkey.Record) -> None:
        lane = record.partition, record.key
        with self._lock:
            self.seen[int(record.value)] += 1
            if self._last.get(lane, -1) >= record.offset:
                self.broken.append(record)
            self._last[lane] = record.offset


# -- gathering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_full_where_there_is_enough(kafka: Kafka, kind: str) -> None:
    """max_records bounds each, none is empty, several records of one key may be in one, in order."""
    topic = kafka.topic(3)
    kafka.fill(topic, keyed(3000, 20))
    app, sizes, order, repeated_keys = kafka.app(), [], InOrder(), []

    def handle(batch: perkey.RecordBatch) -> None:
        sizes.append(len(batch))
        repeated_keys.append(len(batch) > len({record.key for record in batch}))
        for record in batch:
            order.take(record)

    app.consume(topic, concurrency=4, batch=perkey.Batch(50))(as_kind(kind, handle))
    report = kafka.drain(app)
    assert report.done == 3000
    assert (min(sizes) > 0, max(sizes)) == (True, 50)
    assert any(repeated_keys)
    assert (len(order.seen), max(order.seen.values()), order.broken) == (3000, 1, [])
    assert sum(sizes) / len(sizes) > 25, "batches were hardly filled"


def test_a_batch_that_does_not_fill_starts_after_its_linger(kafka: Kafka) -> None:
    """linger_s after its first record was ready: not at once, and not later than that by much."""
    topic = kafka.topic()
    app, started = kafka.app(), []

    @app.consume(topic, batch=perkey.Batch(100, linger_s=LINGER_S))
    async def handler(batch: perkey.RecordBatch) -> None:
        started.append((time.time(), values_of(batch), batch[0].timestamp_ms))

    kafka.start(app)
    wait_for(lambda: app.snapshot()["partitions"])
    kafka.fill(topic, [b"1"])
    wait_for(lambda: app.snapshot()["partitions"][0]["buffered"])
    kafka.fill(topic, [b"2"])
    wait_for(lambda: started)
    at, values, sent_ms = started[0]
    assert values == [1, 2]
    assert LINGER_S - 0.1 <= at - sent_ms / 1000 < 30


def test_a_full_batch_does_not_linger(kafka: Kafka) -> None:
    """It starts at max_records, long before linger_s is over."""
    topic = kafka.topic()
    app, took = kafka.app(), []

    @app.consume(topic, batch=perkey.Batch(5, linger_s=60))
    async def handler(batch: perkey.RecordBatch) -> None:
        took.append(len(batch))

    kafka.start(app)
    wait_for(lambda: app.snapshot()["partitions"])
    kafka.fill(topic, [b"%d" % n for n in range(10)])
    wait_for(lambda: took == [5, 5], 50)


def test_concurrency_counts_calls(kafka: Kafka) -> None:
    """Two slots: never more than two calls at once, each with many records."""
    topic = kafka.topic(2)
    kafka.fill(topic, keyed(400, 40))
    app, running, most = kafka.app(), 0, 0

    @app.consume(topic, concurrency=2, batch=perkey.Batch(20))
    async def handler(batch: perkey.RecordBatch) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    assert kafka.drain(app).done == 400
    assert most == 2


@pytest.mark.parametrize("by", [None, "partition", "key"])
def test_by_keeps_batches_to_one_partition_or_key(kafka: Kafka, by: str | None) -> None:
    """by="partition": one partition a batch; by="key": one key of one partition; None: any."""
    topic = kafka.topic(3)
    kafka.fill(topic, keyed(900, 60))
    app, groups, order = kafka.app(), [], InOrder()

    def all_arrived() -> bool:
        return sum(row["highest_seen"] + 1 for row in app.snapshot()["partitions"]) == 900

    @app.consume(topic, concurrency=1, batch=perkey.Batch(30, linger_s=0.02, by=by))
    async def handler(batch: perkey.RecordBatch) -> None:
        # The first one stays until every partition is there to choose from.
        while not all_arrived():  # noqa: ASYNC110  # what comes in sets no event
            await asyncio.sleep(0.01)
        groups.append(({r.partition for r in batch}, {(r.partition, r.key) for r in batch}))
        for record in batch:
            order.take(record)

    assert kafka.drain(app).done == 900
    partitions = max(len(partitions) for partitions, _ in groups)
    keys = max(len(keys) for _, keys in groups)
    expected = {None: (False, False), "partition": (True, False), "key": (True, True)}[by]
    assert (partitions == 1, keys == 1) == expected
    assert order.broken == []


def test_a_batch_is_a_sequence(kafka: Kafka) -> None:
    """Length, index, slice, iteration and membership work; it shows its size."""
    topic = kafka.topic()
    kafka.fill(topic, [b"0", b"1", b"2"])
    app, facts = kafka.app(), []

    @app.consume(topic, batch=perkey.Batch(3))
    def handler(batch: perkey.RecordBatch) -> None:
        facts.append(
            (
                len(batch),
                batch[0].value,
                [r.value for r in batch[1:]],
                batch[-1] in batch,
                repr(batch),
            )
        )

    kafka.drain(app)
    assert facts == [(3, b"0", [b"1", b"2"], True, "<RecordBatch of 3>")]


# -- ack="all" ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_halves_find_the_bad_record(kafka: Kafka, kind: str) -> None:
    """One bad record of 300 ends alone; every other record is done, each key in order."""
    topic, dead = kafka.topic(2), kafka.topic()
    kafka.fill(topic, keyed(300, 30))
    app, order, attempts = kafka.app(), InOrder(), defaultdict(list)

    def handle(batch: perkey.RecordBatch) -> None:
        if 77 in values_of(batch):
            attempts[77].append(len(batch))
            raise ValueError("77 is bad")
        for record in batch:
            order.take(record)

    app.consume(
        topic,
        concurrency=4,
        batch=perkey.Batch(64),
        retry=perkey.Retry(attempts=3, delay_s=0.01),
        on_exhausted=perkey.DeadLetter(dead),
    )(as_kind(kind, handle))
    report = kafka.drain(app)
    assert (report.done, report.dead_lettered, report.parked) == (299, 1, 0)
    assert set(order.seen) == set(range(300)) - {77}
    assert (max(order.seen.values()), order.broken) == (1, [])
    assert attempts[77] == sorted(attempts[77], reverse=True)
    assert attempts[77][-1] == 1, "condemned in company"
    (letter,) = kafka.read(dead, 1)
    assert letter.value() == b"77"


@pytest.mark.broker
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_outputs_of_a_batch_are_stored_before_any_of_it_is_done(
    kafka: Kafka, delivery: str
) -> None:
    """One output that the broker refuses fails the batch, in halves: it condemns nothing else."""
    topic, output = kafka.topic(), kafka.topic(max_message_bytes=2000)
    kafka.fill(topic, keyed(40, 15))
    app, order = kafka.app(), InOrder()

    @app.consume(
        topic,
        output=output,
        delivery=delivery,
        batch=perkey.Batch(10),
        retry=perkey.Retry(attempts=2, delay_s=0.01),
        on_exhausted=perkey.Skip(),
    )
    async def handler(batch: perkey.RecordBatch) -> list[perkey.Produce]:
        if len(batch) == 1 and batch[0].value == b"13":
            order.seen[13] += 100
        return [
            perkey.Produce(b"x" * 5000 if int(r.value) == 13 else r.value, key=r.key) for r in batch
        ]

    report = kafka.drain(app)
    assert (report.done, report.skipped) == (39, 1)
    assert order.seen[13] == 200, "both of its attempts are its own: none was spent in company"
    stored = Counter(m.value() for m in read_committed(kafka.bootstrap, output))
    assert stored.keys() == {b"%d" % n for n in range(40) if n != 13}
    if delivery == "exactly_once":
        assert max(stored.values()) == 1


@pytest.mark.broker
def test_a_refused_output_condemns_no_other_of_its_transaction(kafka: Kafka) -> None:
    """exactly_once: the broker refuses whole produce batches; only the culprit's attempt fails."""
    topic, output = kafka.topic(), kafka.topic(max_message_bytes=2000)
    kafka.fill(topic, keyed(40, 40))
    app = kafka.app()

    @app.consume(
        topic,
        output=output,
        delivery="exactly_once",
        retry=perkey.Retry(attempts=2, delay_s=0.01),
        on_exhausted=perkey.Skip(),
    )
    async def handler(record: perkey.Record) -> bytes:
        return b"x" * 5000 if int(record.value) in (13, 14) else record.value

    report = kafka.drain(app)
    assert (report.done, report.skipped, report.failed_attempts) == (38, 2, 4)
    stored = Counter(m.value() for m in read_committed(kafka.bootstrap, output))
    assert stored == Counter(b"%d" % n for n in range(40) if n not in (13, 14))


def test_a_batch_that_cannot_be_decoded_fails_that_record_alone(kafka: Kafka) -> None:
    """value="json": the bad value is final, the others of its batch are handled once."""
    topic = kafka.topic()
    kafka.fill(topic, [b"1", b"{", b"3"])
    app, seen = kafka.app(), []

    @app.consume(topic, value="json", batch=perkey.Batch(3), on_exhausted=perkey.Skip())
    async def handler(batch: perkey.RecordBatch) -> None:
        seen.extend(record.value for record in batch)

    report = kafka.drain(app)
    assert (report.done, report.skipped, sorted(seen)) == (2, 1, [1, 3])


def test_a_batch_past_its_timeout_has_failed(kafka: Kafka) -> None:
    """timeout_s is of one call: the batch is cancelled and tried again."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(4, 4))
    app, calls = kafka.app(), []

    @app.consume(
        topic, batch=perkey.Batch(4), timeout_s=0.2, retry=perkey.Retry(attempts=3, delay_s=0.01)
    )
    async def handler(batch: perkey.RecordBatch) -> None:
        calls.append(len(batch))
        if len(calls) == 1:
            await asyncio.sleep(30)

    report = kafka.drain(app)
    assert (report.done, report.failed_attempts) == (4, 4)
    assert calls == [4, 2, 2]


def test_ack_is_not_for_batches_acknowledged_together(kafka: Kafka) -> None:
    """With ack="all" batch.ack raises and names the option."""
    topic = kafka.topic()
    kafka.fill(topic, [b"0"])
    app, errors = kafka.app(), []

    @app.consume(topic, batch=perkey.Batch(1))
    def handler(batch: perkey.RecordBatch) -> None:
        for call in (batch.ack, batch.nack):
            with pytest.raises(TypeError, match="explicit") as raised:
                call(batch[0])
            errors.append(raised.value)

    assert kafka.drain(app).done == 1
    assert len(errors) == 2


# -- ack="explicit" -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_what_was_acknowledged_is_done_whatever_happens_then(
    kafka: Kafka, kind: str, ending: str
) -> None:
    """The others are nacked with attempt counts of their own; the acknowledged come never again."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(20, 20))
    app, done, attempts = kafka.app(), Counter[int](), defaultdict(list)

    def handle(batch: perkey.RecordBatch) -> None:
        for record in batch:
            value = int(record.value)
            attempts[value].append(record.attempt)
            if value % 2 == 0 or record.attempt == 3:
                done[value] += 1
                batch.ack(record)
        if ending == "raises":
            raise RuntimeError("after some acknowledgements")

    app.consume(
        topic, batch=perkey.Batch(20, ack="explicit"), retry=perkey.Retry(attempts=5, delay_s=0.01)
    )(as_kind(kind, handle))
    report = kafka.drain(app)
    assert (report.done, report.failed_attempts) == (20, 20)
    assert done == Counter(range(20))
    assert {tuple(attempts[n]) for n in range(0, 20, 2)} == {(1,)}
    assert {tuple(attempts[n]) for n in range(1, 20, 2)} == {(1, 2, 3)}


def test_nack_carries_its_error(kafka: Kafka) -> None:
    """batch.nack(record, error) is that record's error, as an exception or as text."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(3, 3))
    app = kafka.app()

    @app.consume(
        topic,
        batch=perkey.Batch(3, ack="explicit"),
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.Skip(),
    )
    async def handler(batch: perkey.RecordBatch) -> None:
        batch.nack(batch[0], KeyError("zero"))
        batch.nack(batch[1], "one is not wanted")

    results = app.results()
    kafka.drain(app)
    errors = {r.record.value: (r.outcome, r.error.type, r.error.message) for r in results}
    assert errors[b"0"] == ("skipped", "KeyError", "'zero'")
    assert errors[b"1"] == ("skipped", "Nacked", "one is not wanted")
    assert errors[b"2"][:2] == ("skipped", "Nacked")
    assert "not acknowledged" in errors[b"2"][2]


@pytest.mark.parametrize(("ordering", "raises"), [("key", 1), ("partition", 3), ("unordered", 0)])
def test_acknowledging_out_of_order_raises(kafka: Kafka, ordering: str, raises: int) -> None:
    """Per key, per partition, or not at all; the record stays not acknowledged and comes again."""
    topic = kafka.topic()
    kafka.fill(
        topic, [{"value": b"%d" % n, "key": k} for n, k in enumerate((b"a", b"b", b"a", b"c"))]
    )
    app, errors, done = kafka.app(), [], Counter[int]()

    @app.consume(
        topic,
        ordering=ordering,
        batch=perkey.Batch(4, ack="explicit"),
        retry=perkey.Retry(attempts=None, delay_s=0.01),
    )
    async def handler(batch: perkey.RecordBatch) -> None:
        first = batch[0].attempt == 1 and len(batch) == 4
        for record in batch[1:] if first else batch:
            try:
                batch.ack(record)
            except perkey.OutOfOrder as error:
                errors.append(str(error))
            else:
                done[int(record.value)] += 1

    report = kafka.drain(app)
    assert report.done == 4
    assert done == Counter(range(4))
    assert len(errors) == raises
    assert all("\n" not in error for error in errors)


@pytest.mark.broker
def test_explicit_outputs_are_stored_before_the_record_is_done(kafka: Kafka) -> None:
    """ack(record, outputs): what a single handler would return; refused outputs fail that record."""
    topic, output = kafka.topic(), kafka.topic(max_message_bytes=2000)
    kafka.fill(topic, keyed(20, 20))
    app = kafka.app()

    @app.consume(
        topic,
        output=output,
        batch=perkey.Batch(20, ack="explicit"),
        retry=perkey.Retry(attempts=2, delay_s=0.01),
        on_exhausted=perkey.Skip(),
    )
    async def handler(batch: perkey.RecordBatch) -> None:
        for record in batch:
            batch.ack(record, b"x" * 5000 if record.value == b"7" else record.value)

    report = kafka.drain(app)
    assert (report.done, report.skipped) == (19, 1)
    stored = {m.value() for m in kafka.read(output, kafka.count(output))}
    assert stored == {b"%d" % n for n in range(20) if n != 7}


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_handlers_return_none(kafka: Kafka, kind: str) -> None:
    """Anything else is a final failure of what was not acknowledged, and names the fix."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(2, 2))
    app = kafka.app()

    def handle(batch: perkey.RecordBatch) -> Any:  # `str` is refused where it is written
        batch.ack(batch[0])
        return "done"

    app.consume(topic, batch=perkey.Batch(2, ack="explicit"), on_exhausted=perkey.Skip())(
        as_kind(kind, handle)
    )
    results = app.results()
    report = kafka.drain(app)
    assert (report.done, report.skipped, report.failed_attempts) == (1, 1, 1)
    (error,) = [result.error for result in results if result.error]
    assert "batch.ack" in error.message


def test_a_record_of_another_batch_cannot_be_acknowledged(kafka: Kafka) -> None:
    """ValueError, and after the call an acknowledgement does nothing."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(2, 2))
    app, errors, batches = kafka.app(), [], []

    @app.consume(
        topic, concurrency=1, batch=perkey.Batch(1, ack="explicit"), retry=perkey.Retry(2, 0.01)
    )
    def handler(batch: perkey.RecordBatch) -> None:
        if batches and batches[0][0].offset != batch[0].offset:
            with pytest.raises(ValueError, match="not in this batch") as raised:
                batch.ack(batches[0][0])
            errors.append(raised.value)
        batches.append(batch)
        if len(batches) > 1:
            batches[-2].ack(batches[-2][0])
        batch.ack(batch[0])

    report = kafka.drain(app)
    assert (report.done, report.failed_attempts, len(errors)) == (2, 0, 1)


def test_acknowledgements_of_a_running_batch_are_committed(kafka: Kafka) -> None:
    """They are done at once: committed while the call goes on."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(10, 10))
    app, release = kafka.app(), threading.Event()

    @app.consume(
        topic, batch=perkey.Batch(10, ack="explicit"), commit=perkey.Commit(interval_s=0.1)
    )
    def handler(batch: perkey.RecordBatch) -> None:
        for record in batch[:6]:
            threading.Event().wait(0.01)
            batch.ack(record)
        release.wait(60)
        for record in batch[6:]:
            batch.ack(record)

    group = app.options.group
    run = kafka.start(app)
    wait_for(lambda: (kafka.committed(group, topic) or 0) >= 5)
    release.set()
    wait_for(lambda: kafka.committed(group, topic) == 10)
    run.stop()
    assert run.wait(60).done == 10
