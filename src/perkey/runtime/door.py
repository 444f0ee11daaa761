"""The door to the engine: one thread at a time uses it, and no thread waits to report an event.

A thread with an event appends it and tries the door. If another thread is inside, that one also
processes the event before it leaves. So many completions become one event without a separate thread
for them, and a worker that finished gets its next record in the same step (flat combining: Hendler,
Incze, Shavit, Tzafrir, SPAA 2010).

The thread inside does not wait for anything: effects only fill queues and set flags. Handlers,
callbacks and network calls run outside, so a handler that blocks never blocks the engine.

The last 200 events are attached to an internal error (`Recent`). Only names, counts and short
values are kept, so it keeps no record in memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from typing import Any, Protocol, TypeVar

from perkey import guard
from perkey.account import begun
from perkey.account.account import Account, begin, copies, slices
from perkey.core.effects import Effect
from perkey.core.engine import Engine
from perkey.core.events import Ended
from perkey.core.gates import MEMBERSHIP
from perkey.core.partition import Partition
from perkey.core.states import InternalError
from perkey.core.work import Work
from perkey.runtime.suspension import SUSPENDED_S, since_boot

EVENTS_MAX = 200
TEXT_MAX = 60


class Recent:
    """A ring of the last events, each with its time and arguments."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, Any, Any]] = deque(maxlen=EVENTS_MAX)
        #: (time, done, otherwise) of ended calls: a separate ring, as they are by far the most
        #: frequent
        self.ended: Callable[[tuple[float, int, int]], None] = self._events.append

    def add(self, now: float, event: Callable[..., object]) -> None:
        """Note any other event."""
        self._events.append((now, _name(event), tuple(_about(event))))

    def lines(self) -> list[str]:
        """The events, oldest first."""
        return [_line(*event) for event in self._events]

    def as_text(self) -> str:
        """All events in one text, to be added to an error."""
        events = self.lines()
        return "\n".join([f"The last {len(events)} events, oldest first:", *events])


def _line(now: float, event: Any, about: Any) -> str:
    if isinstance(event, int):
        return f"  {now:.3f} calls_ended: {event} done, {about} otherwise"
    return f"  {now:.3f} {event}: {', '.join(about)}" if about else f"  {now:.3f} {event}"


def _name(event: Callable[..., object]) -> str:
    """The engine method that the event calls first."""
    function = event.func if isinstance(event, partial) else event
    code = getattr(function, "__code__", None)
    if code is None:
        return type(event).__name__
    inner = code.co_name == "<lambda>" and code.co_names
    return str(code.co_names[0] if inner else code.co_name)


def _about(event: Callable[..., object]) -> Iterator[str]:
    """Its values: those that a lambda closes over, or a partial's arguments."""
    if isinstance(event, partial):
        yield from (_short(value) for value in event.args)
        return
    names = getattr(getattr(event, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(event, "__closure__", None) or (), strict=False):
        try:
            yield f"{name}={_short(cell.cell_contents)}"
        except ValueError:  # not assigned yet
            continue


def _short(value: object) -> str:
    """A value in few characters; of collections of records only the length."""
    if value is None or isinstance(value, bool | int | float | str | Partition):
        return repr(value)[:TEXT_MAX]
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Partition):
        return repr(value[0])
    return f"{type(value).__name__}[{len(value)}]" if isinstance(value, Sized) else "…"


T = TypeVar("T")
Event = Callable[[Engine, float], object]


class Reports(list[T]):
    """Appended to by any thread, taken by the one inside. A slice costs less than a queue's steps.

    Each step is one of C, which no other thread interrupts.
    """

    __slots__ = ()

    def take(self) -> list[T]:
        """Those that are here now; later ones stay."""
        taken = self[:]
        del self[: len(taken)]
        return taken


class Timed(Protocol):
    """An executor's calls that may be past their time-out; used inside the door."""

    def next_due(self, now: float) -> float:
        """When `expire` must be called next, at the latest."""

    def expire(self, now: float) -> None:
        """End the calls whose time is over."""


