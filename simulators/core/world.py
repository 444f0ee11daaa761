"""The world of one seed: its stage, and its starting and ending processes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from perkey.core.events import Command
from perkey.types import StopMode
from simulators.core.foreign import take_over
from simulators.core.invariants import check
from simulators.core.member import Member
from simulators.core.stage import GROUP, Stage
from simulators.core.violation import Violation

#: commands that are obeyed again, as those of a control topic that are young
ORDERS = 12


class World(Stage):
    """One seed."""

    def __init__(self, seed: int, steps: int = 300, *, trace: list[str] | None = None) -> None:
        super().__init__(seed, steps, trace=trace)
        self.runs: Counter[int] = Counter()
        #: handlers whose calls fail, of this key or (None) all
        self.away: dict[int, bytes | None] = {}
        self.members: dict[int, Member] = {}
        #: slots whose process died, since when; the broker still counts their member
        self.dead: dict[int, tuple[float, str]] = {}
        #: the last commands
        self.orders: deque[Command] = deque(maxlen=ORDERS)
        if self.setup.logs_matter:
            take_over(self)
        self.start_member(0)

    def processes(self) -> Iterable[Member]:
        """Those that live."""
        return self.members.values()

    def start_member(self, slot: int) -> None:
        """A process starts in this slot."""
        dead = self.dead.pop(slot, None)
        if dead is not None:
            self.broker.leave(GROUP, dead[1])
        self.runs[slot] += 1
        self.members[slot] = Member(self, slot, self.runs[slot])

    def bury(self, member: Member, *, left: bool) -> None:
        """The process is gone; `left`: it said goodbye to the broker."""
        self.tell(f"{member.id} {'leaves' if left else 'dies'}")
        del self.members[member.slot]
        self.oracle.gone(member.name)
        if left:
            self.broker.leave(GROUP, member.id)
        self.dead[member.slot] = (self.now, member.id)

    def replace(self, member: Member) -> None:
        """Thrown out of the group, the client joins again."""
        self.runs[100 + member.slot] += 1
        member.rejoin(self.runs[100 + member.slot])

    def obey(self, member: Member) -> None:
        """A fatal error drains and ends the process."""
        if member.fatal and member.stop_at is None:
            self.stop(member, "in_flight")

    def stop(self, member: Member, mode: StopMode) -> None:
        """Ask the member to stop."""
        member.stop_at = self.now
        member.engine.stop(self.now, mode)
        member.perform()
        if mode == "now" and not member.drained:
            raise Violation("L4", f"{member.name} does not end at once")

    def check_structure(self) -> None:
        """Recount everything inside every engine."""
        for member in self.members.values():
            calls = [0] * len(self.setup.specs)
            for call in member.calls:
                calls[call.handler] += 1
            check(member.engine, calls)
