"""The driver's checks while a fleet runs: dead and silent members, and executors that go.

A classic group ends a rebalance when every member has joined again, or when a silent one's session
has ended. A dead member is waited for in this way: its own partitions, and those that move between
living members, wait too. So the driver removes it, once it is proved to be dead: its connection has
ended without a goodbye, and either its process is gone, as seen by the driver or a member under the
same kernel, or Spark has given its executor up, and an orphan has had the time to leave by itself.
One that has sent a goodbye is checked, too: if a dead member delayed the rebalance in which it
left, its own leave request may have been lost behind its join. Removal is repeated until the group
no longer lists it: brokers that do not answer now, or a slow rebalance, do not end it. Without
proof the session decides: a living member would be fenced in the middle of its work.

Usually Spark restarts a member within a second. The successor joins under another id, and a former
holder that the group still lists is then removed without further proof: the same id would fence it,
too.
"""

from __future__ import annotations

import logging
import time

from perkey import guard
from perkey.errors import PerkeyError
from perkey.kafka.ports import KafkaUnavailable
from perkey.runtime.logs import event
from perkey.spark.fleet.dead_members import GRACE_S, DeadMembers
from perkey.spark.fleet.limits import AWAY_S, IN_THE_WAY_S, RETURN_S
from perkey.spark.fleet.membership import has_ended, kernel
from perkey.spark.fleet.roster import Roster
from perkey.spark.fleet.session import FleetSession
from perkey.spark.fleet.slots import Slot

_log = logging.getLogger("perkey")

_LOOK_S = 0.1
_MOVE_LOOK_S = 0.5
_PROOF_EVERY_S = 0.5
_ANSWER_S = 2.0


def process_has_ended(roster: Roster, where: str | None, pid: int) -> bool:
    """Whether this process is known to have ended: the driver, or a member, sees its kernel."""
    if where is None:
        return False
    if where == kernel():
        return has_ended(pid)
    with roster.changed:
        near = (one for one in roster.slots if one.wire and one.kernel == where)
        neighbour = next(near, None)
    if neighbour is None:
        return False
    return True in roster.ask({"ask": "ended", "pid": pid}, neighbour).values()


