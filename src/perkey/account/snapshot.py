"""An account as plain, JSON-able data: for reports, tests, the progress line and the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perkey.account.account import Account, Away, Part, Spent, Unread
from perkey.account.begun import waits
from perkey.account.blockers import blocker_row, blockers, record_row, waiting
from perkey.account.shown import error_row, shown_key
from perkey.core import states
from perkey.core.gates import COMMAND, PAUSED
from perkey.core.offsets import PRESSURE
from perkey.core.scheduling import Handler
from perkey.core.work import Work
from perkey.reasons import PLACES

#: calls that have not started for this many seconds are reported as a cause
OPENS_S = 2.0


def snapshot(
    account: Account, epoch_s: float = 0.0, *, worst: bool = True, unread: Sequence[Unread] = ()
) -> dict[str, Any]:
    """Partitions, handlers and records; `epoch_s` is the UNIX time of the engine's clock at 0.

    Without `worst` it walks over no records, so an account that only counts is enough.
    """
    parts = account.parts()
    bad = blockers(account, parts) if worst else []
    rows = [partition_row(part, account.at, epoch_s) for part in parts]
    # The records of the granted calls, started or not, by handler
    calls: dict[str, list[Work]] = {}
    for part in parts if worst else ():
        if part.places["running"] or part.places["not_begun"]:
            calls.setdefault(part.handler.name, []).extend(
                work
                for work in (*part.works, *part.marked)
                if work is not None and work.state == states.RUNNING
            )
    stops = halts(account, parts, epoch_s, calls=calls if worst else None)
    if unread:
        stops = [stop for stop in stops if stop["cause"] != "unassigned"]
        stops += [unread_halt(stop, account.at) for stop in unread]
    return {
        "partitions": with_unread(rows, unread, account.at),
        "handlers": {handler.name: handler_row(handler) for handler in account.handlers},
        "blockers": [blocker_row(stop, account.at, epoch_s) for stop in bad],
        **with_left_out(waiting(account, parts, epoch_s) if worst else NOT_LISTED, rows),
        "halts": stops,
        "holds": account.holds,
        "counts": account.counts,
    }


#: lists of records that wait for an operator: name -> place
NOT_LISTED: Mapping[str, list[dict[str, Any]]] = {"parked": [], "on_hold": []}


def with_left_out(
    listed: Mapping[str, list[dict[str, Any]]], parts: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """These lists, and how many more records of each kind the partitions have."""
    places = [part.get("places", {}) for part in parts]
    totals: dict[str, Any] = dict(listed)
    for name, rows in listed.items():
        every = sum(row.get(name, 0) for row in places)
        totals[f"{name}_left_out"] = max(0, every - len(rows))
    return totals


def partition_row(part: Part, at: float, epoch_s: float) -> dict[str, Any]:
    """One partition, with the field names of the contract."""
    frontier = frontier_of(part)
    seen_to = max(part.position, part.top + 1)
    done_beyond = max(0, seen_to - frontier - part.not_done)
    end = max(part.log_end, part.position, frontier)
    remaining = max(0, end - frontier - done_beyond)
    buffered = part.not_done - part.not_fetched
    oldest = part.works[0] if part.works else None
    stamp_ms = -1 if oldest is None else oldest.record.timestamp_ms
    if part.places["past_map"]:
        used = 1.0
    else:
        room = max(1, int(part.map_limit * PRESSURE))
        used = round(min(1.0, max(part.map_chars, part.map_taken) / room), 3)
    causes = (
        ("user", PAUSED in part.reasons), ("command", COMMAND in part.reasons),
        ("buffers", part.intake_paused),
    )  # fmt: skip
    return {
        "topic": part.topic,
        "partition": part.number,
        "handler": part.handler.name,
        "epoch": part.epoch,
        "state": states.EPOCH_NAMES[part.state],
        "frontier": frontier,
        "committed": part.committed,
        "committed_since": round(part.committed_at + epoch_s, 3),
        "committed_for_s": round(max(0.0, at - part.committed_at), 3),
        "commit": states.COMMIT_NAMES[part.commit_state],
        "highest_seen": part.position - 1,
        "end": end,
        "done_beyond": done_beyond,
        "remaining": remaining,
        # What was not fetched yet may contain gaps: this is an upper bound.
        "remaining_is_bound": end > seen_to,
        "oldest_not_done": frontier if remaining else None,
        "oldest_age_s": None if stamp_ms < 0 else round(max(0.0, at + epoch_s - stamp_ms / 1e3), 3),
        "buffered": buffered,
        "in_flight": part.places["running"],
        "retrying": part.places["retrying"],
        "parked": part.places["parked"],
        "places": part.places,
        "unfetched": part.not_fetched,
        "lag": max(0, end - frontier),
        "map_chars": part.map_chars,
        "map_limit": part.map_limit,
        "map_used": used,
        "past_map": part.places["past_map"],
        "not_remembered": min(part.left_out, part.not_done),
        "paused": bool(part.reasons & {PAUSED, COMMAND}) or part.intake_paused,
        "paused_by": [name for name, holds in causes if holds],
        **_NO_PLACE,
    }


_NO_PLACE: dict[str, Any] = {"place": None, "place_for_s": None, "place_reason": None}
#: the values for a partition whose start offset is unknown: it holds nothing
_UNKNOWN: dict[str, Any] = {
    "epoch": None, "state": "assigned", "frontier": None, "committed": None,
    "committed_since": None, "committed_for_s": None, "commit": "idle", "highest_seen": None,
    "end": None, "done_beyond": 0, "remaining": None, "remaining_is_bound": False,
    "oldest_not_done": None, "oldest_age_s": None, "buffered": 0, "in_flight": 0, "retrying": 0,
    "parked": 0, "places": {place.name: 0 for place in PLACES}, "unfetched": 0, "lag": None,
    "map_chars": 0, "map_limit": 0, "map_used": 0.0, "past_map": 0, "not_remembered": 0,
    "paused": False, "paused_by": [],
}  # fmt: skip


def with_unread(
    rows: Iterable[Mapping[str, Any]], unread: Iterable[Unread], at: float
) -> list[dict[str, Any]]:
    """The same rows with the place of unread partitions, and a row for each that has none."""
    by_partition = {(row["topic"], row["partition"]): dict(row) for row in rows}
    for partition in unread:
        where = {
            "topic": partition.topic,
            "partition": partition.number,
            "handler": partition.handler,
        }
        row = by_partition.setdefault((partition.topic, partition.number), {**where, **_UNKNOWN})
        row |= {
            "place": partition.place,
            "place_for_s": round(max(0.0, at - partition.since), 3),
            "place_reason": partition.reason,
        }
    return list(by_partition.values())


def total(rows: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """The sum over the partitions that know it; None if none does."""
    values = [row[name] for row in rows]
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def is_away(snapshot: Mapping[str, Any]) -> bool:
    """Whether this member has no broker, or none yet: without partitions, remaining is unknown."""
    causes = {halt["cause"] for halt in snapshot.get("halts", ())}
    return not causes.isdisjoint(("starting", "broker", "refused"))


def frontier_of(part: Part) -> int:
    """The lowest offset that is not done."""
    if not part.works:
        return max(part.position, part.top + 1)
    first = part.works[0]
    return part.unfetched[0] if first is None else first.record.offset


def handler_row(handler: Handler) -> dict[str, Any]:
    """The counts of one handler since the start."""
    return {
        "done": handler.done,
        "failures": handler.failures,
        "retries": handler.retries,
        "dead_lettered": handler.dead_lettered,
        "skipped": handler.skipped,
        "parked": handler.parked,
        "superseded": handler.superseded,
        "overdue": len(handler.overdue),
        "in_flight": handler.slots.taken,
        "concurrency": handler.slots.concurrency,
        "ordering": handler.spec.ordering,
    }


def halts(
    account: Account,
    parts: Sequence[Part],
    epoch_s: float = 0.0,
    *,
    calls: Mapping[str, Sequence[Work]] | None,
) -> list[dict[str, Any]]:
    """Why nothing starts: in the whole app, a handler, a topic or a partition.

    `calls`: the records of each handler's calls, for the texts about calls; None: none are needed.
    """
    causes: list[dict[str, Any]] = []
    if not parts:
        causes.append({"cause": "unassigned"})
    if account.stop_mode is not None:
        causes.append({"cause": "stopping", "mode": account.stop_mode})
    causes += [{"cause": "paused", "topic": topic} for topic in sorted(account.paused, key=str)]
    names = {handler.index: handler.name for handler in account.handlers}
    causes += [
        {
            "cause": "command", "topic": one.topic, "until": one.until_s, "reason": one.reason,
            **({} if one.handler is None else {"handler": names[one.handler]}),
        }
        for one in account.pauses
    ]  # fmt: skip
    causes += [{"cause": hold} for hold in account.holds]
    waiting = {part.handler.name for part in parts if part.places["ready"] + part.places["budget"]}
    for handler in account.handlers:
        works = [] if calls is None else calls.get(handler.name, ())
        running = [work for work in works if not waits(work)]
        if works and not running and (one := _none_begins(handler, works, account.at, epoch_s)):
            causes.append(one)
            continue
        # Calls granted beyond the concurrency wait in the pipes of processes, or for a thread.
        in_pipes = handler.slots.taken > handler.slots.concurrency
        if handler.name not in waiting and not in_pipes:
            continue
        if handler.slots.free <= 0 or in_pipes:
            hung = {} if calls is None else _calls(handler, running, account.at, epoch_s)
            causes.append({"cause": "slots", "handler": handler.name, **hung})
        elif (due := account.tokens_due[handler.name]) is not None and due > account.at:
            causes.append({"cause": "rate_limit", "handler": handler.name})
    for spent in account.budgets:
        causes += [
            row
            for name in spent.handlers
            if (row := _spent(spent, name, parts, account.at, epoch_s))["waiting"]
        ]
    causes += [_outage(one, parts, account.at, epoch_s) for one in account.outages]
    for part in parts:
        where = {"topic": part.topic, "partition": part.number}
        if part.state == states.REVOKING:
            causes.append({"cause": "revoking", **where})
        if part.places["past_map"]:
            frontier = frontier_of(part)
            moves = 0 <= part.committed < frontier
            causes.append(
                {
                    "cause": "map",
                    **where,
                    "frontier": frontier,
                    "waiting": part.places["past_map"],
                    "behind": part.places["behind"],
                    "for_s": 0.0 if moves else round(max(0.0, account.at - part.committed_at), 3),
                }
            )
        if part.intake_paused:
            causes.append({"cause": "buffers", **where})
    return causes


def _outage(away: Away, parts: Sequence[Part], at: float, epoch_s: float) -> dict[str, Any]:
    """An outage of what a handler calls: since when, with which error, how many records wait."""
    ready = sum(part.places["ready"] for part in parts if part.handler.name == away.handler)
    value = away.value if isinstance(away.value, bytes) else str(away.value).encode()
    return {
        "cause": away.cause,
        "handler": away.handler,
        **({} if away.whole else {"value": shown_key(value)}),
        "error": error_row(away.error),
        "since": round(away.since + epoch_s, 3),
        "for_s": round(max(0.0, at - away.since), 3),
        "waiting": ready if away.whole else away.aside,
        "failed": away.failed,
        "probe_s": away.probe_s,
        **({"exhausted": away.counts[0], "ended": away.counts[1]} if away.cause == "brake" else {}),
    }


def _spent(
    spent: Spent, handler: str, parts: Sequence[Part], at: float, epoch_s: float
) -> dict[str, Any]:
    """A budget that lets nothing start: why, until when, how many of a handler's records wait."""
    due = {} if spent.until is None else {
        "until": round(spent.until + epoch_s, 3), "due_in_s": round(max(0.0, spent.until - at), 3),
    }  # fmt: skip
    return {
        "cause": "budget",
        "handler": handler,
        "budget": spent.name,
        "why": spent.why,
        "per_s": spent.per_s,
        "in_flight": spent.in_flight_max,
        "share": round(spent.share, 4),
        "calls": spent.in_flight,
        "waiting": sum(part.places["budget"] for part in parts if part.handler.name == handler),
        "error": error_row(spent.error),
        **due,
    }


