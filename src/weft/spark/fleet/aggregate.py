"""Many members' snapshots as one, with the names of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def merged(
    state: str, shots: Mapping[int, Mapping[str, Any]], members: Sequence[Mapping[str, Any]]
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
        "state": state_of(state, [str(one["shot"]["state"]) for one in ordered]),
        "partitions": partitions,
        "handlers": _handlers(ordered),
        "counts": counts,
        "callback_errors": sum(one["shot"].get("callback_errors", 0) for one in ordered),
        "poll_gap_max_s": max((one["shot"].get("poll_gap_max_s", 0) for one in ordered), default=0),
        "members": list(members),
    }


def state_of(state: str, members: Sequence[str]) -> str:
    """One word for the fleet: its own, or while it runs what most says of its members."""
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
            total = rows.setdefault(name, {**row, **dict.fromkeys(_SUMMED, 0)})
            for field in _SUMMED:
                total[field] += row.get(field, 0)
            samples.setdefault(name, []).extend(one["latencies"].get(name, ()))
    for name, row in rows.items():
        row["rate_per_s"] = round(row["rate_per_s"], 1)
        row["latency_ms"] = percentiles_ms(samples[name])
    return rows


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """p50 and p99 of what the members sampled."""
    if not seconds:
        return {"p50": None, "p99": None}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "p50": round(ordered[last // 2] * 1e3, 3),
        "p99": round(ordered[round(last * 0.99)] * 1e3, 3),
    }
