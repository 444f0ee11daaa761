"""Merge the snapshots of a group's members into one view, for the page and `perkey top`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perkey.account.blockers import LISTED_MAX
from perkey.account.snapshot import NOT_LISTED, is_away, total, with_left_out

Row = Mapping[str, Any]

BLOCKERS_MAX = 20
FAILURES_MAX = 50
#: counts of a handler that are summed over members
SUMMED = (
    "rate_per_s", "done", "failures", "retries", "dead_lettered", "skipped", "parked",
    "superseded", "overdue", "in_flight", "concurrency",
)  # fmt: skip
#: of these, current values (not counts since the start)
NOW = {"rate_per_s", "overdue", "in_flight", "concurrency"}
_FAILURE_COUNTS = ("attempts", "parked", "dead_lettered", "skipped")


def overview(shots: Sequence[Row]) -> dict[str, Any]:
    """One view of these members; those with `silent_s` are silent."""
    parts = partitions(shots)
    speaking = [shot for shot in shots if not shot.get("silent_s")]
    return {
        "at": max((shot["at"] for shot in shots), default=0.0),
        "group": ", ".join(sorted({_app(shot, "group") for shot in shots})),
        "totals": totals(shots, parts),
        "members": [member_row(shot) for shot in shots],
        "handlers": handlers(shots),
        "partitions": parts,
        "blockers": blockers(shots, parts),
        **waiting(speaking, parts),
        "failures": failures(shots),
        "halts": [
            {**halt, "member": _app(shot, "member")}
            for shot in speaking
            for halt in shot.get("halts", ())
        ],
    }


def _app(shot: Row, field: str) -> Any:
    return shot.get("app", {}).get(field, "")


def totals(shots: Sequence[Row], parts: Sequence[Row]) -> dict[str, Any]:
    """Sums over the whole group."""
    left = ("remaining", "lag", "done_beyond")
    unknown = not parts and any(is_away(shot) for shot in shots if not shot.get("silent_s"))
    ages = [part["oldest_age_s"] for part in parts if part["oldest_age_s"] is not None]
    return {
        **{name: None if unknown else total(parts, name) for name in left},
        "unread": sum(bool(part.get("place")) for part in parts),
        **held(parts),
        "on_hold": sum(part["places"].get("on_hold", 0) for part in parts if not part["silent"]),
        "remaining_is_bound": any(part["remaining_is_bound"] for part in parts),
        "oldest_age_s": max(ages, default=None),
        "rate_per_s": round(sum(_rate(shot) for shot in shots), 1),
        "done": int(_over_handlers(shots, "done")),
        "failures": int(_over_handlers(shots, "failures")),
        "members": sum(not shot.get("silent_s") for shot in shots),
        "partitions": len(parts),
    }


#: what a member holds in memory: not counted for a silent member
HELD = ("buffered", "in_flight", "retrying", "parked")


def held(parts: Iterable[Row]) -> dict[str, int]:
    """Sums over members that are not silent."""
    reported = [part for part in parts if not part["silent"]]
    return {name: sum(part[name] for part in reported) for name in HELD}


def _over_handlers(shots: Sequence[Row], name: str) -> float:
    return float(sum(row.get(name, 0) for shot in shots for row in shot["handlers"].values()))


def _rate(shot: Row) -> float:
    """Records per second; 0 for a silent member."""
    return 0.0 if shot.get("silent_s") else _over_handlers([shot], "rate_per_s")


def member_row(shot: Row) -> dict[str, Any]:
    """One member with its sums; None for a silent one, as others may own its partitions now."""
    about = {name: _app(shot, name) for name in ("member", "host", "pid", "started_at", "version")}
    sums: dict[str, float | None] = dict.fromkeys(SUMS)
    if not shot.get("silent_s"):
        rows = shot["partitions"]
        left = None if not rows and is_away(shot) else total(rows, "remaining")
        found = (len(rows), left, total(rows, "in_flight"), round(_rate(shot), 1))
        sums = dict(zip(SUMS, found, strict=True))
    return {
        **about,
        "state": shot["state"],
        "silent_s": shot.get("silent_s"),
        "at": shot["at"],
        **sums,
    }


#: sums of a member
SUMS = ("partitions", "remaining", "in_flight", "rate_per_s")


def partitions(shots: Sequence[Row]) -> list[dict[str, Any]]:
    """Every partition once, with its member; a silent member's only if no other owns it."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for shot in sorted(shots, key=lambda shot: shot.get("silent_s") or 0.0, reverse=True):
        for part in shot["partitions"]:
            row = {**part, "member": _app(shot, "member"), "silent": bool(shot.get("silent_s"))}
            found[part["topic"], part["partition"]] = row
    return list(found.values())


