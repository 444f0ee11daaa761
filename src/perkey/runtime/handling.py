"""A handler with its settings, its executor and the latencies of its calls."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perkey.core.events import ALL_STARTS_PER_S, Charged, Ended, HandlerSpec, Unhandled
from perkey.core.partition import Partition
from perkey.core.states import CLOSED, DONE, RUNNING
from perkey.core.work import Work
from perkey.decoding import Decoding, decoding_of
from perkey.runtime.door import Door
from perkey.runtime.histogram import AGE_S, AGES_MAX, Latency
from perkey.types import CHARGE, Charge, Record

if TYPE_CHECKING:
    from perkey.core.engine import Engine
    from perkey.ledger.ledger_run import LedgerRun
    from perkey.options import HandlerOptions

#: polls remembered per partition; the arrival time of earlier records is unknown
POLLS_MAX = 2_000


class Executor(Protocol):
    """Calls one handler: with single records, or with batches."""

    def start(self, works: Sequence[Work]) -> None:
        """Call it for each of these; never blocks."""
        raise AssertionError(f"{len(works)} single records for a batch handler")

    def start_batch(self, works: list[Work]) -> None:
        """Call it once for all of these; never blocks."""
        raise AssertionError(f"a batch of {len(works)} for a single-record handler")

    def cancel(self, work: Work) -> None:
        """End this attempt if that is possible: its partition is revoked, or the app stops."""
        return

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Notify running batches that these partitions, or all, are revoked."""
        return

    def keeps_pace(self) -> bool:
        """Whether completions wait for the polling thread, which checks this in each round.

        If so, it runs its next round within milliseconds and reports them.
        """
        return False

    def flush(self) -> None:
        """On the polling thread, in each round: report what running batches have acknowledged."""
        return

    def close(self) -> None:
        """Start no more calls."""

    def blocking(self) -> Work | None:
        """The record whose call runs on the handlers' loop right now, if one does. Thread-safe."""
        return None

    def stack(self, where: tuple[str, int, int]) -> list[str]:
        """Where the call of this record is now, the outermost line first. Thread-safe.

        Empty if unknown: the call has not started, or has ended.
        """


class Call(NamedTuple):
    """When a reported call ran and what it returned; kept only while results are read."""

    started_at: float
    finished_at: float
    returned: Any


