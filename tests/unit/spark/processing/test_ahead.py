"""Calls ahead of the core: what does not wait is done without it, the rest is as ever."""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time

import pytest
from tests.support.waiting import wait_for
from tests.unit.spark.processing import seen
from tests.unit.spark.processing.conftest import record_batch

import perkey
from perkey.spark.processing import ahead as ahead_module
from perkey.spark.processing.lanes import TaskLanes


@pytest.fixture(autouse=True)
def facts():
    """What handlers told, in order."""
    seen.FACTS.clear()
    return seen.FACTS


@pytest.fixture
def fed(monkeypatch):
    """The offsets of records that the core was given."""
    offsets, feed = [], TaskLanes.feed

    def noted(self, groups, attempts=None):
        offsets.extend(record.offset for group in groups for record in group.records)
        feed(self, groups, attempts)

    monkeypatch.setattr(TaskLanes, "feed", noted)
    return offsets


def test_calls_that_do_not_wait_need_no_core(rows, fed):
    """Also those that return something; with other partitions' records between them."""

    async def handler(record):
        return None if record.offset % 2 else {"at": record.offset}

    records = [("t", o % 3, o, b"k", b"") for o in range(30)]
    found = sorted(rows(handler, records), key=lambda row: row["offset"])
    assert fed == []
    assert [(row["partition"], row["offset"]) for row in found] == [(o % 3, o) for o in range(30)]
    values = [[output["value"] for output in row["outputs"]] for row in found]
    assert values == [[] if o % 2 else [b'{"at":%d}' % o] for o in range(30)]


