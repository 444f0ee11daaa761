"""Why a member, a handler or a partition starts no calls; outages and brakes, which probe.

Each has one `Gate`. A record starts if and only if no reason is in the gates of its member, its
handler and its partition. What closes a gate with a reason opens it with the same one, by an event;
nothing polls:

    gate of     reason       opened by
    member      OUTPUTS      the producer has room for outputs again
                RESULTS      results are read again
                MEMBERSHIP   the broker has confirmed that the member is in its group
                STOPPING     nothing: the run ends
    handler     OUTAGE       a probe that is due, or succeeds; `Hold.max_s`; a command
                BRAKE        a probe that is due, or succeeds; a command
                TRANSACTION  transactions have stored enough of the outputs that wait
    partition   PAUSED       a resume by the app
                COMMAND      a resume by command
                REVOKING     nothing: the epoch ends

`Outages`: a service that a handler calls fails, so its records wait while one of them probes.
Theory of operation. A failure that `Hold.on` names opens an outage, of the whole handler or of one
value of `Hold.by`::

    first failure ──► open ──every probe_s: one record may start──► it succeeds: all continue
                       │                                       └──► it fails: another, next time
                       └── max_s later: `over`: all continue; failures cost, until one succeeds

- While a whole handler waits its gate is closed, and its records stay ready; it opens for a probe,
  and `take` returns that one. With values of `by`, each record of the value is put aside when its
  turn comes (OUTAGE); its lane is charged as a failing one, so that others are still
  fetched.
- A brake (`Brake`) holds a whole handler in the same way, without a time limit: its cause is that
  too many records use up their attempts (`Flood`). Records that do so meanwhile are spared.
- Whether the probe has succeeded is read from its state in the next turn. So every way in which its
  call may end is covered, also by a command or with its epoch.
- A record that failed in an outage that another record has ended does not open the next one: it may
  be at fault itself. It alone waits for `probe_s`, and after `max_s` its attempts cost.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from perkey.core import states
from perkey.core.events import AT_MOST_ONCE
from perkey.core.work import UNTAGGED
from perkey.types import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from perkey.core.engine_state import EngineState
    from perkey.core.scheduling import Handler
    from perkey.core.work import Work
    from perkey.policies import Brake

OUTPUTS: Final = "outputs"
RESULTS: Final = "results"
MEMBERSHIP: Final = "membership"
#: a stop that starts nothing more
STOPPING: Final = "stopping"
#: what the whole handler calls fails, and no probe is due
OUTAGE: Final = "outage"
#: too many records of the handler used up their attempts, and no probe is due
BRAKE: Final = "brake"
#: exactly_once: outputs of a quarter of the buffers wait for a transaction
TRANSACTION: Final = "transaction"
#: by the app
PAUSED: Final = "paused"
#: paused by command
COMMAND: Final = "command"
#: the epoch is being revoked, or has ended
REVOKING: Final = "revoking"

_NONE: Final[frozenset[str]] = frozenset()


class Gate:
    """The reasons why its member, handler or partition starts no calls; none: it starts them."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        #: replaced with each change, so that other threads may read it
        self.reasons = _NONE

    def close(self, why: str) -> None:
        """Start nothing, for this reason; the same again changes nothing."""
        self.reasons |= {why}

    def open(self, why: str) -> None:
        """This reason is over."""
        self.reasons -= {why}

    def put(self, why: str, *, on: bool) -> None:
        """Close it with this reason, or open it."""
        (self.close if on else self.open)(why)


# -- outages and brakes ----------------------------------------------------------------------------

#: the values of an outage and a brake of a whole handler; no user value equals them
WHOLE: Final = object()
BRAKED: Final = object()
_UNDER_WAY = (states.MARKING, states.RUNNING)
_NOT_CALLED = (
    states.QUEUED, states.ROOM, states.OUTAGE, states.BUDGET, states.EPOCH, states.SUPERSEDED,
)  # fmt: skip
_HANDLED = (states.DONE, states.SENDING, states.COMMITTING, states.PENDING)
LOOKS = 12  # samples of the count of done records per `Brake.over_s`
_OFFERS = 100  # records checked for one that may start now