class Door:
    """Serialises every event of one member's engine."""

    def __init__(
        self,
        engine: Engine,
        perform: Callable[[list[Effect]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.clock = clock
        #: calls that returned and have no outputs; append, then `turn`
        self.done: Reports[Work] = Reports()
        #: calls that ended in any other way
        self.ended: Reports[Ended] = Reports()
        #: when the engine next has something to do, as known to the polling thread
        self.wakes_at = 0.0
        #: when the polling thread last ran a round (`since_boot`, see `MembershipProof`);
        #: initially: never late
        self.round_at = float("inf")
        #: the process was suspended, and the group membership is not confirmed yet
        self.in_doubt = False
        #: the polling thread has left the group: no round is due any more
        self.left = False
        #: makes the polling thread run a round soon; any thread
        self.wake: Callable[[], None] = lambda: None
        #: called when something is due earlier than `wakes_at`
        self.on_earlier: Callable[[], None] = lambda: None
        #: the first error raised inside; from then on the door stays closed
        self.broken: Exception | None = None
        self.on_broken: Callable[[Exception], None] = lambda _: None
        #: called when a thread of the run has died
        self.on_died: guard.Died = guard.log_death
        #: the calls with a time-out of each executor
        self.deadlines: list[Timed] = []
        self._events: deque[Event] = deque()
        #: the last events, attached to the error when the engine fails
        self.recent = Recent()
        self._lock = threading.Lock()
        self._perform = perform

    def trusted(self) -> bool:
        """Whether a call that was granted before may still start: see member/committing.py."""
        return not self.in_doubt and since_boot() - self.round_at <= SUSPENDED_S

    def died(self, name: str, error: BaseException) -> None:
        """End the run because an exception escaped from one of its threads."""
        self.on_died(name, error)

    def post(self, event: Event) -> None:
        """Post an event; this thread processes it now, or the thread inside does."""
        self._events.append(event)
        self.turn()

    def waiting(self, works: Sequence[Work]) -> None:
        """Calls of one handler that were requested and have not started."""
        if works:
            self.post(lambda _engine, _now: begun.waiting(works))

    def begun(self, works: Sequence[Work], ran_s: float = 0.0) -> None:
        """Calls of one handler that started `ran_s` seconds ago."""
        if works:
            self.post(lambda _engine, now: begun.begun(works, now - ran_s))

    def batch_ended(
        self,
        works: Sequence[Work],
        done: Sequence[Work],
        ended: Sequence[Ended],
        *,
        whole: bool,
    ) -> None:
        """A call of a batch handler has ended."""
        handler = works[0].partition.handler.index
        self.post(lambda engine, now: engine.batch_ended(now, handler, done, ended, whole=whole))

    def turn(self) -> None:
        """Pass posted events to the engine, unless another thread is doing it."""
        # Checked again after leaving: a thread that found the door closed may have posted an event
        # between the last check inside and the release of the lock.
        while self.done or self.ended or self._events:
            if self.broken is not None or not self._lock.acquire(blocking=False):
                return
            try:
                self._drain()
            except Exception as error:
                self._break(error)
            finally:
                self._lock.release()

    def call(self, event: Callable[[Engine, float], T]) -> T:
        """Enter and wait for the result. Not for use from inside.

        Raises InternalError if the engine has failed, now or before.
        """
        with self._lock:
            if self.broken is not None:
                raise InternalError("the engine has failed before") from self.broken
            try:
                self._drain()
                now = self.clock()
                self.recent.add(now, event)
                answer = event(self.engine, now)
                self._perform(self.engine.take_effects())
                self._look_ahead()
            except Exception as error:  # mostly of an event of another thread
                self._break(error)
                raise InternalError("the engine has failed") from error
        self.turn()
        return answer

    def _break(self, error: Exception) -> None:
        """A bug in Perkey: the engine's state may be wrong, so nothing of it is used any more.

        Nothing more starts and nothing more is committed; a restart continues from the last commit.
        """
        error.add_note(self.recent.as_text())
        self.broken = error
        self.on_broken(error)

    def _drain(self) -> None:
        engine = self.engine
        late = since_boot() - self.round_at > SUSPENDED_S
        if late and not (self.in_doubt or self.left):
            self.in_doubt = True
            engine.halt(self.clock(), MEMBERSHIP, on=True)
        done, ended, events = self.done, self.ended, self._events
        while done or ended or events:
            # Each is taken once: what comes later is for the next round. Events are counted last
            # and processed first, so a handler's events are known before its call ends.
            works, endings = done.take(), ended.take()
            others = len(events)
            for _ in range(others):
                event, now = events.popleft(), self.clock()
                self.recent.add(now, event)
                event(engine, now)
            if works or endings:
                now = self.clock()
                self.recent.ended((now, len(works), len(endings)))
                engine.calls_ended(now, works, endings)
            if engine.has_effects:
                self._perform(engine.take_effects())
            # A mere success makes nothing due earlier but the next commit.
            if endings or others or engine.commit_at < self.wakes_at:
                self._look_ahead()

    def _look_ahead(self) -> None:
        """Wake the polling thread in time for what became due by this event."""
        if self.next_due() < self.wakes_at:
            self.on_earlier()

    def next_due(self) -> float:
        """When `tick` next has something to do, as far as known now. Inside the door."""
        due = self.engine.next_deadline()
        if self.deadlines:
            now = self.clock()
            due = min(due, *[heap.next_due(now) for heap in self.deadlines])
        return due

    def tick(self, now: float) -> None:
        """Time has passed: for the engine, and for calls with a time-out. Inside the door."""
        for one in self.deadlines:
            one.expire(now)
        self.engine.tick(now)


def account_of(door: Door, *, records: bool = True) -> Account:
    """The place of every record; no thread waits at the door for more than a slice of it.

    Without `records` it only counts: for queries every second that must not touch each record.
    """
    account, partitions = door.call(begin)
    for slice_ in slices(partitions, records=records):
        account.copies.extend(copied(door, slice_, records=records))
    return account


def copied(door: Door, slice_: list[Partition], *, records: bool) -> list[tuple[Any, ...]]:
    """A slice of it."""
    return door.call(lambda engine, _now: copies(engine, slice_, records=records))
