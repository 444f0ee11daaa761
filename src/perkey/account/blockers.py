"""The records that block most, ranked by how many others wait for them; the parked and held ones.

A record that is not done blocks the later records of its lane, and the commit: what is done beyond
it exists in the offset map only. Computed from an account, outside the door; a record that has
changed since is omitted or reported in its new state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple

from perkey.account.account import PLACE_OF_STATE, Account, Part, is_held
from perkey.account.begun import waits
from perkey.account.shown import error_row, shown_key, shown_text
from perkey.core import states
from perkey.core.events import HandlerSpec
from perkey.core.work import Work

BLOCKERS_MAX = 20
#: most parked records, and most held ones, in a report
LISTED_MAX = 50


class Blocker(NamedTuple):
    """One record that blocks others."""

    part: Part
    offset: int
    #: None: restored as not done and not fetched yet
    work: Work | None
    place: str
    waiting_behind: int
    done_beyond: int

    @property
    def weight(self) -> tuple[int, float]:
        """How much it blocks; among equals, the one that has blocked longest comes first."""
        since = None if self.work is None else since_of(self.work)
        return self.waiting_behind + self.done_beyond, -(since or 0.0)


def blockers(account: Account, parts: Iterable[Part], limit: int = BLOCKERS_MAX) -> list[Blocker]:
    """The worst blockers of all partitions, worst first, then by topic, partition and offset."""
    ordered = sorted(parts, key=lambda part: (part.topic, part.number))
    candidates = (blocker for part in ordered for blocker in _candidates(account, part))
    return nlargest(limit, candidates, key=lambda blocker: blocker.weight)


def _candidates(account: Account, part: Part) -> Iterable[Blocker]:
    """Records that have left their queue, and the record at the frontier wherever it is."""
    works = part.works
    out = [
        (at, work)
        for at, work in enumerate(works)
        if work is not None and work.state not in states.UNSTARTED
    ]
    to_top = bisect_right(works, part.top, key=lambda work: -1 if work is None else work.offset)
    behind = _behind([work for _, work in out])
    for at, work in out:
        place = _place(part, work)
        if place is not None:  # otherwise it is done by now
            offset = work.record.offset
            waiting = behind[work] + (_shelved(part, work) if part.shelved else 0)
            yield Blocker(part, offset, work, place, waiting, _beyond(part, offset, at, to_top))
    for work in part.marked:
        if work.state == states.RUNNING:
            place = _place(part, work) or "running"
            yield Blocker(part, work.record.offset, work, place, waiting_behind(work), 0)
    if works and (first := works[0]) is None:
        offset = part.unfetched[0]
        yield Blocker(part, offset, None, "unfetched", 0, _beyond(part, offset, 0, to_top))
    elif works and first is not None and first.state in states.UNSTARTED:
        offset = first.record.offset
        beyond = _beyond(part, offset, 0, to_top)
        # The frontier's record is the first of its lane, so its place is where it waits itself
        ready = "gathering" if first in account.gathering else "ready"
        where = PLACE_OF_STATE.get(first.state, ready)
        yield Blocker(part, offset, first, where, waiting_behind(first), beyond)


def _shelved(part: Part, work: Work) -> int:
    """How many records of its lane are kept as offsets: they come after all others."""
    return part.shelved.get(work.partition.lanes.key_of(work.record), 0)


def _place(part: Part, work: Work) -> str | None:
    """The place of a record that has left its queue; None if it is done by now."""
    if waits(work):
        return "not_begun"
    return PLACE_OF_STATE.get(work.state)


def _beyond(part: Part, offset: int, at: int, to_top: int) -> int:
    """How many records past `offset` are done; `at` is its index among those not done."""
    return max(0, part.top - offset - (to_top - 1 - at))


def _behind(works: list[Work]) -> dict[Work, int]:
    """For each record how many wait behind it, in one walk over every lane."""
    known: dict[Work, int] = {}
    for work in reversed(works):  # the last of a lane first
        count, following = 0, None if work.state == states.PENDING else work.next
        while following is not None and following not in known:
            count += following.state == states.QUEUED
            following = following.next
        known[work] = count + (known[following] if following is not None else 0)
    return known


def waiting_behind(work: Work) -> int:
    """How many records of its lane are queued behind it."""
    return _behind([work])[work]


def waiting(
    account: Account, parts: Sequence[Part], epoch_s: float
) -> dict[str, list[dict[str, Any]]]:
    """The parked and the held records, those that have waited longest first."""
    kinds = {"parked": lambda work: work.state == states.PARKED, "on_hold": is_held}
    listed: dict[str, list[dict[str, Any]]] = {}
    for place, is_it in kinds.items():
        waiting_works = (
            (since_of(work) or 0.0, part.topic, part.number, work.record.offset, part, work)
            for part in parts
            if part.places[place]
            for work in part.works
            if work is not None and is_it(work)
        )
        listed[place] = rows = []
        for *_, part, work in nsmallest(LISTED_MAX, waiting_works, key=lambda entry: entry[:4]):
            # Like a blocker's, without the long fields and those that only blockers need
            row = record_row(work, part.handler.spec, account.at, epoch_s)
            del row["story"], row["timeout_s"]
            behind = waiting_behind(work) + (_shelved(part, work) if part.shelved else 0)
            rows.append(
                {
                    "topic": part.topic,
                    "partition": part.number,
                    "offset": work.record.offset,
                    "handler": part.handler.name,
                    "place": place,
                    "waiting_behind": behind,
                    **row,
                }
            )
    return listed


def since_of(work: Work) -> float | None:
    """Since when it is in its place, on the engine's clock; None if it never started."""
    failure = work.failure
    if work.state in states.REMEMBERED and failure is not None:
        return failure.noted_at
    return None if work.state in states.UNSTARTED else getattr(work, "since", None)