def _calls(handler: Handler, running: Sequence[Work], at: float, epoch_s: float) -> dict[str, Any]:
    """When calls take every slot: since when none has ended, and the oldest of them.

    Records wait, so a call that ends starts another: none has ended since the youngest started.
    """
    calls = _count(handler, running)
    if calls < handler.slots.concurrency:
        spec = handler.spec
        explicit = spec.batch is not None and spec.batch.ack == "explicit"
        return {"acknowledged": handler.slots.taken - calls} if explicit else {}
    begun = max(work.since for work in running)
    return {
        "calls": min(calls, handler.slots.concurrency),
        "concurrency": handler.slots.concurrency,
        "since": round(begun + epoch_s, 3),
        "for_s": round(max(0.0, at - begun), 3),
        "oldest": _oldest(handler, running, at, epoch_s, "running"),
    }


def _none_begins(
    handler: Handler, waiting: Sequence[Work], at: float, epoch_s: float
) -> dict[str, Any] | None:
    """The row if calls were granted a while ago and none has started; None if it is too early."""
    oldest = _oldest(handler, waiting, at, epoch_s, "not_begun")
    if oldest["for_s"] < OPENS_S:
        return None
    return {
        "cause": "not_begun",
        "handler": handler.name,
        "calls": _count(handler, waiting),
        "for_s": oldest["for_s"],
        "oldest": oldest,
    }


def _count(handler: Handler, works: Sequence[Work]) -> int:
    """How many calls these records are in."""
    batched = handler.spec.batch is not None
    return len({id(work.call) for work in works} if batched else works)


def _oldest(
    handler: Handler, works: Sequence[Work], at: float, epoch_s: float, place: str
) -> dict[str, Any]:
    """The row of the call that was granted first."""
    oldest = min(
        works,
        key=lambda work: (
            work.since, work.partition.topic, work.partition.number, work.record.offset,
        ),
    )  # fmt: skip
    return {
        "topic": oldest.partition.topic,
        "partition": oldest.partition.number,
        "offset": oldest.record.offset,
        "handler": handler.name,
        "place": place,
        **record_row(oldest, handler.spec, at, epoch_s),
    }


def unread_halt(partition: Unread, at: float) -> dict[str, Any]:
    """A partition that is not read, as a row of `halts`."""
    return {
        "cause": partition.place,
        "topic": partition.topic,
        "partition": partition.number,
        "for_s": round(max(0.0, at - partition.since), 3),
        "reason": partition.reason,
    }