def handlers(shots: Sequence[Row]) -> list[dict[str, Any]]:
    """Every handler with its sums; latencies are the slowest member's.

    A silent member's finished records count; its running calls do not.
    """
    merged: dict[str, dict[str, Any]] = {}
    for shot in shots:
        silent = bool(shot.get("silent_s"))
        for name, row in shot["handlers"].items():
            into = merged.setdefault(
                name, {"name": name, "latency_ms": {}, "ordering": row.get("ordering")}
            )
            for count in SUMMED:
                gone = silent and count in NOW
                into[count] = into.get(count, 0) + (0 if gone else row.get(count, 0))
            if silent:
                continue
            for quantile, value in (row.get("latency_ms") or {}).items():
                known = [v for v in (into["latency_ms"].get(quantile), value) if v is not None]
                into["latency_ms"][quantile] = max(known, default=None)
    return list(merged.values())


def blockers(shots: Sequence[Row], parts: Sequence[Row]) -> list[dict[str, Any]]:
    """The worst records of all members."""
    return sorted(_of_owners(shots, parts, "blockers"), key=most_blocking)[:BLOCKERS_MAX]


def waiting(shots: Sequence[Row], parts: Sequence[Row]) -> dict[str, Any]:
    """The parked and the held records of all members, and how many more there are."""
    listed = {
        name: sorted(_of_owners(shots, parts, name), key=longest_first)[:LISTED_MAX]
        for name in NOT_LISTED
    }
    return with_left_out(listed, [part for part in parts if not part["silent"]])


def _of_owners(shots: Sequence[Row], parts: Sequence[Row], name: str) -> list[dict[str, Any]]:
    """Rows of records, as reported by the current owner of their partition."""
    holder = {(part["topic"], part["partition"]): part["member"] for part in parts}
    return [
        {**row, "member": member}
        for shot in shots
        for row in shot.get(name, ())
        if holder.get((row["topic"], row["partition"])) == (member := _app(shot, "member"))
    ]


def most_blocking(row: Row) -> tuple[Any, ...]:
    """Sort key: what blocks most, then what has blocked longest, then by name."""
    blocked = row["waiting_behind"] + row["done_beyond"]
    return -blocked, row["since"] or 0, row["topic"], row["partition"], row["offset"]


def longest_first(row: Row) -> tuple[Any, ...]:
    """Sort key of parked and held records; those whose time is unknown come first."""
    return row["since"] or 0, row["topic"], row["partition"], row["offset"]


def failures(shots: Iterable[Row]) -> list[dict[str, Any]]:
    """By handler and type over all members, the latest first, with the latest example."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for shot in shots:
        for row in shot.get("failures", ()):
            kind = (row["handler"], row["type"])
            one = dict(row)
            if (other := merged.get(kind)) is not None:
                later = max(other, row, key=lambda row: row["last_at"])
                counts = {name: other[name] + row[name] for name in _FAILURE_COUNTS}
                one = {**later, **counts, "first_at": min(other["first_at"], row["first_at"])}
            merged[kind] = one
    return sorted(merged.values(), key=lambda row: -row["last_at"])[:FAILURES_MAX]


def most_left(row: Row) -> tuple[bool, int]:
    """Sort key by remaining records, the most first; unknown counts come before all."""
    return row["remaining"] is not None, -(row["remaining"] or 0)


#: from this `severity` on a partition needs no separate line
NOT_BAD = 6
#: a commit that has not moved for this long, at an unchanged frontier, is stuck
STUCK_S = 10.0


def severity(row: Row) -> int:
    """How bad a partition's state is: 0 means that no member reads it, NOT_BAD and more healthy."""
    if row.get("silent") or row.get("place"):
        return 0
    if row.get("past_map"):
        return 1
    calls = row["in_flight"] or row["places"].get("not_begun")
    waits = (row.get("committed_for_s") or 0.0) >= STUCK_S and bool(calls)
    signs = (
        row["parked"],
        row["retrying"],
        waits and row["committed"] in (-1, row["frontier"]),
        not {"user", "command"}.isdisjoint(row.get("paused_by", ())),
    )
    return next((2 + at for at, sign in enumerate(signs) if sign), NOT_BAD)


def worst_first(row: Row) -> tuple[Any, ...]:
    """The sort key of `perkey status` and `perkey top`."""
    left = row["remaining"]
    return severity(row), left is not None, -(left or 0), row["topic"], row["partition"]


#: orders of a list of partitions -> sort key, the most urgent first
ORDERS: dict[str, Any] = {
    "worst": worst_first,
    "remaining": most_left,
    "oldest": lambda row: -(row["oldest_age_s"] or 0),
    "done_beyond": lambda row: -row["done_beyond"],
    "map": lambda row: -row["map_chars"],
    "name": lambda row: (row["topic"], row["partition"]),
}


def page_of(
    rows: Sequence[Row],
    *,
    order: str = "remaining",
    text: str = "",
    start: int = 0,
    count: int = 50,
) -> dict[str, Any]:
    """One page of the partitions whose topic, `topic:partition` or member contains the text."""
    if text:
        rows = [
            row
            for row in rows
            if text in f"{row['topic']}:{row['partition']}" or text in str(row["member"])
        ]
    start = max(0, min(start, (len(rows) - 1) // count * count if rows else 0))
    ordered = sorted(rows, key=lambda row: (ORDERS[order](row), row["topic"], row["partition"]))
    return {"rows": ordered[start : start + count], "start": start, "of": len(rows)}