def blocker_row(blocker: Blocker, at: float, epoch_s: float) -> dict[str, Any]:
    """As JSON-able data; `epoch_s` is the UNIX time of the engine's clock at zero."""
    part = blocker.part
    row: dict[str, Any] = {
        "topic": part.topic,
        "partition": part.number,
        "offset": blocker.offset,
        "handler": part.handler.name,
        "place": blocker.place,
        "waiting_behind": blocker.waiting_behind,
        "done_beyond": blocker.done_beyond,
        "at_frontier": bool(part.works) and blocker.work is part.works[0],
    }
    return row | record_row(blocker.work, part.handler.spec, at, epoch_s)


def record_row(work: Work | None, spec: HandlerSpec, at: float, epoch_s: float) -> dict[str, Any]:
    """What is known of one record besides its place."""
    failure = None if work is None else work.failure
    since = None if work is None else since_of(work)
    # A parked or held record: until when, the reason, and who requested it
    row: dict[str, Any] = dict.fromkeys(("until", "by", "reason", "error_hash"))
    if work is None or failure is None:
        waiting = row
    else:
        if failure.error is None and failure.known_hash is not None:
            row["error_hash"] = f"{failure.known_hash:08x}"
        held = is_held(work)
        if (held or work.state == states.PARKED) and failure.due > at:
            row["until"] = round(failure.due + epoch_s, 3)
        if held and failure.held_by is not None:
            row["reason"] = shown_text(failure.held_by.reason) or None
            row["by"] = shown_text(failure.held_by.claimed_by) or None
        elif work.state == states.PARKED:
            row["by"] = failure.exhausted_by or None
            partition = work.partition
            hold = partition.holds.get(partition.lanes.key_of(work.record))
            if hold is not None and hold.until > at:
                row["reason"] = shown_text(hold.reason) or None
        waiting = row
    allowed = (spec if work is None else work).retry.attempts
    free = 0 if work is None or work.failure is None else work.failure.shared
    story = () if failure is None else tuple(failure.story)
    return {
        "key": None if work is None else shown_key(work.record.key),
        "since": None if since is None else round(since + epoch_s, 3),
        "for_s": None if since is None else round(max(0.0, at - since), 3),
        "attempts": 0 if work is None else work.attempts,
        "attempts_max": None if allowed is None else allowed + free,
        "timeout_s": spec.timeout_s if work is None else work.partition.handler.timeout_s,
        "due_in_s": None
        if failure is None or work is None or work.state not in (states.RETRYING, states.HELD)
        else round(max(0.0, failure.due - at), 3),
        "last_error": None if failure is None else error_row(failure.error),
        "story": [
            {"at": round(event.at + epoch_s, 3), "what": shown_text(event.what)} for event in story
        ],
        **waiting,
    }