def test_a_call_that_waits_continues_in_the_core(rows, facts, fed):
    """It is not called again, and its result counts."""

    async def handler(record):
        seen.tell(record.offset)
        if record.offset == 3:
            await asyncio.sleep(0.01)
            return "late"
        return None

    found = rows(handler, [(o, b"k", b"") for o in range(6)])
    assert facts == list(range(6)), "each once, in the order of their lane"
    assert fed == [3, 4, 5]
    assert [output["value"] for output in found[3]["outputs"]] == [b"late"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_failure_counts_as_an_attempt(rows, facts, waits):
    """Two calls for two attempts, and the second one's number is 2."""

    async def handler(record):
        seen.tell((record.offset, record.attempt))
        if waits:
            await asyncio.sleep(0)
        if record.offset == 1:
            raise ValueError("bad")

    retry = perkey.Retry(attempts=2, delay_s=0.001)
    found = rows(handler, [(o, b"k", b"") for o in range(3)], retry=retry)
    assert facts == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert [(row["status"], row["attempts"], row["error"]) for row in found] == [
        ("done", 1, None), ("failed", 2, "ValueError: bad"), ("done", 1, None),
    ]  # fmt: skip


def test_a_call_that_waits_has_its_time_out(rows, facts):
    """The time-out cancels the call that began ahead of the core."""

    async def handler(record):
        if record.offset == 0:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                seen.tell("cancelled")
                raise

    found = rows(handler, [(0, b"k", b""), (1, b"k", b"")], timeout_s=0.05, retry=perkey.Retry(1))
    assert facts == ["cancelled"]
    assert [row["status"] for row in found] == ["failed", "done"]
    assert found[0]["error"].startswith("AttemptTimeout: ")


def test_what_cannot_be_sent_fails_the_record(rows):
    """A generator that raises in the middle is a failed attempt, not a record without outputs."""

    async def handler(record):
        def several():
            yield perkey.Produce("one")
            raise ValueError("two")

        return several()

    (row,) = rows(handler, [(0, b"k", b"")], retry=perkey.Retry(attempts=1))
    assert (row["status"], row["error"], row["outputs"]) == ("failed", "ValueError: two", [])


def test_what_cannot_be_decoded_fails_the_record(rows, facts):
    """The records before and after it are handled."""

    async def handler(record):
        seen.tell(record.value)

    records = [(0, b"k", b"1"), (1, b"k", b"{"), (2, b"k", b"3")]
    assert [row["status"] for row in rows(handler, records, value="json")] == [
        "done", "failed", "done",
    ]  # fmt: skip
    assert facts == [1, 3]


def test_what_a_call_sets_in_its_context_stays_private(rows, facts):
    """Each call finds the context as new, also after one that waited."""

    async def handler(record):
        seen.tell(seen.SETTING.get())
        seen.SETTING.set(f"by {record.offset}")
        if record.offset == 3:
            await asyncio.sleep(0)
            seen.tell(seen.SETTING.get())

    rows(handler, [(o, b"k", b"") for o in range(5)])
    assert facts == ["unset"] * 4 + ["by 3", "unset"]


def test_rows_of_slow_calls_do_not_wait_for_the_whole_chunk(task):
    """A handler that computes: its first rows leave while the others have not begun."""

    async def handler(record):
        seen.tell(record.offset)
        time.sleep(0.02)  # noqa: ASYNC251  # it computes

    batches = task(handler, [record_batch([(o, b"k", b"") for o in range(40)])])
    first = next(batches)
    assert 0 < first.num_rows < 40
    assert len(seen.FACTS) == first.num_rows
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 40


def test_a_call_that_blocks_is_reported_in_the_log(rows, caplog, monkeypatch):
    """It names the record that blocks the loop."""
    monkeypatch.setattr(ahead_module, "SLOW_S", 0.05)
    go = threading.Event()

    async def handler(record):
        if record.offset == 7:
            wait = seen.FACTS[0].wait
            wait(60)

    def reported():
        return re.search(r"slow call handler=handler record='<Record t\[0\]@7 ", caplog.text)

    def let_go():
        wait_for(reported, 60)
        go.set()

    seen.FACTS.append(go)
    threading.Thread(target=let_go).start()
    assert len(rows(handler, [(o, b"k", b"") for o in range(9)])) == 9
    assert reported()


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_keeps_order_slots_and_attempts(rows, seed):
    """Calls that wait, fail or return by chance: lanes in order, no more at once than allowed."""
    chance = random.Random(seed)
    ordering = chance.choice(["key", "partition", "unordered"])
    slots, rare = chance.choice([1, 2, 10]), chance.choice([0.02, 0.3])
    records = [("t", o % 2, o, b"%d" % chance.randrange(5), b"") for o in range(300)]
    kinds = ("waits", "fails", "waits and fails", "returns", "waits and returns")
    odd = {o: chance.choice(kinds) for o in range(300) if chance.random() < rare}

    async def handler(record):
        kind = odd.get(record.offset, "")
        seen.tell(("start", record))
        if "waits" in kind:
            await asyncio.sleep(0.001)
        seen.tell(("end", record))
        if "fails" in kind and record.attempt == 1:
            raise ValueError("once")
        return "text" if "returns" in kind else None

    found = rows(
        handler, records, ordering=ordering, concurrency=slots, retry=perkey.Retry(3, delay_s=0.001)
    )
    assert sorted(row["offset"] for row in found) == list(range(300))
    for row in found:
        kind = odd.get(row["offset"], "")
        assert (row["status"], row["attempts"]) == ("done", 1 + ("fails" in kind)), kind
        assert len(row["outputs"]) == ("returns" in kind)
    running, most, lanes = 0, 0, {}
    for what, record in seen.FACTS:
        running += 1 if what == "start" else -1
        most = max(most, running)
        lane = {"key": (record.partition, record.key), "partition": record.partition}
        lanes.setdefault(lane.get(ordering, record.offset), []).append((what, record[:3]))
    assert most <= slots
    for events in lanes.values():
        assert [what for what, _ in events] == ["start", "end"] * (len(events) // 2)
        places = [place for _, place in events[::2]]
        assert places == sorted(places)
