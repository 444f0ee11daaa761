"""One task of the operator: lanes, failures, outputs and what it holds, without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for
from tests.unit.spark.processing import seen
from tests.unit.spark.processing.conftest import record_batch

import perkey
from perkey.core.events import HandlerSpec
from perkey.errors import ConfigError, FatalError
from perkey.spark.processing import lanes as lanes_module
from perkey.spark.processing import lanes as slow_module
from perkey.spark.processing import task as task_module


@pytest.fixture(autouse=True)
def facts():
    """What handlers told, in order."""
    seen.FACTS.clear()
    return seen.FACTS


def nothing(record):
    return None


async def nothing_async(record):
    return None


@pytest.mark.parametrize("handler", [nothing, nothing_async])
def test_every_record_is_one_row(rows, handler):
    """A handler that returns nothing: status done, one attempt, no error, no outputs."""
    found = rows(handler, [(offset, b"k", b"v") for offset in range(3)])
    assert found[0] == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "key": b"k",
        "status": "done",
        "attempts": 1,
        "error": None,
        "outputs": [],
    }
    assert [row["offset"] for row in found] == [0, 1, 2]


def test_no_records_no_rows(rows):
    """An empty share of the data ends at once."""
    assert rows(nothing, []) == []


@pytest.mark.parametrize("sort", [False, True])
def test_a_key_is_handled_in_offset_order_one_at_a_time(rows, facts, sort):
    """Lanes of two partitions with the same keys, interleaved: each in order, never overlapping."""

    async def handler(record):
        seen.tell(("start", record.partition, record.key, record.offset))
        await asyncio.sleep(0.001)
        seen.tell(("end", record.partition, record.key, record.offset))

    records = [("t", p, o, b"%d" % (o % 5), b"") for o in range(100) for p in (1, 0)]
    if sort:
        records.reverse()
    assert len(rows(handler, records, sort=sort)) == 200
    for lane in {fact[1:3] for fact in facts}:
        events = [fact for fact in facts if fact[1:3] == lane]
        offsets = [fact[3] for fact in events[::2]]
        assert offsets == sorted(offsets)
        assert [fact[0] for fact in events] == ["start", "end"] * len(offsets)


def test_null_keys_order_with_nothing(rows):
    """Two records without a key run at once; b"" is a key like others."""

    async def handler(record):
        seen.tell(record.key)
        if record.key is None:
            while seen.FACTS.count(None) < 2:  # noqa: ASYNC110  # waits for its sibling to start
                await asyncio.sleep(0.001)

    found = rows(handler, [(0, None, b""), (1, None, b""), (2, b"", b"")], timeout_s=60.0)
    assert [row["status"] for row in found] == ["done"] * 3
    assert [row["key"] for row in found] == [None, None, b""]


def test_the_whole_partition_can_be_a_lane(rows, facts):
    """ordering="partition": offset order whatever the keys."""

    async def handler(record):
        await asyncio.sleep(0.001 if record.offset % 2 else 0)
        seen.tell(record.offset)

    rows(handler, [(o, b"%d" % o, b"") for o in range(20)], ordering="partition")
    assert facts == list(range(20))


def test_a_failure_is_a_row_and_its_lane_continues(rows, facts):
    """Attempts are used up, the row says so with the last error, and the key's next is handled."""

    def handler(record):
        seen.tell((record.offset, record.attempt))
        if record.offset == 1:
            raise ValueError(f"bad {record.attempt}")

    retry = perkey.Retry(attempts=3, delay_s=0.001)
    found = rows(handler, [(o, b"k", b"") for o in range(3)], retry=retry)
    assert [row["status"] for row in found] == ["done", "failed", "done"]
    assert (found[1]["attempts"], found[1]["error"]) == (3, "ValueError: bad 3")
    assert facts == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]


def test_a_retry_that_succeeds_counts_its_attempts(rows):
    """Done at the second attempt: attempts is 2 and there is no error."""

    def handler(record):
        if record.attempt == 1:
            raise ValueError("once")

    (row,) = rows(handler, [(0, b"k", b"")], retry=perkey.Retry(delay_s=0.001))
    assert (row["status"], row["attempts"], row["error"]) == ("done", 2, None)


