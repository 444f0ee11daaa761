"""The lines of `weft top`: handlers, their partitions, and the lanes that stand in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.account.snapshot import total
from weft.observe.overview import held, page_of
from weft.observe.sentences import seconds

Row = Mapping[str, Any]

COLUMNS = (
    "handler / partition / lane",
    "left", "beyond", "oldest", "run", "retry", "park", "a second", "p99",
)  # fmt: skip
#: what the columns run, retry and park show
RUNS = ("in_flight", "retrying", "parked")
NAME_CHARS = 30
PARTITIONS_MAX = 200


class Line(NamedTuple):
    """One line: what it is of, how deep it stands, its cells, and whether it is a bad one."""

    key: str
    depth: int
    cells: tuple[str, ...]
    bad: bool = False


class Wanted(NamedTuple):
    """What the viewer asked for."""

    order: str = "remaining"
    text: str = ""
    start: int = 0
    #: keys of lines whose inside is shown
    opened: frozenset[str] = frozenset()


def lines(view: Row, wanted: Wanted) -> tuple[list[Line], int]:
    """Handlers, under each those of the asked partitions that are its own; and how many there are.

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
    for handler in sorted(view["handlers"], key=lambda row: str(row["name"])):
        key = f"h {handler['name']}"
        own = [row for row in view["partitions"] if row["handler"] == handler["name"]]
        found.append(_handler(key, handler, own))
        if key in wanted.opened:
            continue  # closed: handlers are open until one closes them
        for row in listed["rows"]:
            if row["handler"] == handler["name"]:
                found += _partition(view, row, wanted.opened)
    return found, listed["of"]


def _handler(key: str, row: Row, own: Sequence[Row]) -> Line:
    ages = [part["oldest_age_s"] for part in own if part["oldest_age_s"] is not None]
    sums = [total(own, name) for name in ("remaining", "done_beyond")]
    sum_of = held(own)
    there = [sum_of[name] for name in RUNS]
    p99 = row["latency_ms"].get("p99")
    cells = (
        cut(str(row["name"])),
        *(number(one) for one in sums),
        age(max(ages, default=None)),
        *(number(one) for one in there),
        number(row["rate_per_s"]),
        "-" if p99 is None else f"{p99:,.0f} ms",
    )
    return Line(key, 0, cells, there[-1] > 0)


def _partition(view: Row, row: Row, opened: frozenset[str]) -> list[Line]:
    key = f"p {row['topic']}:{row['partition']}"
    name = f"{row['topic']}[{row['partition']}]"
    cells = (
        "  " + cut(name, NAME_CHARS - 2),
        number(row["remaining"]),
        number(row["done_beyond"]),
        age(row["oldest_age_s"]),
        *("-" if row["silent"] else number(row[one]) for one in RUNS),
        "paused" if row["paused"] else "",
        "silent" if row["silent"] else (row.get("place") or "").replace("_", " "),
    )
    found = [Line(key, 1, cells, row["parked"] > 0 or row["silent"] or bool(row.get("place")))]
    if key in opened:
        where = (row["topic"], row["partition"])
        lanes = [one for one in view["blockers"] if (one["topic"], one["partition"]) == where]
        found += [_lane(one) for one in lanes]
        if not lanes:
            found.append(Line(f"{key} none", 2, ("    no record holds it up", *[""] * 8)))
    return found


def _lane(row: Row) -> Line:
    key = "(no key)" if row["key"] is None else row["key"]
    name = f"    {row['offset']} {key}"
    cells = (
        cut(name, NAME_CHARS),
        number(row["waiting_behind"]),
        number(row["done_beyond"]),
        age(row["for_s"]),
        "", "", "",
        str(row["place"]),
        f"{row['attempts']} failed" if row["attempts"] else "",
    )  # fmt: skip
    bad = row["place"] in ("parked", "retrying")
    return Line(f"r {row['topic']}:{row['partition']}:{row['offset']}", 2, cells, bad)


def cut(text: str, most: int = NAME_CHARS) -> str:
    """The text in so many characters; of a long one the end stays, where the partition is."""
    return text if len(text) <= most else "…" + text[-(most - 1) :]


def number(value: float | None) -> str:
    """In few characters: 1,234 or 12.3M; a dash for what is not known."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def age(value: float | None) -> str:
    """A duration, or a dash."""
    return "-" if value is None else seconds(value)