class Lost:
    """Handles members whose connection has ended; each on a separate thread, because it waits."""

    def __init__(self, roster: Roster, session: FleetSession, dead: DeadMembers) -> None:
        self._roster, self._session, self._dead = roster, session, dead
        #: member -> since when it was silent when its handling started
        self._begun: dict[int, float] = {}

    def look(self) -> None:
        """Start with members lost since the last check; returns immediately."""
        for slot in self._roster.slots:
            while slot.displaced:
                name = self._dead.static_id(slot.index, slot.displaced.pop())
                guard.thread("perkey-lost", self._follow_up, guard.log_death, slot, name).start()
            since = slot.silent_since
            if since is None or self._begun.get(slot.index) == since:
                continue
            self._begun[slot.index] = since
            guard.thread("perkey-lost", self._look_after, guard.log_death, slot, since).start()

    # -- one member --------------------------------------------------------------------------------

    def _look_after(self, slot: Slot, since: float) -> None:
        proof = self._proved(slot, since)
        if proof is None:
            return
        self._await_return(slot, since)
        if (name := self._vacated(slot, since)) is not None:
            self._push_out(slot, name, f"{proof}; the others get its partitions", since)

    def _follow_up(self, slot: Slot, name: str) -> None:
        """Its successor has connected: remove it, unless it has left as it should."""
        if self._dead.in_the_group([name]):
            self._push_out(slot, name, "Spark has started it again; the group rebalances")

    def _push_out(self, slot: Slot, name: str, reason: str, since: float | None = None) -> None:
        """Remove a dead holder from the group; `since` when it was silent, if known."""
        left = self._dead.push_out([name])
        what = "a dead member is still in the group" if left else "pushed out a dead member"
        silent = {} if since is None else {"seconds": round(time.monotonic() - since, 1)}
        event("warning", what, member=slot.index, **silent, reason=reason)

    def _waits(self, slot: Slot, since: float) -> bool:
        """Whether it is still away and the run continues."""
        return slot.silent_since == since and self._roster.orders.stop is None

    def _proved(self, slot: Slot, since: float) -> str | None:
        """Wait for a proof that it is dead; None if there is none, or it is back."""
        if slot.leaving:
            return "it has sent a goodbye, and its group has not received its leave request"
        while self._waits(slot, since):
            life = slot.incarnation
            if life and process_has_ended(self._roster, slot.kernel, life.pid):
                return "its process is gone"
            executor = slot.executor
            given_up = executor is not None and self._session.removed(executor)
            if given_up and time.monotonic() - since >= GRACE_S:
                return "Spark has given its executor up"
            self._pause(slot, since, _PROOF_EVERY_S)
        return None

    def _await_return(self, slot: Slot, since: float) -> None:
        """Give Spark time to restart it; less if a rebalance waits for it."""
        try:
            with self._dead.admin() as admin:
                while self._waits(slot, since) and time.monotonic() - since < RETURN_S:
                    in_the_way = time.monotonic() - since >= IN_THE_WAY_S
                    if in_the_way and admin.group_state(self._dead.group, _ANSWER_S)[0] != "STABLE":
                        return
                    self._pause(slot, since, _LOOK_S)
        except (KafkaUnavailable, PerkeyError) as error:
            _log.debug("the group cannot be described now: %s", error)
            self._pause(slot, since, since + RETURN_S - time.monotonic())

    def _vacated(self, slot: Slot, since: float) -> str | None:
        """Free its place, so that a new member gets another id; returns the old id.

        None if it is not in the group any more, or a member is back.
        """
        name = self._dead.static_id(slot.index, slot.suffix)
        if not self._dead.in_the_group([name]):
            return None
        with self._roster.changed:
            if not self._waits(slot, since):
                return None
            slot.suffix, slot.vacant = slot.suffix + 1, True
            return name

    def _pause(self, slot: Slot, since: float, seconds: float) -> None:
        with self._roster.changed:
            self._roster.changed.wait_for(lambda: not self._waits(slot, since), seconds)


class Lookout:
    """All checks, for the run."""

    def __init__(
        self,
        roster: Roster,
        session: FleetSession,
        session_ms: int | None,
        dead: DeadMembers | None = None,
    ) -> None:
        """`session_ms`: how long the group waits for a silent member; None: the broker decides.

        `dead` removes dead members; None without static ids.
        """
        self._roster, self._session, self._session_ms = roster, session, session_ms
        self._lost = None if dead is None else Lost(roster, session, dead)
        #: member -> since when it was away when it was logged
        self._logged: dict[int, float] = {}
        self._moved_at = 0.0

    def look(self) -> None:
        """Called often, until a stop is requested."""
        now = time.monotonic()
        for slot in self._roster.slots:
            since = slot.silent_from(now)
            if since is None or slot.ended or now - since < AWAY_S:
                continue
            if self._logged.get(slot.index) != since:
                self._logged[slot.index] = since
                self._log_away(slot, round(now - since, 1))
        if self._lost is not None:
            self._lost.look()
        if now - self._moved_at > _MOVE_LOOK_S:
            self._moved_at = now
            # Members on executors that are being decommissioned move first.
            theirs = {slot.executor for slot in self._roster.slots if slot.executor is not None}
            going = self._session.going(theirs) if theirs else []
            if going:
                self._roster.move(going)

    def _log_away(self, slot: Slot, seconds: float) -> None:
        """Its partitions may be blocked."""
        session = "the broker's session time-out"
        if self._session_ms is not None:
            session = f"the session time-out of {self._session_ms / 1000:g} s"
        whose = f"Its partitions go to the others after {session}"
        if slot.leaving or slot.vacant:  # it is not in the group any more
            whose = "The others have its partitions"
        why = "Spark has not started its task again: is a slot free?"
        if slot.wire is not None:
            why = "It is connected and does not report: is it suspended, or its network cut?"
        reason = f"{why} {whose}"
        event("warning", "member is away", member=slot.index, seconds=seconds, reason=reason)
