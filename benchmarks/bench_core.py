"""What the core costs as what it holds grows: the promises of its size, each with its ratio.

    python benchmarks/bench_core.py [--quick] [--json]

Every figure is the best of several runs, in processor time of this process: noise only ever
adds. Exit code 1 when a promise is not kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from perkey.account.account import begin, copies, slices
from perkey.account.snapshot import snapshot
from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.events import Answer, Assignment, Failed, HandlerSpec, Limits
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.policies import Retry
from perkey.types import ErrorInfo, Record

ERROR = ErrorInfo("E", "e")
VALUE = b"x" * 100
ROOMY = Limits(buffer_records=10_000_000, buffer_bytes=2**40)
# A map without end, where the subject is something else than its limit.
BOUNDLESS = Limits(buffer_records=10_000_000, buffer_bytes=2**40, map_chars=2**26)


@dataclass(frozen=True, slots=True)
class Row:
    """One promise."""

    name: str
    figure: str
    ratio: float
    limit: float

    @property
    def kept(self) -> bool:
        return self.ratio <= self.limit


class Bench:
    """An engine, with everything it asks for answered at once."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        concurrency: int = 1_000,
        retry: Retry | None = None,
        limits: Limits = ROOMY,
    ) -> None:
        spec = HandlerSpec("h", concurrency=concurrency, retry=retry or Retry())
        self.engine = Engine([spec], limits)
        self.now = 0.0
        places = [Assignment("t", number, 0, 0) for number in range(partitions)]
        self.partitions = self.engine.assigned(0.0, places)
        self.started: list[Work] = []
        self.perform()

    def perform(self) -> None:
        for effect in self.engine.take_effects():
            if type(effect) is fx.Start:
                self.started += effect.works
            elif type(effect) is fx.CommitOffsets:
                answers = [Answer(i.partition, effect.sequence, "stored") for i in effect.items]
                self.engine.commit_answered(self.now, answers)

    def poll(self, partition: Partition, keys: int, first: int, count: int, start: int = 0) -> None:
        number = partition.number
        records = [
            Record("t", number, offset, 0, b"%d" % (start + offset % keys), VALUE)
            for offset in range(first, first + count)
        ]
        self.engine.polled(self.now, [(partition, records, [612] * count)])
        self.perform()

    def take(self) -> list[Work]:
        """What was started since the last time."""
        works, self.started = self.started, []
        return works

    def finish(self, batch: int) -> int:
        """One turn: up to `batch` calls end."""
        works, self.started = self.started[:batch], self.started[batch:]
        self.now += 0.0001
        self.engine.calls_ended(self.now, works)
        self.perform()
        return len(works)


def best(measure: Callable[[], float], runs: int) -> float:
    """The smallest of several measurements, the collector kept out of them."""
    times = []
    for _ in range(runs):
        gc.collect()
        gc.disable()
        times.append(measure())
        gc.enable()
    return min(times)


def rate_of_keys(keys: int, held: int, batch: int, turns: int) -> float:
    """Seconds a record, polled, started, ended, with `held` records of so many keys waiting."""
    bench = Bench()
    bench.poll(bench.partitions[0], keys, 0, held)
    polled = [
        [
            Record("t", 0, held + first + i, 0, b"%d" % ((held + first + i) % keys), VALUE)
            for i in range(batch)
        ]
        for first in range(0, batch * turns, batch)
    ]
    sizes = [612] * batch
    bench.finish(batch)
    begin = time.process_time()
    for some in polled:
        bench.finish(batch)
        bench.engine.polled(bench.now, [(bench.partitions[0], some, sizes)])
        bench.perform()
    return (time.process_time() - begin) / (batch * turns)


def _seconds_a_record(bench: Bench, batch: int, turns: int) -> float:
    """Ends `batch` calls a turn; the first turn, which commits everything once, is not counted."""
    bench.finish(batch)
    begin = time.process_time()
    count = sum(bench.finish(batch) for _ in range(turns))
    assert count == batch * turns, "the engine held records back"
    return (time.process_time() - begin) / count


def _record(partition: Partition, offset: int, keys: int) -> Record:
    key = b"%d" % (10_000 * partition.number + offset % keys)
    return Record("t", partition.number, offset, 0, key, VALUE)


