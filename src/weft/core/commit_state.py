"""The commit of one partition: what the broker holds, what is on the way, and who waits for it.

Each partition has at most one commit on the way; only the last of its epoch may follow one. With no
answer in time it is in doubt, and what the broker holds is read back before the next is sent. Every
change of the state goes through the table in states.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from weft.core import states
from weft.core.offsets import Offsets
from weft.core.states import COMMIT_NAMES, COMMIT_TABLE, InternalError
from weft.core.work import Work


class Plan(Protocol):
    """What one commit says, as far as its state has to know it."""

    @property
    def frontier(self) -> int:
        """The offset that is committed."""

    @property
    def metadata(self) -> str:
        """The offset map."""

    @property
    def done_beyond(self) -> int:
        """How many records past the frontier the map has as done."""

    @property
    def claims(self) -> list[Work]:
        """Records whose next step waits for it."""


@dataclass(slots=True, eq=False)
class CommitState:
    """The commit of one epoch. Nothing outside this file changes any field of it."""

    _offsets: Offsets
    #: what the broker holds for the group, as far as we know; -1 for nothing
    committed: int = -1
    #: since when, on the engine's clock; the start of the epoch until it moves
    committed_at: float = 0.0
    #: what the broker stores; lower when it refused a map of the usual size
    map_limit: int = -1
    #: what the last plan said has to be said again, whatever has changed
    again: bool = False
    state: int = states.IDLE
    #: of the request that was sent last
    sequence: int = 0
    #: idle: not before this time; sent: the answer is due by then
    at: float = 0.0
    #: the plan on the way to the broker, or in doubt
    sent: Plan | None = None
    #: finished records whose next step waits for the next commit: at_most_once, each, exactly_once
    claims: list[Work] = field(default_factory=list)
    #: the last plan had no room for all claims
    left_out: bool = False
    #: Commit(each): claims the map has no room for; they hold their lane and no slot
    slotless: set[Work] = field(default_factory=set)
    #: at_most_once: marked records, which the offsets have as done, that still run
    marked: dict[int, Work] = field(default_factory=dict)
    #: characters of the map that was sent last, and of the one that the broker stored last
    map_chars: int = 0
    map_stored: int = 0

    # -- what is new -------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """A commit would say something that the last plan did not."""
        return self._offsets.changed or self.again

    def say_again(self) -> None:
        """What the last plan said did not arrive, or holds no more."""
        self.again = True

    def ready(self, now: float) -> bool:
        """Something is new, and nothing stands against sending it."""
        idle = self.state == states.IDLE and self.at <= now
        return idle and (bool(self.claims) or self.dirty)

    # -- one request -------------------------------------------------------------------------------

    def _move(self, state: int) -> None:
        if (self.state, state) not in COMMIT_TABLE:
            raise InternalError(
                f"a commit cannot go from {COMMIT_NAMES[self.state]} to {COMMIT_NAMES[state]}"
            )
        self.state = state

    def send(self, sequence: int, item: Plan, answer_by: float) -> None:
        """This plan is on the way to the broker."""
        self._move(states.SENT)
        self.sequence = sequence
        self.at = answer_by
        self.sent = item
        self.again = False
        self._offsets.said()
        self.left_out = len(item.claims) < len(self.claims)
        self.map_chars = len(item.metadata)

    def stored(self, now: float, again_at: float) -> Plan:
        """The broker has it; returns what."""
        item = self._answered()
        if self.committed != item.frontier:
            self.committed, self.committed_at = item.frontier, now
        self.map_stored = len(item.metadata)
        # With claims left out, the same commit again would say nothing new.
        self.at = again_at if self.left_out else 0.0
        return item

    def refused(self, again_at: float) -> Plan:
        """The broker has not taken it; returns what."""
        item = self._answered()
        self.say_again()
        self.at = again_at
        return item

    def doubt(self) -> None:
        """No answer in time: what the broker holds is being read."""
        self._move(states.IN_DOUBT)

    def unread(self, again_at: float) -> None:
        """What the broker holds could not be read: it is asked again later."""
        self._move(states.SENT)
        self.at = again_at

    def _answered(self) -> Plan:
        self._move(states.IDLE)
        item, self.sent = self.sent, None
        assert item is not None
        return item

    def wait(self, until: float) -> None:
        """Send nothing before this time."""
        self.at = until

    def shrink_map(self, refused_chars: int) -> None:
        """The broker stores less than we thought: a smaller map, in the end none at all.

        What it has stored before it stores again, and two deliveries must never say less than that
        (see `Plans.plan`).
        """
        if refused_chars <= self.map_stored:
            self.map_stored = 0  # its limit was lowered since
        self.map_limit = max(self.map_limit // 2, self.map_stored)

    def close(self) -> None:
        """The epoch ended: an answer that still comes is late."""
        if self.state != states.IDLE:
            self._move(states.IDLE)
        self.claims.clear()
        self.marked.clear()
        self.slotless.clear()

    # -- claims ------------------------------------------------------------------------------------

    def claim(self, work: Work) -> None:
        """The record's next step waits for the next commit."""
        self.claims.append(work)

    def claims_stored(self, claims: list[Work]) -> None:
        """The commit that these waited for is stored."""
        if self.claims[: len(claims)] == claims:  # mostly: the first ones, in their order
            del self.claims[: len(claims)]
        else:
            self.keep(set(map(id, claims)), inside=False)

    def keep(self, ids: Collection[int], *, inside: bool = True) -> list[Work]:
        """Keep the claims with these ids, or only the others; returns those that are none now."""
        left = [work for work in self.claims if (id(work) in ids) != inside]
        self.claims = [work for work in self.claims if (id(work) in ids) == inside]
        return left

    def give_up_slot(self, work: Work) -> bool:
        """Commit(each): no room in the map; False where it has given up its slot before."""
        if work in self.slotless:
            return False
        self.slotless.add(work)
        return True

    def take_slotless(self, work: Work) -> bool:
        """Its commit is stored; True where it holds no slot."""
        held = work in self.slotless
        self.slotless.discard(work)
        return held

    # -- started-marks of at_most_once -------------------------------------------------------------

    def mark(self, offset: int, work: Work) -> None:
        """The started-mark of this record is stored."""
        self.marked[offset] = work

    def unmark(self, offset: int) -> None:
        """It has ended, or its mark is taken back."""
        del self.marked[offset]
