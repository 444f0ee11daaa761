"""Each way of delivery under kill -9 at random moments that met work, with everything counted.

The only member is killed and started again; its static id gives the successor its partitions at
once. Counts of lost, repeated, missed and out-of-order records are printed with the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.chaos import Chaos
from tests.support.exactness import compare, read_committed
from tests.support.handler_log import Entry
from tests.support.verdict import Verdict, judge

STATIC = {"group.instance.id": "the-one"}
CONCURRENCY = 16
KEYS = 200
LONG = pytest.mark.long
#: the others log the start and the end of a record at the same time
ONE_BY_ONE = ("each", "at_most_once", "exactly_once")


def kill_and_restart(run: Chaos, kills: int, each: int) -> None:
    """Kill the only member at random moments in its work, and start it again each time.

    Each child finds so much work, however fast the others were.
    """
    for _ in range(kills):
        run.supply(each, keys=KEYS)
        child = run.start()
        run.let_work(child, run.dice.uniform(0.3, 0.9))
        if run.plan.mode in ONE_BY_ONE:  # between two commits of marks no call may run
            run.kill_at_work(child, each, KEYS)
        else:
            run.kill(child)
            assert run.starts_of(child) > 0, "killed before it had work"


def went_back(entries: Sequence[Entry]) -> list[Entry]:
    """Starts behind a later record of their lane. Missed records are no break of order."""
    last: dict[tuple[int, str], int] = {}
    found = []
    for entry in sorted(entries, key=lambda entry: entry.at):
        if entry.kind == "S":
            if last.get(entry.lane, -1) >= entry.offset:
                found.append(entry)
            last[entry.lane] = entry.offset
    return found


def counts(mode: str, verdict: Verdict, run: Chaos) -> str:
    """What the issue asks to be printed."""
    return (
        f"{mode}: seed={run.seed} kills={run.kills} records={verdict.records} "
        f"lost={len(verdict.lost)} repeated={verdict.repeated} restarted={verdict.restarts} "
        f"out of order={len(verdict.order) + len(verdict.overlaps)}"
    )


def scenario(chaos: Callable[..., Chaos], mode: str, seed: int, **options: Any) -> Chaos:
    defaults = {"kafka": STATIC, "concurrency": CONCURRENCY, "work_s": 0.01, "mode": mode}
    return chaos(seed=seed, **{**defaults, **options})


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        *(pytest.param(mode, 2, marks=LONG) for mode in ("each", "batch", "explicit")),
        *(pytest.param(mode, 6, marks=LONG) for mode in ("each", "batch", "explicit")),
    ],
)
@pytest.mark.timeout(240)
def test_at_least_once_loses_nothing(chaos: Callable[..., Chaos], mode: str, kills: int) -> None:
    """Nothing lost, lanes in order, and only what was not committed yet is repeated."""
    with scenario(chaos, mode, 610) as run:
        each = {"each": 1_500, "batch": 20_000}.get(mode, 6_000)
        run.produce(each * kills, keys=KEYS)
        kill_and_restart(run, kills, each)
        last = run.start()
        run.all_done(90)
        run.until(run.committed, 10, "everything committed")
        run.terminate(last)
        verdict = run.verdict()
        print(counts(mode, verdict, run))
        assert verdict.restarts + verdict.repeated, "no kill met anything that was in flight"
        if mode == "each":
            for excuse in run.excuses:
                assert verdict.repeats.get(excuse, 0) <= CONCURRENCY


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=LONG)])
@pytest.mark.parametrize("kind", ["async", pytest.param("threads", marks=LONG)])
@pytest.mark.timeout(240)
def test_at_most_once_handles_nothing_twice(
    chaos: Callable[..., Chaos], kind: str, kills: int
) -> None:
    """Nothing is started twice; missed is at most what was marked, a slot's worth for each kill."""
    with scenario(chaos, "at_most_once", 620, kind=kind) as run:
        run.produce(6000 * kills, keys=KEYS)
        kill_and_restart(run, kills, 6000)
        last = run.start()
        run.until(run.committed, 60, "everything committed")
        run.terminate(last)
        run.look()
        verdict = judge(run.entries, run.produced, run.excuses, run.ended)
        begun = {entry.record for entry in run.entries if entry.kind == "S"}
        missed = len(run.produced) - len(begun)
        verdict.order.clear()  # it counts what waits for a missed record
        verdict.order += [str(entry) for entry in went_back(run.entries)]
        print(f"{counts('at_most_once', verdict, run)} missed={missed}")
        assert (verdict.repeated, verdict.restarts) == (0, 0)
        assert len(verdict.lost) <= kills * CONCURRENCY
        assert verdict.lost, "no kill met a record that was marked and not finished"
        assert not verdict.overlaps + verdict.order


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("exactly_once", 1),
        pytest.param("exact_batch", 2, marks=LONG),
        pytest.param("exactly_once", 6, marks=LONG),
        pytest.param("exact_batch", 6, marks=LONG),
    ],
)
@pytest.mark.timeout(240)
def test_exactly_once_copies_each_record_once(
    chaos: Callable[..., Chaos], mode: str, kills: int
) -> None:
    """Kafka's copy test: inputs and outputs are the same set, each once, in lane order."""
    with scenario(chaos, mode, 630) as run:
        run.plan.output = f"{run.plan.topic}-out"
        run.broker.create_topic(run.plan.output, 3)
        run.produce(6000 * kills, keys=KEYS)
        kill_and_restart(run, kills, 6000)
        last = run.start()
        run.all_done(90)
        run.until(run.committed, 20, "everything committed")
        run.terminate(last)
        verdict = run.verdict()
        copy = compare(run.produced, read_committed(run.broker.bootstrap, run.plan.output))
        print(f"{counts(mode, verdict, run)}; copy: {copy.summary()}")
        assert verdict.restarts + verdict.repeated, "no kill met anything that was in flight"
        assert copy.exact, copy