def test_a_postponed_record_costs_no_attempt(rows, facts):
    """`NotNow`: the task waits, and calls it again as a first attempt; its lane waits with it."""

    def handler(record):
        seen.tell((record.offset, record.attempt))
        if len(seen.FACTS) < 3:
            raise perkey.NotNow(0.001)

    retry = perkey.Retry(attempts=1)
    found = rows(handler, [(o, b"k", b"") for o in range(2)], retry=retry)
    assert [(row["status"], row["attempts"]) for row in found] == [("done", 1)] * 2
    assert facts == [(0, 1)] * 3 + [(1, 1)]


def test_reject_and_undecodable_values_are_final(rows):
    """No second attempt where none can help."""

    def handler(record):
        raise perkey.Reject("not for us")

    found = rows(handler, [(0, b"a", b"{}"), (1, b"b", b"{")], value="json")
    assert [row["attempts"] for row in found] == [1, 1]
    assert found[0]["error"] == "Reject: not for us"
    assert found[1]["error"].startswith("Undecodable: value cannot be decoded")


def test_a_tombstone_is_not_decoded(rows):
    """A null value reaches the handler as None."""

    def handler(record):
        assert record.value is None

    assert rows(handler, [(0, b"k", None)], value="json")[0]["status"] == "done"


def test_a_time_out_fails_the_attempt(rows):
    """An async call that hangs is cancelled after timeout_s."""

    async def handler(record):
        await asyncio.sleep(600)

    began = time.monotonic()
    (row,) = rows(handler, [(0, b"k", b"")], timeout_s=0.05, retry=perkey.Retry(attempts=1))
    assert row["error"].startswith("AttemptTimeout")
    assert time.monotonic() - began < 100


def test_stop_ends_the_task_with_the_record_and_its_error(rows):
    """on_exhausted=Stop(): one line that names the handler, the record and what it raised."""

    def handler(record):
        raise ValueError("no way")

    with pytest.raises(FatalError, match=r"handler: <Record t\[0\]@7 .*Stop: ValueError: no way"):
        rows(handler, [(7, b"k", b"")], retry=perkey.Retry(attempts=1), on_exhausted=perkey.Stop())


