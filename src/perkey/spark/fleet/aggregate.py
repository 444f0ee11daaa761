"""Many members' snapshots merged into one, with the field names of the contract."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

from perkey.account.blockers import BLOCKERS_MAX, LISTED_MAX
from perkey.account.snapshot import NOT_LISTED, with_left_out
from perkey.observe.overview import NOW, failures, longest_first, most_blocking
from perkey.runtime.histogram import summed
from perkey.types import TopicPartition

#: counts of a handler that add up over members
_SUMMED = (
    "done",
    "failures",
    "retries",
    "dead_lettered",
    "skipped",
    "parked",
    "superseded",
    "overdue",
    "in_flight",
    "concurrency",
    "rate_per_s",
)

#: histograms of a handler
_BUCKETS = ("latency_buckets", "age_buckets", "wait_buckets")


def merged(
    state: str,
    shots: Mapping[int, Mapping[str, Any]],
    members: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """One snapshot of the fleet; `shots` are the members' answers by member."""
    ordered = [shots[index] for index in sorted(shots)]
    partitions = [
        {**row, "member": index}
        for index in sorted(shots)
        for row in shots[index]["shot"]["partitions"]
    ]
    partitions.sort(key=lambda row: (row["topic"], row["partition"]))
    counts: dict[str, int] = {}
    for one in ordered:
        for name, count in one["shot"].get("counts", {}).items():
            counts[name] = counts.get(name, 0) + count
    return {
        "at": round(time.time(), 3),
        "app": dict(about),
        "state": state_of(state, [str(one["shot"]["state"]) for one in ordered]),
        "partitions": partitions,
        "handlers": _handlers(ordered),
        "blockers": sorted(_of_each(shots, "blockers"), key=most_blocking)[:BLOCKERS_MAX],
        **with_left_out(
            {
                name: sorted(_of_each(shots, name), key=longest_first)[:LISTED_MAX]
                for name in NOT_LISTED
            },
            partitions,
        ),
        "halts": _of_each(shots, "halts"),
        "holds": sorted({hold for one in ordered for hold in one["shot"].get("holds", ())}),
        "counts": counts,
        "failures": failures([one["shot"] for one in ordered]),
        "commit_buckets": reduce(
            summed, (one["shot"].get("commit_buckets") for one in ordered), None
        ),
        "callback_errors": sum(one["shot"].get("callback_errors", 0) for one in ordered),
        **{
            gap: max((one["shot"].get(gap, 0) for one in ordered), default=0)
            for gap in ("poll_gap_max_s", "poll_gap_recent_s")
        },
        "members": list(members),
    }


def owned(
    message: Mapping[str, Any], mine: Collection[TopicPartition], *, lost: bool
) -> dict[str, Any]:
    """A member's answer with only the partitions that it owns; a lost member does nothing now."""
    shot = message["shot"]

    def is_mine(row: Mapping[str, Any]) -> bool:
        return (row["topic"], row["partition"]) in mine

    shot = {
        **shot,
        "partitions": [row for row in shot["partitions"] if is_mine(row)],
        **{
            name: [row for row in shot.get(name, ()) if is_mine(row)]
            for name in ("blockers", *NOT_LISTED)
        },
        "halts": [row for row in shot.get("halts", ()) if "partition" not in row or is_mine(row)],
    }
    if lost:
        still = {
            name: {**row, **dict.fromkeys(NOW & row.keys(), 0)}
            for name, row in shot["handlers"].items()
        }
        silent = [{**row, "silent": True} for row in shot["partitions"]]
        shot |= {"handlers": still, "halts": [], "holds": [], "partitions": silent}
    return {**message, "shot": shot}


def _of_each(shots: Mapping[int, Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The rows of all members, each with its member."""
    return [
        {**row, "member": index}
        for index in sorted(shots)
        for row in shots[index]["shot"].get(name, ())
    ]


def state_of(state: str, members: Sequence[str]) -> str:
    """One state for the fleet: its own, or while it runs the most informative of its members."""
    if state != "running" or not members:
        return state
    for word in ("running", "paused", "waiting"):
        if word in members:
            return word
    return members[0]


def _handlers(shots: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    samples: dict[str, list[float]] = {}
    for one in shots:
        for name, row in one["shot"]["handlers"].items():
            empty = {**row, **dict.fromkeys(_SUMMED, 0), **dict.fromkeys(_BUCKETS)}
            total = rows.setdefault(name, empty)
            for field in _SUMMED:
                total[field] += row.get(field, 0)
            for field in _BUCKETS:
                total[field] = summed(total[field], row.get(field))
            samples.setdefault(name, []).extend(one["latencies"].get(name, ()))
    for name, row in rows.items():
        row["rate_per_s"] = round(row["rate_per_s"], 1)
        row["latency_ms"] = percentiles_ms(samples[name])
    return rows


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """p50 and p99 of the members' samples."""
    if not seconds:
        return {"p50": None, "p99": None}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    p50, p99 = ordered[last // 2], ordered[round(last * 0.99)]
    return {"p50": round(p50 * 1e3, 3), "p99": round(p99 * 1e3, 3)}
