"""Budgets of a fleet: the driver lends, the members report what they hold and need.

core/leases.py decides what is lent to whom; here are the messages, the clock and the proof that a
member is dead. Without a budget nothing runs, and nothing is sent.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perkey import guard
from perkey.core.leases import REPORT_EVERY_S, LeaseReport, Lent, Lessor
from perkey.core.states import InternalError
from perkey.runtime.logs import event
from perkey.spark.fleet.wire import Message, Wire, WireError

if TYPE_CHECKING:
    from perkey.policies import Budget
    from perkey.runtime.member.member import Member
    from perkey.spark.fleet.slots import Slot

#: interval of rounds in which the driver divides what several members wait for
_ROUND_S = 0.1
#: least time between two reports, also of requested ones
_SOON_S = 0.05
_PROOF_EVERY_S = 0.5
#: time for the worker processes of a dead member to detect its death and end
_WORKERS_END_S = 1.0


class Borrowing:
    """A member's end. Used by the thread that runs the checks, except `urge` and `lent`."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], bool],
        deliver: Callable[[Mapping[str, Any]], object],
        *,
        needed: bool,
    ) -> None:
        """`needed`: a handler has a budget. `deliver`: sends, also after a broken connection."""
        self._send, self._deliver, self._needed = send, deliver, needed
        self._life = ""
        self._member: Member | None = None
        self._reported_at = 0.0
        self._urged = False
        #: the last report may be lost: an idle member sends no other, and would keep what it
        #: returned
        self._lost = False
        #: wakes the thread that runs the checks
        self.wake: Callable[[], None] = lambda: None

    def begin(self, member: Member) -> None:
        """A run of the member starts, with nothing lent."""
        if self._needed:
            self._life, self._member = secrets.token_hex(8), member
            member.door.call(lambda engine, now: engine.lease_budgets(now))

    def urge(self) -> None:
        """Inside the door: report soon."""
        self._urged = True
        self.wake()

    def within_s(self, seconds: float) -> float:
        """How long the checking thread may sleep, at most `seconds`."""
        return seconds if self._member is None else min(seconds, self._due_s())

    def _due_s(self) -> float:
        every_s = _SOON_S if self._urged else REPORT_EVERY_S
        return max(0.0, self._reported_at + every_s - time.monotonic())

    def look(self) -> None:
        """Send a report if it is due and something is new."""
        member = self._member
        if member is None or self._due_s() > 0:
            return
        self._reported_at, self._urged = time.monotonic(), False
        with suppress(InternalError):  # the member ends by itself
            lost, self._lost = self._lost, False
            reports = member.door.call(lambda engine, now: engine.lease_reports(now, lost=lost))
            if reports:
                self._send({"type": "lease", "life": self._life, "reports": reports})

    def again(self) -> None:
        """The connection was broken. Thread-safe."""
        self._lost = True

    def lent(self, message: Message) -> None:
        """The driver lends. Thread-safe."""
        member = self._member
        if member is not None and message["life"] == self._life:
            lents = [Lent(*row) for row in message["lents"]]
            member.door.post(lambda engine, now: engine.lent(now, lents))

    def end(self) -> None:
        """The run has ended, with all calls or with some that cannot be ended."""
        member, self._member = self._member, None
        if member is None:
            return
        running = True
        with suppress(InternalError):
            running = member.door.call(lambda engine, _: engine.budgets_in_use)
        # Once: otherwise its share would not be lent again while its process exists.
        self._deliver({"type": "lease", "life": self._life, "reports": [], "running": running})


@dataclass(slots=True, eq=False)
class _Life:
    """One run of a member, as the driver knows it."""

    index: int
    pid: int
    kernel: str | None
    wire: Wire | None
    #: a thread waits for the proof of its end
    lost: bool = False