def test_outputs_are_rows_as_kafka_would_get_them(rows):
    """Topic, key, value and headers of each Produce; a key of its own, a null key, a tombstone."""

    def handler(record):
        yield perkey.Produce("text", topic="a", headers={"h": "x", "n": None})
        yield perkey.Produce(None, topic="b", key=None)
        yield perkey.Produce({"n": 1}, topic="c", key="other")

    (row,) = rows(handler, [(0, b"k", b"")])
    headers = [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert row["outputs"] == [
        {"topic": "a", "key": b"k", "value": b"text", "headers": headers},
        {"topic": "b", "key": None, "value": None, "headers": []},
        {"topic": "c", "key": b"other", "value": b'{"n":1}', "headers": []},
    ]


@pytest.mark.parametrize(
    ("returned", "value"),
    [("text", b"text"), ({"n": 1}, b'{"n":1}'), (b"raw", b"raw"), (perkey.Produce("p"), b"p")],
)
def test_a_value_without_a_topic_is_an_output_without_one(rows, returned, value):
    """A dict, text, bytes, a Produce that names no topic: an output with the record's key."""
    (row,) = rows(lambda _: returned, [(0, b"k", b"")])
    assert row["status"] == "done"
    assert row["outputs"] == [{"topic": None, "key": b"k", "value": value, "headers": []}]


def test_an_exhausted_record_becomes_a_dead_letter_in_its_row(rows):
    """on_exhausted=DeadLetter: the failed row's output is the original with Perkey's headers."""
    app = perkey.App(group="checks", kafka={"bootstrap.servers": "nowhere"})

    @app.consume(
        "t", on_exhausted=perkey.DeadLetter("{topic}.dlq"), retry=perkey.Retry(2, delay_s=0.001)
    )
    def handler(record):
        if record.offset == 0:
            raise ValueError("bad")
        return perkey.Produce("fine", topic="o")

    dead, good = rows(handler, [(0, b"k", b"v"), (1, b"k", b"w")], app=app)
    assert (dead["status"], dead["attempts"], dead["error"]) == ("failed", 2, "ValueError: bad")
    (letter,) = dead["outputs"]
    assert (letter["topic"], letter["key"], letter["value"]) == ("t.dlq", b"k", b"v")
    told = {header["key"]: header["value"] for header in letter["headers"]}
    assert told["__dlq.errors.offset"] == b"0"
    assert told["__dlq.errors.group"] == b"checks"
    assert told["__dlq.errors.delivery.count"] == b"2"
    assert (good["status"], good["outputs"][0]["value"]) == ("done", b"fine")


@pytest.mark.parametrize(("carry", "values"), [("failed", [b"v", None]), ("all", [b"v", b"w"])])
def test_rows_carry_what_a_replay_needs(rows, carry, values):
    """carry=: value, timestamp, headers and the story of its failures; nulls in the other rows."""

    def handler(record):
        if record.offset == 0:
            raise ValueError("bad")

    records = [(0, b"k", b"v"), (1, b"k", b"w")]
    failed, good = rows(handler, records, carry=carry, retry=perkey.Retry(2, delay_s=0.001))
    assert [failed["value"], good["value"]] == values
    assert failed["headers"] == []
    assert failed["timestamp"] is None, "there was none in the DataFrame"
    told = [event["what"] for event in failed["story"]]
    attempts = [what for what in told if " failed: " in what]
    # The second failed alike: its message is not told again.
    assert attempts == ["attempt 1 failed: ValueError: bad", "attempt 2 failed: ValueError"]
    assert all(abs(time.time() - event["at"].timestamp()) < 60 for event in failed["story"])
    assert good["story"] == (None if carry == "failed" else [])


def test_a_call_that_hangs_is_reported_in_the_log(rows, caplog, monkeypatch):
    """Once it has run for a while: the record, the attempt and for how long."""
    monkeypatch.setattr(slow_module, "SLOW_S", 0.3)
    monkeypatch.setattr(slow_module, "LOOK_EVERY_S", 0.1)

    async def handler(record):
        while record.offset == 7 and not seen.FACTS:  # noqa: ASYNC110  # the test lets it go
            await asyncio.sleep(0.02)

    def reported():
        """That it alone is slow: on a busy machine others are, for a while."""
        line = r"slow call handler=handler record='<Record t\[0\]@7 .* slow_calls=1 "
        return re.search(line, caplog.text)

    def let_go():
        wait_for(reported, 60)
        seen.tell("go")

    threading.Thread(target=let_go).start()
    assert len(rows(handler, [(o, b"%d" % o, b"") for o in range(20)])) == 20
    assert reported()


def test_rows_leave_while_a_slow_record_still_runs(task):
    """Results are handed on as they finish, not when all have."""

    async def handler(record):
        if record.offset == 0:
            while not seen.FACTS:  # noqa: ASYNC110  # the test lets it go
                await asyncio.sleep(0.005)

    batches = task(handler, [record_batch([(o, b"%d" % o, b"") for o in range(50)])])
    first = next(batches)
    assert 0 < first.num_rows < 50
    assert 0 not in first.column("offset").to_pylist()
    seen.tell("go")
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 50


def test_intake_stops_while_much_waits(task, monkeypatch):
    """Input is taken only as fast as it is handled: what waits is bounded."""
    monkeypatch.setattr(task_module, "WAITING_RECORDS_MAX", 100)
    pulled = []

    def batches():
        for start in range(0, 1_000, 50):
            pulled.append(start)
            yield record_batch([(o, b"k", b"") for o in range(start, start + 50)])

    async def handler(record):
        while not seen.FACTS:  # noqa: ASYNC110  # the test lets it go
            await asyncio.sleep(0.005)

    def let_go():
        wait_for(lambda: len(pulled) >= 3, 60)
        threading.Event().wait(0.5)  # time to take more than that
        seen.tell(len(pulled))

    running = task(handler, batches())
    threading.Thread(target=let_go).start()
    assert sum(batch.num_rows for batch in running) == 1_000
    assert seen.FACTS == [3]


def test_large_outputs_do_not_pile_up(task, monkeypatch):
    """Past a limit nothing starts until Spark has taken the rows; everything arrives."""
    monkeypatch.setattr(lanes_module, "OUTPUT_BYTES_HELD_MAX", 100_000)

    def handler(record):
        seen.tell(record.offset)
        return perkey.Produce(b"x" * 10_000, topic="o")

    records = [(o, b"%d" % o, b"") for o in range(200)]
    batches = task(handler, [record_batch(records)], concurrency=5)
    first = next(batches)
    # Ten fill the limit; what runs then, and what took its slots in the same turn, still ends.
    assert first.num_rows <= 10 + 2 * 5
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 200


def test_the_lifespan_opens_once_and_closes_at_the_end(rows, facts):
    """It opens before the first call, and its value is app.state while the task runs."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere"})

    @contextlib.asynccontextmanager
    async def opened():
        seen.tell("open")
        yield "client"
        seen.tell("close")

    @app.consume("t")
    async def handler(record):
        seen.tell(app.state)

    rows(handler, [(o, b"k", b"") for o in range(3)], lifespan=opened, app=app)
    assert facts == ["open", "client", "client", "client", "close"]


def test_a_lifespan_that_fails_ends_the_task_in_one_line(rows):
    """The error names the lifespan and what it raised."""

    @contextlib.contextmanager
    def opened():
        raise OSError("no database")
        yield

    with pytest.raises(FatalError, match="lifespan failed to open: OSError: no database"):
        rows(nothing, [(0, b"k", b"")], lifespan=opened)


@pytest.mark.parametrize(("value", "how"), [(b"v", "are equal"), (b"w", "differ")])
def test_two_rows_under_one_name_are_refused(rows, value, how):
    """Overlapping reads, or made-up offsets: nothing is left out in silence."""
    with pytest.raises(ConfigError, match=rf"two rows are t\[0\]@0 and {how}: .*dropDuplicates"):
        rows(nothing, [(0, b"k", b"v"), (0, b"k", value), (1, b"k", b"v")])


def test_prefetch_of_the_decorator_is_used(rows):
    """What it loads for a record is record.prefetched."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere"})

    def load(records):
        return [record.offset * 10 for record in records]

    @app.consume("t", prefetch=load, output="o")
    def handler(record):
        return str(record.prefetched)

    found = rows(handler, [(o, b"k", b"") for o in range(3)], app=app)
    assert [row["outputs"][0]["value"] for row in found] == [b"0", b"10", b"20"]


@pytest.mark.threads_may_die
def test_a_task_without_threads_for_its_calls_ends(monkeypatch):
    """What they should do is never done: it would wait for ever."""

    class Executors:
        def __init__(self, door, *_, **__):
            self.door = door

        def of(self, *_):
            self.door.died("perkey-h-0", RuntimeError("can't start new thread"))
            return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(lanes_module, "Executors", Executors)
    plan: Any = SimpleNamespace(spec=HandlerSpec("h"), latency=None)
    options: Any = None
    lanes = lanes_module.TaskLanes(options, plan, None)
    lanes.close()
    with pytest.raises(FatalError, match="thread perkey-h-0 died: RuntimeError: can't start"):
        lanes.check()


@pytest.mark.threads_may_die
def test_a_task_without_its_clock_ends():
    """Retries and time-outs would never come: it would wait for ever."""
    lanes: Any = lanes_module.TaskLanes.__new__(lanes_module.TaskLanes)
    lanes._fatal, lanes._enough = None, threading.Event()
    lanes._died("perkey-clock", KeyError("when"))
    assert lanes._enough.is_set()
    with pytest.raises(FatalError, match="thread perkey-clock died: KeyError: 'when'"):
        lanes.check()
