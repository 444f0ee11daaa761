"""What the driver looks after while a fleet runs: who is away, and whose executor goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from weft.runtime.logs import event
from weft.spark.fleet.dead_members import DeadMembers
from weft.spark.fleet.limits import AWAY_S
from weft.spark.fleet.lost import Lost
from weft.spark.fleet.roster import Roster
from weft.spark.fleet.session import FleetSession
from weft.spark.fleet.slots import Slot

_log = logging.getLogger("weft")

_MOVE_LOOK_S = 0.5


class AwayWatch:
    """Log each member that stays away: its partitions may be blocked."""

    def __init__(self, slots: Sequence[Slot], session_ms: int | None) -> None:
        """`session_ms`: how long the group waits for a silent member; None: the broker decides."""
        self._slots, self._session_ms = slots, session_ms
        #: member -> since when it was away when it was logged
        self._logged: dict[int, float] = {}

    def look(self) -> None:
        """Log members that have been away for long."""
        now = time.monotonic()
        for slot in self._slots:
            since = slot.silent_since
            if slot.wire is not None or since is None or slot.ended or now - since < AWAY_S:
                continue
            if self._logged.get(slot.index) != since:
                self._logged[slot.index] = since
                self._log_away(slot, now - since)

    def _log_away(self, slot: Slot, seconds: float) -> None:
        session = "the broker's session time-out"
        if self._session_ms is not None:
            session = f"the session time-out of {self._session_ms / 1000:g} s"
        # A member that has left, or was removed, is not in the group any more.
        whose = f"Its partitions go to the others after {session}"
        if slot.leaving or slot.vacant:
            whose = "The others have its partitions"
        event(
            _log,
            "warning",
            "member is away",
            member=slot.index,
            seconds=round(seconds, 1),
            reason=f"Spark has not started its task again: is a slot free? {whose}",
        )


class Lookout:
    """Looks around for the run."""

    def __init__(
        self,
        roster: Roster,
        session: FleetSession,
        session_ms: int | None,
        dead: DeadMembers | None = None,
    ) -> None:
        """`session_ms`: see AwayWatch. `dead` removes the dead; None where none stay."""
        self._roster, self._session = roster, session
        self._lost = None if dead is None else Lost(roster, session, dead)
        self._away = AwayWatch(roster.slots, session_ms)
        self._moved_at = 0.0

    def look(self) -> None:
        """Now and then, until a stop is requested."""
        self._away.look()
        if self._lost is not None:
            self._lost.look()
        now = time.monotonic()
        if now - self._moved_at > _MOVE_LOOK_S:
            self._moved_at = now
            self._move()

    def _move(self) -> None:
        """Members on executors that are being decommissioned go elsewhere first."""
        theirs = {slot.executor for slot in self._roster.slots if slot.executor is not None}
        going = self._session.going(theirs) if theirs else []
        if going:
            self._roster.move(going)
