"""The lines of `perkey top`: handlers, partitions and blocked lanes; parked and held records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perkey.account.snapshot import total
from perkey.observe.overview import NOT_BAD, held, page_of, severity
from perkey.observe.sentences import percent, seconds

Row = Mapping[str, Any]

#: the columns after the name and their widths: with the name they fit into 80
COLUMNS = {
    "left": 8, "past": 6, "map": 6, "oldest": 7, "run": 5, "retry": 6, "park": 5, "rate/s": 10,
}  # fmt: skip
NAME = "handler / partition"
#: of a list of records
RECORD = "record"
LEFT = ("key", "error / by")
LIST_COLUMNS = {"key": 14, "error / by": 16, "failed": 7, "for": 8, "until": 8}
#: what the columns run, retry and park show
RUNS = ("in_flight", "retrying", "parked")
NAME_CHARS = 24
PARTITIONS_MAX = 200
HOURS_FROM_S = 10_000.0


class Line(NamedTuple):
    """One line: its key, its indentation, its cells, and whether to highlight it."""

    key: str
    depth: int
    cells: tuple[str, ...]
    bad: bool = False


class Wanted(NamedTuple):
    """What the viewer has selected."""

    order: str = "worst"
    text: str = ""
    start: int = 0
    #: keys of expanded lines
    opened: frozenset[str] = frozenset()
    #: width of the name column
    chars: int = NAME_CHARS


def lines(view: Row, wanted: Wanted) -> tuple[list[Line], int]:
    """Handlers with their selected partitions, and the number of partitions in all.

    At most PARTITIONS_MAX partitions from `start` on.
    """
    listed = page_of(
        view["partitions"],
        order=wanted.order,
        text=wanted.text,
        start=wanted.start,
        count=PARTITIONS_MAX,
    )
    found = []
    parts: dict[str, list[Row]] = {}
    for row in view["partitions"]:
        parts.setdefault(row["handler"], []).append(row)
    # Handlers with the worst partitions come first
    worst = {name: min(severity(row) for row in rows) for name, rows in parts.items()}
    handlers = sorted(view["handlers"], key=lambda row: row["name"])
    handlers.sort(key=lambda row: worst.get(row["name"], NOT_BAD))
    for handler in handlers:
        key, own = f"h {handler['name']}", parts.get(handler["name"], [])
        ages = [part["oldest_age_s"] for part in own if part["oldest_age_s"] is not None]
        sum_of = held(own)
        there = [sum_of[name] for name in RUNS]
        past = sum(part.get("past_map") or 0 for part in own)
        cells = (
            middle(str(handler["name"]), wanted.chars),
            number(total(own, "remaining")),
            number(past),
            percent(max(own, key=lambda part: part.get("map_used") or 0)) if own else "-",
            age(max(ages, default=None)),
            *(number(one) for one in there),
            number(handler["rate_per_s"]),
        )
        found.append(Line(key, 0, cells, there[-1] > 0 or past > 0))
        if key in wanted.opened:
            continue  # collapsed: for handlers, `opened` means closed
        for row in listed["rows"]:
            if row["handler"] == handler["name"]:
                found += _partition(view, row, wanted)
    return found, listed["of"]


def _partition(view: Row, row: Row, wanted: Wanted) -> list[Line]:
    key = f"p {row['topic']}:{row['partition']}"
    name = f"{row['topic']}[{row['partition']}]"
    state = "silent" if row["silent"] else (row.get("place") or "").replace("_", " ")
    cells = (
        "  " + middle(name, wanted.chars - 2),
        number(row["remaining"]),
        "-" if row["silent"] else number(row.get("past_map") or 0),
        percent(row),
        age(row["oldest_age_s"]),
        *("-" if row["silent"] else number(row[one]) for one in RUNS),
        state or ("paused" if row["paused"] else ""),
    )
    found = [Line(key, 1, cells, severity(row) < NOT_BAD)]
    if key in wanted.opened:
        where = (row["topic"], row["partition"])
        lanes = [one for one in view["blockers"] if (one["topic"], one["partition"]) == where]
        found += [_lane(one, wanted.chars) for one in lanes]
        if not lanes:
            empty = [""] * len(COLUMNS)
            found.append(Line(f"{key} none", 2, ("    no blocking record", *empty)))
    return found


def _lane(row: Row, chars: int) -> Line:
    key = "(no key)" if row["key"] is None else row["key"]
    cells = (
        middle(f"    {row['offset']} {key}", chars),
        number(row["waiting_behind"]),
        "",
        "",
        age(row["for_s"]),
        "",
        number(row["attempts"]) if row["attempts"] else "",
        "",
        str(row["place"]).replace("_", " "),
    )
    bad = row["place"] in ("parked", "retrying")
    return Line(f"r {row['topic']}:{row['partition']}:{row['offset']}", 2, cells, bad)


def listed(view: Row, name: str, chars: int) -> list[Line]:
    """Parked or held records, those that have waited longest first."""
    found = []
    for row in view[name]:
        error = row.get("last_error") or {}
        why = error.get("type", row.get("error_hash")) if name == "parked" else row.get("by")
        until = row.get("until")
        cells = (
            middle(f"{row['topic']}[{row['partition']}] {row['offset']}", chars),
            middle("(no key)" if row["key"] is None else row["key"], LIST_COLUMNS["key"] - 1),
            middle(why or "-", LIST_COLUMNS["error / by"] - 1),
            number(row["attempts"]),
            age(row["for_s"]),
            age(None if until is None else max(0.0, until - view["at"])),
        )
        found.append(Line(f"r {row['topic']}:{row['partition']}:{row['offset']}", 1, cells))
    return found


def middle(text: str, most: int) -> str:
    """The text in at most `most` characters; a long one is shortened in the middle."""
    if len(text) <= most:
        return text
    end = most * 2 // 3
    return text[: most - 1 - end] + "…" + text[len(text) - end :]


def number(value: float | None) -> str:
    """A short number, such as 1,234 or 12.3M; a dash if unknown."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def age(value: float | None) -> str:
    """A duration, or a dash if unknown."""
    if value is None:
        return "-"
    return seconds(value) if value < HOURS_FROM_S else f"{value / 3600:,.0f} h"
