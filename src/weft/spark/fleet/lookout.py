"""What the driver looks after while a fleet runs: who is away, whose executor goes, the UI."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from weft.runtime.logs import event
from weft.spark.fleet.limits import AWAY_S
from weft.spark.fleet.roster import Roster
from weft.spark.fleet.session import FleetSession
from weft.spark.fleet.slots import Slot

_log = logging.getLogger("weft")

_MOVE_LOOK_S = 0.5
TELL_EVERY_S = 5.0


class AwayWatch:
    """A line in the log for each member that stays away: its partitions may stand still."""

    def __init__(self, slots: Sequence[Slot], session_ms: int | None) -> None:
        """`session_ms`: how long the group waits for a silent member; None: the broker says."""
        self._slots, self._session_ms = slots, session_ms
        #: member -> since when it was away when we told of it
        self._told: dict[int, float] = {}

    def look(self) -> None:
        """Tell of who has been away for long."""
        now = time.monotonic()
        for slot in self._slots:
            since = slot.silent_since
            if slot.wire is not None or since is None or slot.ended or now - since < AWAY_S:
                continue
            if self._told.get(slot.index) != since:
                self._told[slot.index] = since
                self._tell(slot, now - since)

    def _tell(self, slot: Slot, seconds: float) -> None:
        session = "the broker's session time-out"
        if self._session_ms is not None:
            session = f"the session time-out of {self._session_ms / 1000:g} s"
        # Who has said goodbye has left the group.
        whose = f"Its partitions go to the others after {session}"
        if slot.leaving:
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

    def __init__(self, roster: Roster, session: FleetSession, session_ms: int | None) -> None:
        """`session_ms`: see AwayWatch."""
        self._roster, self._session = roster, session
        self._away = AwayWatch(roster.slots, session_ms)
        self._moved_at = 0.0

    def look(self) -> None:
        """Now and then, while nobody has asked for the end."""
        self._away.look()
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


class Signboard:
    """Keeps the descriptions of the members' jobs up to date in Spark's UI, on its own thread."""

    def __init__(self, roster: Roster, session: FleetSession, group: str) -> None:
        """`group` is the job group of the run."""
        self._roster, self._session, self._group = roster, session, group
        self._before: dict[int, tuple[float, int]] = {}
        self._over = threading.Event()

    def begin(self) -> None:
        """Start; returns at once."""
        threading.Thread(target=self._run, name="weft-signboard", daemon=True).start()

    def close(self) -> None:
        """Write no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(TELL_EVERY_S):
            try:
                shots = self._roster.shots()
                told = {
                    one.index: self._line(one, shots.get(one.index)) for one in self._roster.slots
                }
                if not self._over.is_set() and not self._session.describe(self._group, told):
                    return
            except Exception:
                _log.debug("Spark's UI cannot be told", exc_info=True)
                return

    def _line(self, slot: Slot, shot: Mapping[str, Any] | None) -> str:
        """`118/s, lag 3,200, 14,020 done, 2 failed, back 1 time` or `away`."""
        done, now = slot.total("done"), time.monotonic()
        at, before = self._before.get(slot.index, (now, done))
        self._before[slot.index] = now, done
        rate = (done - before) / (now - at) if now > at else 0.0
        words = ["away"] if slot.wire is None else [f"{max(rate, 0.0):,.0f}/s"]
        if shot is not None:
            lag = sum(row.get("lag") or 0 for row in shot["shot"].get("partitions", ()))
            words.append(f"lag {lag:,}")
        words += [f"{done:,} done", f"{slot.total('failures'):,} failed attempts"]
        if slot.lives > 1:
            words.append(f"back {slot.lives - 1} times")
        return ", ".join(words)