class Lending:
    """The driver's end. Thread-safe."""

    def __init__(
        self, budgets: Iterable[Budget], has_ended: Callable[[str | None, int], bool]
    ) -> None:
        """`has_ended(kernel, pid)`: whether this process is known to have ended."""
        now = time.monotonic()
        self._lessors = {
            one.name: Lessor(one.name, one.per_s, one.in_flight, now) for one in budgets
        }
        self._has_ended = has_ended
        self._lives: dict[str, _Life] = {}
        self._lock = threading.Lock()
        self._woken, self._closed = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Start to lend, if there are budgets."""
        if self._lessors:
            guard.thread("perkey-lending", self._rounds, guard.log_death).start()

    def close(self) -> None:
        """Stop lending."""
        self._closed.set()
        self._woken.set()

    def received(self, slot: Slot, wire: Wire, message: Message) -> None:
        """A member reports."""
        name, lents = str(message["life"]), list[tuple[str, Lent]]()
        with self._lock:
            life = self._lives.get(name)
            if life is None and slot.incarnation is not None:
                pid = slot.incarnation.pid
                life = self._lives[name] = _Life(slot.index, pid, slot.kernel, wire)
            if life is None:
                return
            life.wire = wire
            now = time.monotonic()
            for row in message["reports"]:
                lessor = self._lessors.get(str(row[0]))
                if lessor is not None:
                    lessor.received(now, name, LeaseReport(*row))
                    lents += [] if lessor.contended(name) else lessor.deal(now)
            if message.get("running") is False:
                self._over(name)
            elif "running" in message:
                self._lost(name, life)
        self._send(lents)
        self._woken.set()

    def line_ended(self, wire: Wire) -> None:
        """A connection has ended: it is unknown whether calls of its member still run."""
        with self._lock:
            for name, life in list(self._lives.items()):
                if life.wire is wire:
                    self._lost(name, life)

    # -- inside ------------------------------------------------------------------------------------

    def _over(self, name: str) -> None:
        self._lives.pop(name, None)
        for lessor in self._lessors.values():
            lessor.over(time.monotonic(), name)

    def _lost(self, name: str, life: _Life) -> None:
        life.wire = None
        for lessor in self._lessors.values():
            lessor.gone(time.monotonic(), name)
        if not life.lost:
            life.lost = True
            guard.thread("perkey-lent", self._prove, guard.log_death, name, life).start()

    def _prove(self, name: str, life: _Life) -> None:
        """Wait until it is back, or its process is known to have ended."""
        since = time.monotonic()
        while not self._closed.wait(_PROOF_EVERY_S) and self._waits(name, life):
            held: list[str] = []
            ended = self._has_ended(life.kernel, life.pid)
            if ended and time.monotonic() - since >= _WORKERS_END_S:
                with self._lock:
                    if life.wire is None:
                        held = [n for n, one in self._lessors.items() if one.held_by(name)]
                        self._over(name)
                if held:
                    event(
                        "info", "what was lent to a dead member is lent to others",
                        member=life.index, budgets=",".join(held),
                    )  # fmt: skip

    def _waits(self, name: str, life: _Life) -> bool:
        """Whether it is away and calls are reserved for it; otherwise the wait ends."""
        with self._lock:
            known = any(lessor.knows(name) for lessor in self._lessors.values())
            if not known:
                self._lives.pop(name, None)
            life.lost = known and life.wire is None
            return life.lost

    def _rounds(self) -> None:
        while not self._closed.is_set():
            self._woken.wait()
            self._woken.clear()
            while not self._closed.wait(_ROUND_S):
                now = time.monotonic()
                with self._lock:
                    lents = [one for lessor in self._lessors.values() for one in lessor.deal(now)]
                    busy = any(lessor.busy for lessor in self._lessors.values())
                self._send(lents)
                if not busy:
                    break

    def _send(self, lents: Iterable[tuple[str, Lent]]) -> None:
        """Outside the lock: a connection may be slow."""
        rows: dict[str, list[Lent]] = {}
        for name, lent in lents:
            rows.setdefault(name, []).append(lent)
        for name, some in rows.items():
            life = self._lives.get(name)
            wire = None if life is None else life.wire
            if wire is not None:
                with suppress(WireError):  # the next report shows what has not arrived
                    wire.send({"type": "lent", "life": name, "lents": some})