class Flood:
    """How many of the last records used up their attempts, and whether they are too many.

    Done records are not counted one by one: `Handler.done` is sampled a few times per
    `Brake.over_s`, so the window may be up to a twelfth longer.
    """

    __slots__ = ("_looks", "brake", "exhausted")

    def __init__(self, brake: Brake) -> None:
        self.brake = brake
        #: exhausted records since the start, or since the brake was released
        self.exhausted = 0
        #: (time, done, exhausted) samples; the first one is where the window starts
        self._looks: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def look(self, now: float, done: int) -> None:
        """Time has passed."""
        looks, over_s = self._looks, self.brake.over_s
        if now - looks[-1][0] >= over_s / LOOKS:
            looks.append((now, done, self.exhausted))
        while len(looks) > 1 and looks[1][0] <= now - over_s:
            looks.popleft()

    def counts(self, done: int) -> tuple[int, int]:
        """How many were exhausted recently, and how many ended in total."""
        _, done_before, before = self._looks[0]
        exhausted = self.exhausted - before
        return exhausted, exhausted + done - done_before

    def add(self, now: float, done: int) -> bool:
        """Count one more exhausted record; True: they are too many now."""
        self.look(now, done)
        self.exhausted += 1
        exhausted, ended = self.counts(done)
        return ended >= self.brake.at_least and exhausted >= self.brake.share * ended

    def begin_again(self, now: float, done: int) -> None:
        """Restart the counting."""
        self._looks.clear()
        self._looks.append((now, done, self.exhausted))


class Outage:
    """One outage, from its first failure to the first success."""

    __slots__ = (
        "counts", "due", "error", "failed", "max_s", "over", "probe", "probe_at", "probe_s",
        "since", "value", "waiting",
    )  # fmt: skip

    def __init__(self, value: Hashable, now: float, probe_s: float, max_s: float = inf) -> None:
        self.value = value
        #: of a brake: (records that used up their attempts, records that ended)
        self.counts = (0, 0)
        self.since = now
        self.probe_s, self.max_s = probe_s, max_s
        #: when the next record may probe
        self.probe_at = now + probe_s
        #: the latest reported error
        self.error = ErrorInfo("", "")
        #: attempts that failed with it and cost nothing
        self.failed = 0
        #: the record that probes; if it is `over`, some record that runs
        self.probe: Work | None = None
        #: the next record that starts is the probe
        self.due = False
        #: it has lasted for `max_s`: it holds nothing any more
        self.over = False
        #: records that were put aside, in this order; some may be gone
        self.waiting: deque[Work] = deque()