class Arrivals:
    """When records arrived: one entry per poll, so it costs nothing per record.

    Written by the polling thread only; read by any thread.
    """

    def __init__(self) -> None:
        #: (topic, partition) -> first offset of each poll, ascending, and its time
        self._polls: dict[tuple[str, int], tuple[list[int], list[float]]] = {}

    def came(self, topic: str, partition: int, first: int, now: float) -> None:
        """Note that records from this offset on arrived with one poll."""
        offsets, times = self._polls.get((topic, partition), ([], []))
        if not offsets or first <= offsets[-1]:  # a new assignment, or read again
            offsets, times = [], []
            self._polls[topic, partition] = offsets, times
        elif len(offsets) >= POLLS_MAX:
            offsets, times = offsets[POLLS_MAX // 2 :], times[POLLS_MAX // 2 :]
            self._polls[topic, partition] = offsets, times
        times.append(now)  # first: a reader must find no offset without its time
        offsets.append(first)

    def at(self, topic: str, partition: int, offset: int) -> float | None:
        """When it arrived, on the engine's clock; None if that is not known (any more)."""
        offsets, times = self._polls.get((topic, partition), ((), ()))
        place = bisect_right(offsets, offset) - 1
        return times[place] if place >= 0 else None


class Charges:
    """Makes `record.charge` work in a handler: passes reported costs to the engine."""

    #: set before the first call
    door: Door

    def __init__(self, handler: int) -> None:
        """`handler`: its index."""
        self._handler = handler

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the handler, so that `record.charge` finds this object during its call."""
        if iscoroutinefunction(function):

            @wraps(function)
            async def charged(record: Any, *rest: Any) -> Any:
                CHARGE.set(Charge(self.report))
                return await function(record, *rest)

            return charged

        @wraps(function)
        def called(record: Any, *rest: Any) -> Any:
            CHARGE.set(Charge(self.report))
            return function(record, *rest)

        return called

    def report(self, record: Record[Any], cost: float, before: float | None) -> None:
        """Report the cost of a call of this record. Thread-safe."""
        charge = Charged(self._handler, record.topic, record.partition, record.offset, cost, before)
        self.door.post(lambda engine, now: engine.charged(now, [charge]))


@dataclass(slots=True)
class HandlerPlan:
    """One handler with its settings, as the runtime calls it."""

    spec: HandlerSpec
    function: Callable[..., Any]
    decoding: Decoding | None = None
    output: str | None = None
    prefetch: Callable[..., Any] | None = None
    #: which executor calls it: "async", "threads" or "processes"
    kind: str = "threads"
    #: only with a budget: reports what its calls cost
    charges: Charges | None = None
    #: set while the app runs, for a handler with a ledger
    ledger: LedgerRun | None = None
    latency: Latency = field(default_factory=Latency)
    #: ages of records, by their timestamps, when their calls end
    ages: Latency = field(default_factory=lambda: Latency(AGE_S, AGES_MAX))
    #: time from a record's arrival to its first call, on the engine's clock
    waits: Latency = field(default_factory=lambda: Latency(AGE_S, AGES_MAX))
    arrivals: Arrivals = field(default_factory=Arrivals)
    #: calls by record while results are read; otherwise None
    calls: dict[Work, Call] | None = None
    #: concurrent calls, as set by a command; 0: as declared
    set_calls: int = 0

    @classmethod
    def of(cls, options: HandlerOptions, name: str) -> HandlerPlan:
        """The options of one handler, under its name in logs and snapshots."""
        spec = HandlerSpec(
            name=name,
            ordering=options.ordering,
            concurrency=options.concurrency,
            retry=options.retry,
            on_exhausted=options.on_exhausted,
            hold=options.hold,
            brake=options.brake,
            budget=options.budget,
            timeout_s=options.timeout_s,
            delivery=options.delivery,
            commit_each=options.commit.each,
            batch=options.batch,
            rate_limit_per_s=options.rate_limit_per_s or ALL_STARTS_PER_S,
        )
        return cls(
            spec=spec,
            function=options.function,
            decoding=decoding_of(options.key, options.value),
            output=options.output,
            prefetch=options.prefetch,
            kind=options.kind,
        )

    @property
    def calls_max(self) -> int:
        """Concurrent calls for which there are threads or tasks; at least the declared number."""
        return max(self.spec.concurrency, self.set_calls)

    def timed(self, seconds: float, work: Work) -> None:
        """Note the duration of a call, its record's age, and how long the record had waited."""
        if self.latency.enough:
            return
        self.latency.add(seconds)
        if self.waits.enough or self.ages.enough:
            return
        record = work.record
        if record.timestamp_ms >= 0:
            self.ages.add(time.time() - record.timestamp_ms / 1e3)
        came_at = self.arrivals.at(record.topic, record.partition, record.offset)
        if came_at is not None and work.failure is None:
            self.waits.add(max(0.0, work.since - came_at))

    def called(self, works: Iterable[Work], began: float, returned: Any = None) -> None:
        """Note calls that end now and started at `began` (performance counter), for results.

        Called before they are reported: another thread may be in the door and finish them.
        """
        if self.calls is not None:
            now = time.time()
            self.noted(works, Call(now - (time.perf_counter() - began), now, returned))

    def noted(self, works: Iterable[Work], call: Call) -> None:
        """The same for a call whose times are known."""
        calls = self.calls  # any thread may end the reading of results
        if calls is not None:
            # Records that another member handles now never finish here.
            calls.update({work: call for work in works if work.partition.state != CLOSED})

    def forget_ended(self, _engine: Engine, _now: float) -> None:
        """Inside the door: drop calls whose records ended without a result, with their partition.

        Also those that ended before the engine reported results.
        """
        calls = self.calls
        for work in tuple(calls or ()):
            if work.state == DONE or work.partition.state == CLOSED:
                calls.pop(work, None)  # type: ignore[union-attr]  # it has some


def handled(done: Iterable[Work], ended: Iterable[Ended]) -> Iterator[Work]:
    """The records of a batch that its call has handled; returned ones had no call."""
    yield from done
    yield from (ending.work for ending in ended if not isinstance(ending, Unhandled))


def may_call(work: Work, *, at_most_once: bool) -> bool:
    """Whether a record that was passed to an executor may still be called.

    Its partition may be revoked, or have been revoked, since then: another member handles it. With
    at_most_once it is marked as started, so no other member would.
    """
    return work.state == RUNNING and (at_most_once or not work.partition.gate.reasons)