def rate_of_partitions(partitions: int, batch: int, turns: int) -> float:
    """Seconds a record with the same backlog and as many keys spread over these partitions.

    Each poll brings one record of every partition: so memory is used in the order in which it was
    given out, however many partitions there are, and the ratio is that of the work.
    """
    bench = Bench(partitions)
    keys = 10_000 // partitions
    for offset in range((batch * turns + 20_000) // partitions):
        bench.engine.polled(
            bench.now, [(p, [_record(p, offset, keys)], [612]) for p in bench.partitions]
        )
    bench.perform()
    return _seconds_a_record(bench, batch, turns)


def rate_with_waiting(waiting: int, batch: int, turns: int) -> float:
    """Seconds a record while others wait for their retry."""
    retry = Retry(attempts=None, delay_s=100_000.0, delay_max_s=1e6)
    bench = Bench(retry=retry, limits=BOUNDLESS)
    partition = bench.partitions[0]
    for first in range(0, waiting, 1_000):
        bench.poll(partition, 10**9, first, 1_000)
        failed = [Failed(work, ERROR) for work in bench.started]
        bench.started = []
        bench.engine.calls_ended(bench.now, (), failed)
        bench.perform()
    bench.poll(partition, 1_000, waiting, batch * turns + 20_000, start=10**10)
    return _seconds_a_record(bench, batch, turns)


def commit_plan_seconds(done: int) -> float:
    """One plan with one record stuck and `done` beyond it."""
    bench = Bench(concurrency=2_000)
    partition = bench.partitions[0]
    for first in range(0, done, 10_000):
        bench.poll(partition, 10**9, first, 10_000)
        if first == 0:
            bench.started.pop(0)  # offset 0 never ends
        while bench.started:
            bench.finish(2_000)
    assert partition.frontier == 0
    partition.commit.repeat = True
    begin = time.process_time()
    item = bench.engine._plans.plan(partition)
    seconds = time.process_time() - begin
    assert item is not None
    assert item.done_beyond >= done - 10_000, "the engine held records back"
    return seconds


def failing_plan_seconds(failing: int, *, scattered: bool) -> float:
    """One plan with so many failing records, remembered in the commit as far as there is room.

    They stand in a row, or each beside one that is done.
    """
    bench = Bench(concurrency=failing, retry=Retry(attempts=None, delay_s=100_000.0))
    partition = bench.partitions[0]
    dice = random.Random(9)
    count = 2 * failing if scattered else failing
    bad = set(dice.sample(range(count), failing))
    for first in range(0, count, 1_000):
        bench.poll(partition, 10**9, first, 1_000)
        works = bench.take()
        failed = [Failed(work, ERROR) for work in works if work.record.offset in bad]
        done = [work for work in works if work.record.offset not in bad]
        bench.engine.calls_ended(bench.now, done, failed)
        bench.perform()
    assert partition.memory
    begin = time.process_time()
    item = bench.engine._plans.plan(partition)
    seconds = time.process_time() - begin
    assert item is not None
    assert item.rider_chars, "nothing of the failing records is in the commit"
    return seconds


def single_turn_seconds(records: int = 160_000) -> float:
    """One completion a turn, with everything buffered in 8 partitions."""
    bench = Bench(8)
    for partition in bench.partitions:
        bench.poll(partition, 1_000, 0, records // 8, start=1_000 * partition.number)
    engine, queue, count = bench.engine, bench.started, 0
    begin = time.process_time()
    while count < len(queue):
        engine.calls_ended(0.2, (queue[count],))
        count += 1
        for effect in engine.take_effects():
            if type(effect) is fx.Start:
                queue += effect.works
    return (time.process_time() - begin) / count


def healthy_share(keys: int, rounds: int, *, poison: bool) -> float:
    """Healthy records finished a round; with `poison` half of the keys always fail.

    Time is the engine's: a round is 10 ms, in which every running call ends. It stays within the
    18,000 offsets past the frontier which 4,096 characters of map can always tell.
    """
    retry = Retry(attempts=None, delay_s=0.05, delay_max_s=1.0)
    bench = Bench(concurrency=100, retry=retry)
    partition, offset, finished = bench.partitions[0], 0, 0
    for _ in range(rounds):
        if (
            not partition.intake_paused
            and partition.buffered - partition.lanes.blocked_records < 2_000
        ):
            bench.poll(partition, keys, offset, 1_000)
            offset += 1_000
        bench.now += 0.01
        works, bench.started = bench.started, []
        bad = [w for w in works if poison and _odd(w)]
        good = [w for w in works if not (poison and _odd(w))]
        finished += sum(not _odd(work) for work in good)
        bench.engine.calls_ended(bench.now, good, [Failed(work, ERROR) for work in bad])
        bench.perform()
        bench.engine.tick(bench.now)
        bench.perform()
    return finished / rounds


def _odd(work: Work) -> bool:
    return work.record.key is not None and int(work.record.key) % 2 == 1


def recovery_seconds(lanes: int) -> float:
    """Of a record after an outage: all lanes stood at failed heads, half of the records far past.

    The map is full then, so every start is counted; blocks of keys in no order, 50 records each.
    """
    keys = [b"%d" % lane for lane in range(lanes) for _ in range(50)]
    random.Random(8).shuffle(keys)
    bench = Bench(concurrency=2_000, retry=Retry(attempts=None, delay_s=60.0, jitter=0.0))
    partition, records = bench.partitions[0], 100 * lanes
    for first in range(0, records, 400):
        block = [*keys[first // 2 : first // 2 + 200], *[None] * 200]
        polled = [Record("t", 0, first + o, 0, key, VALUE) for o, key in enumerate(block)]
        bench.engine.polled(bench.now, [(partition, polled, [100] * len(polled))])
        bench.perform()
        while works := bench.take():
            failed = [Failed(work, ERROR) for work in works if work.record.key]
            done = [work for work in works if not work.record.key]
            bench.engine.calls_ended(bench.now, done, failed)
            bench.perform()
    bench.now += 61.0
    left, begun = partition.buffered, time.process_time()
    bench.engine.tick(bench.now)
    bench.perform()
    while works := bench.take():
        bench.engine.calls_ended(bench.now, works)
        bench.perform()
        bench.engine.tick(bench.now)
        bench.perform()
    assert not partition.buffered, "something still waits for room in the map"
    return (time.process_time() - begun) / left


def account_seconds(partitions: int, held: int) -> tuple[float, float]:
    """Of a snapshot: the most seconds at a time inside the engine's door, and those outside."""
    bench = Bench(partitions)
    each = held // partitions
    for partition in bench.partitions:
        bench.poll(partition, each, 0, each)
    account, there = begin(bench.engine, 1.0)
    insides = [best(lambda: _seconds_of(lambda: begin(bench.engine, 1.0)), 15)]
    for some in slices(there):
        inside = partial(copies, bench.engine, some)
        insides.append(best(partial(_seconds_of, inside), 15))
        account.copies.extend(inside())
    return max(insides), best(lambda: _seconds_of(lambda: json.dumps(snapshot(account))), 5)


def _seconds_of(call: Callable[[], object]) -> float:
    begun = time.process_time()
    kept = call()
    took = time.process_time() - begun
    del kept  # letting go of it is the caller's time, and outside as well
    return took


def account_rows(*, quick: bool) -> list[Row]:
    """The promise of a snapshot, in milliseconds: short inside, and not long outside."""
    partitions, held = (100, 10_000) if quick else (1_000, 100_000)
    inside, outside = account_seconds(partitions, held)
    what = f"{held:,} records, {partitions:,} partitions"
    return [
        Row("snapshot: ms inside the door", what, round(inside * 1e3, 3), 2.0),
        Row("snapshot: ms outside, as JSON", what, round(outside * 1e3, 3), 50.0),
    ]


def rows(*, quick: bool) -> list[Row]:
    """Measure everything."""
    runs, turns = (2, 200) if quick else (5, 1_000)
    many_keys = 200_000 if quick else 1_000_000
    done = 100_000 if quick else 1_000_000
    found = []

    def compare(
        name: str, limit: float, rate: Callable[[int, int], float], small: int, large: int
    ) -> None:
        for batch in (1, 100):
            low = best(partial(rate, small, batch), runs)
            high = best(partial(rate, large, batch), runs)
            figure = f"{low * 1e6:.2f} to {high * 1e6:.2f} µs a record"
            title = f"{small:,} to {large:,} {name}, {batch} a turn"
            found.append(Row(title, figure, high / low, limit))

    compare("keys", 1.5, lambda n, b: rate_of_keys(n, many_keys, b, turns), 1_000, many_keys)
    compare("partitions", 1.3, lambda n, b: rate_of_partitions(n, b, turns), 1, 1_000)
    compare("awaiting retry", 1.3, lambda n, b: rate_with_waiting(n, b, turns), 0, 100_000)
    plan = best(lambda: commit_plan_seconds(done), runs)
    found.append(Row(f"commit plan, 1 stuck, {done:,} done", f"{plan * 1e3:.2f} ms", plan, 0.005))
    for scattered, where in ((False, "in a row"), (True, "at random")):
        measure = partial(failing_plan_seconds, 1_000 if quick else 10_000, scattered=scattered)
        plan_ms = best(measure, runs) * 1e3
        title = f"commit plan, {1_000 if quick else 10_000:,} failing {where}"
        found.append(Row(title, f"{plan_ms:.2f} ms", plan_ms, 2.0))
    single = best(lambda: single_turn_seconds(20_000 if quick else 160_000), runs)
    found.append(Row("one completion a turn", f"{single * 1e6:.2f} µs", single * 1e6, 2.5))
    healthy = healthy_share(1_000, 140, poison=False)
    beside = healthy_share(1_000, 140, poison=True)
    sizes = (250, 1_000) if quick else (250, 500, 1_000, 10_000)
    for lanes in sizes:
        took = recovery_seconds(lanes) * 1e6
        title = f"recovery past the map, {100 * lanes:,} records"
        found.append(Row(title, f"{took:.2f} µs a record", took, 12.0))
    figure = f"{healthy:.1f} to {beside:.1f} healthy records a round"
    found.append(Row("half of 1,000 keys fail for ever", figure, healthy / beside, 1.0))
    return found + account_rows(quick=quick)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = rows(quick=arguments.quick)
    if arguments.json:
        print(json.dumps([asdict(row) | {"kept": row.kept} for row in table]))
    else:
        for row in table:
            mark = "ok  " if row.kept else "MISS"
            print(f"{mark} {row.name:46} {row.figure:34} {row.ratio:8.3f} of {row.limit}")
    return 0 if all(row.kept for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