class Outages:
    """Opens outages, lets one record at a time probe, and ends them."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        #: when an outage is next checked; may contain ended ones
        self.timers: list[tuple[float, int, Handler, Outage]] = []
        self._order = count()
        #: outages with a record that probes
        self.probing: dict[Outage, Handler] = {}

    # -- failures ----------------------------------------------------------------------------------

    def is_charged(self, work: Work) -> bool:
        """Whether an attempt with such an error costs: the record has waited `max_s`."""
        hold = work.partition.handler.spec.hold
        assert hold is not None
        self._look_at_probes()  # one may have succeeded in the same event
        outage = work.partition.handler.outages.get(self._value_of(work))
        now, failure = self._state.now, work.failure
        if outage is not None and now >= outage.since + outage.max_s:
            return True
        since = None if failure is None else failure.waits_since
        return since is not None and now - since >= hold.max_s

    def failed(self, work: Work, error: ErrorInfo) -> float | None:
        """Such an attempt failed and costs nothing; returns how long this record waits alone.

        None: it waits for the end of an outage.
        """
        handler, value = work.partition.handler, self._value_of(work)
        hold, failure, now = handler.spec.hold, work.failure, self._state.now
        assert hold is not None
        assert failure is not None
        outage = handler.outages.get(value)
        again = failure.waits_since is not None
        if failure.waits_since is None:
            failure.waits_since = now
        if outage is None:
            if again:
                return hold.probe_s
            outage = handler.outages[value] = Outage(value, now, hold.probe_s, hold.max_s)
            _put(handler, outage, on=True)
            self._look_again(handler, outage)
            self._state.count("outages")
            self._state.note(
                "warning", "records wait: what the handler calls fails", handler=handler.name,
                error=error.line, probe_s=hold.probe_s, max_s=hold.max_s,
                next="one record at a time probes; all continue at the first success",
            )  # fmt: skip
        outage.error, outage.failed = error, outage.failed + 1
        if outage.probe is work:
            self._probed(outage)
        return None

    def is_spared(self, work: Work, error: ErrorInfo) -> bool:
        """A record's attempts are used up; True: a brake holds its handler, so it waits instead.

        A probe is given up as usual, and so is the record that triggers the brake.
        """
        self._look_at_probes()  # one may have succeeded in the same event
        handler, now = work.partition.handler, self._state.now
        flood, brake = handler.flood, handler.outages.get(BRAKED)
        assert flood is not None
        again = work.state == states.RUNNING and handler.spec.delivery != AT_MOST_ONCE
        if brake is not None and brake.probe is not work and again:
            brake.failed += 1
            return True
        if flood.add(now, handler.done) and brake is None:
            self._brake(handler, flood, error)
        return False

    def _brake(self, handler: Handler, flood: Flood, error: ErrorInfo) -> None:
        outage = Outage(BRAKED, self._state.now, flood.brake.probe_s)
        handler.outages[BRAKED] = outage
        _put(handler, outage, on=True)
        outage.error, outage.counts = error, flood.counts(handler.done)
        self._look_again(handler, outage)
        self._state.count("brakes")
        exhausted, ended = outage.counts
        self._state.note(
            "error", "the brake holds the handler: too many records used up their attempts",
            handler=handler.name, exhausted=exhausted, ended=ended, over_s=flood.brake.over_s,
            error=error.line, next="fix the cause: all continue when a probe succeeds, or by "
            f"perkey resume --handler {handler.name}",
        )  # fmt: skip

    def look_at_floods(self) -> None:
        """Sample the counts of brakes."""
        for handler in self._state.handlers:
            if handler.flood is not None:
                handler.flood.look(self._state.now, handler.done)

    def end_all(self, handler: Handler) -> None:
        """An operator requests it: all continue."""
        for outage in list(handler.outages.values()):
            self._end(handler, outage)

    def put_aside(self, work: Work) -> bool:
        """Put aside a queued record that is nowhere else, if its value has an outage."""
        handler = work.partition.handler
        value = self._value_of(work)
        outage = None if value is WHOLE else handler.outages.get(value)
        if outage is None or outage.over:
            return False
        work.partition.wait(work, states.OUTAGE)
        outage.waiting.append(work)
        return True

    def _value_of(self, work: Work) -> Hashable:
        hold = work.partition.handler.spec.hold
        return WHOLE if hold is None or hold.by is None else getattr(work, "tags", UNTAGGED).hold

    # -- what may start ----------------------------------------------------------------------------

    def _of_all(self, handler: Handler) -> list[Outage]:
        """The outage and the brake of the whole handler, if any."""
        both = [handler.outages.get(value) for value in (BRAKED, WHOLE)]
        return [outage for outage in both if outage is not None]

    def most(self, handler: Handler) -> int:
        """How many calls may start while its gate is open: all, or the probe alone."""
        free = handler.slots.free
        return free if all(outage.over for outage in self._of_all(handler)) else min(free, 1)

    def take(self, handler: Handler) -> list[Work]:
        """Records that may start now."""
        works: list[Work] = []
        most = self.most(handler)
        while len(works) < most:
            taken = handler.take(self._state.now, most - len(works))
            if not taken:
                break
            goes = [work for work in taken if self.goes(handler, work)]
            handler.untake(len(taken) - len(goes))
            works += goes
        self.began_one_of(handler, works)
        return works

    def began_one_of(self, handler: Handler, works: Sequence[Work]) -> None:
        """These start: if a probe is due, the first of them is the probe."""
        if works:
            self.began(handler, works[0])

    def goes(self, handler: Handler, work: Work) -> bool:
        """Whether it may start, apart from the whole handler; otherwise it has been put aside."""
        value = self._value_of(work)
        outage = None if value is WHOLE else handler.outages.get(value)
        if outage is None:
            return True
        if outage.over or outage.due:
            self._probes(handler, outage, work)
            return True
        return not self.put_aside(work)

    def began(self, handler: Handler, work: Work) -> None:
        """The first of the records that start now; of a batch its first."""
        for outage in self._of_all(handler):
            self._probes(handler, outage, work)

    def _probes(self, handler: Handler, outage: Outage, work: Work) -> None:
        if outage.probe is None:
            outage.probe, outage.due = work, False
            self.probing[outage] = handler
            _put(handler, outage, on=not outage.over)

    # -- time and ends -----------------------------------------------------------------------------

    def look(self) -> None:
        """Check the probes, and what is due, before anything starts."""
        self._look_at_probes()
        timers, now = self.timers, self._state.now
        while timers and timers[0][0] <= now:
            _, _, handler, outage = heapq.heappop(timers)
            if handler.outages.get(outage.value) is not outage or outage.over:
                continue
            if now >= outage.since + outage.max_s:
                self._take_over(handler, outage)
                continue
            if outage.probe is None:
                self._offer(handler, outage)
            self._look_again(handler, outage)

    def _look_at_probes(self) -> None:
        for outage, handler in list(self.probing.items()):
            probe = outage.probe
            if probe is None or probe.state in _UNDER_WAY:
                continue
            if probe.state in _HANDLED and (probe.failure is None or not probe.failure.given_up):
                self._end(handler, outage)
                continue
            lost = probe.state in _NOT_CALLED
            self._probed(outage)
            if lost and not outage.over:  # it was not called, or its result will never be known
                self._offer(handler, outage)

    def _look_again(self, handler: Handler, outage: Outage) -> None:
        outage.probe_at = self._state.now + outage.probe_s
        at = min(outage.probe_at, outage.since + outage.max_s)
        heapq.heappush(self.timers, (at, next(self._order), handler, outage))

    def next_due(self) -> float | None:
        """When an outage is next checked."""
        return self.timers[0][0] if self.timers else None

    def _probed(self, outage: Outage) -> None:
        outage.probe = None
        del self.probing[outage]

    def _offer(self, handler: Handler, outage: Outage) -> None:
        """The next record that starts is the probe; if some are put aside, offer one of them."""
        outage.due = True
        _put(handler, outage, on=False)
        for _ in range(min(_OFFERS, len(outage.waiting))):
            work = outage.waiting.popleft()
            if work.state != states.OUTAGE:
                continue
            if not work.partition.gate.reasons:
                work.partition.readmit(work)
                return
            outage.waiting.append(work)

    def _take_over(self, handler: Handler, outage: Outage) -> None:
        """It has lasted too long: the policy decides about each record."""
        outage.over, outage.due = True, False
        _put(handler, outage, on=False)
        self._state.note(
            "warning", "waited for max_s: failures cost attempts again", handler=handler.name,
            error=outage.error.line, max_s=outage.max_s,
        )  # fmt: skip
        self._readmit(outage)

    def _end(self, handler: Handler, outage: Outage) -> None:
        now = self._state.now
        self.probing.pop(outage, None)
        del handler.outages[outage.value]
        _put(handler, outage, on=False)
        if outage.value is BRAKED and handler.flood is not None:
            handler.flood.begin_again(now, handler.done)
        self._state.note(
            "info", "records continue", handler=handler.name,
            after_s=round(now - outage.since, 1),
        )  # fmt: skip
        self._readmit(outage)

    def _readmit(self, outage: Outage) -> None:
        waiting, outage.waiting = outage.waiting, deque()
        for work in waiting:
            if work.state == states.OUTAGE:
                work.partition.readmit(work)


def _put(handler: Handler, outage: Outage, *, on: bool) -> None:
    """Close the handler's gate with an outage of the whole handler, or open it."""
    if outage.value in (WHOLE, BRAKED):
        handler.gate.put(BRAKE if outage.value is BRAKED else OUTAGE, on=on)
