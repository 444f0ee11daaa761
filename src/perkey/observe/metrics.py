"""A snapshot as Prometheus metrics, named by Prometheus conventions, with bounded labels.

Labels are the user's names (group, handler, topic), partition numbers and at most 50 error types;
never a key, an error text or anything else that comes with records. Counters restart with each
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perkey.reasons import HALTS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Row = Mapping[str, Any]

STATES = ("starting", "waiting", "running", "paused", "stopping", "leaving", "ended", "failed")
#: name -> (help, field of a partition's row)
OF_PARTITION = {
    "perkey_remaining_records": (
        "Records not done, excluding those done beyond the frontier",
        "remaining",
    ),
    "perkey_lag_records": ("End of the log minus the frontier", "lag"),
    "perkey_frontier_offset": ("Lowest offset that is not done", "frontier"),
    "perkey_committed_offset": ("Committed offset, -1 before the first commit", "committed"),
    "perkey_log_end_offset": ("One past the last record of the log", "end"),
    "perkey_done_beyond_records": ("Records done past the frontier", "done_beyond"),
    "perkey_oldest_age_seconds": ("Age of the oldest record not done", "oldest_age_s"),
    "perkey_commit_standing_seconds": (
        "How long the committed offset has not changed",
        "committed_for_s",
    ),
    "perkey_map_characters": ("Size of the offset map", "map_chars"),
    "perkey_map_used_ratio": (
        "Size of the offset map, as a share of the characters in which records start",
        "map_used",
    ),
    "perkey_past_map_records": ("Keys whose next record waits for room in the map", "past_map"),
    "perkey_buffered_records": ("Records held in memory that are not done", "buffered"),
    "perkey_partition_paused": ("1 while the partition is paused", "paused"),
    "perkey_partition_unread_seconds": (
        "How long the partition has been assigned but not read; absent while it is read",
        "place_for_s",
    ),
}
#: name -> (help, field of a handler's row, further labels): counters
COUNTED = {
    "perkey_failed_attempts": ("Attempts that failed", "failures"),
    "perkey_retries": ("Retries scheduled", "retries"),
    "perkey_superseded_calls": ("Calls whose partition was revoked first", "superseded"),
    "perkey_ledger_repeats": ("Repeats that the ledger detected", "repeats"),
}
OUTCOMES = {
    "done": "done",
    "dead_lettered": "dead_lettered",
    "skipped": "skipped",
    "parked": "parked",
}
#: gauges of a handler
OF_HANDLER = {
    "perkey_calls_in_flight": ("Concurrency slots in use", "in_flight"),
    "perkey_calls_max": ("Concurrency slots of the handler", "concurrency"),
    "perkey_calls_overdue": ("Calls past their timeout_s that cannot be cancelled", "overdue"),
}
#: histograms of a handler
TIMED = {
    "perkey_handler_seconds": ("Time of a call, sampled", "latency_buckets"),
    "perkey_lane_wait_seconds": (
        "Time from a record's arrival to its first call, sampled",
        "wait_buckets",
    ),
    "perkey_completion_age_seconds": ("Age of a record when it is done, sampled", "age_buckets"),
}
#: counts of the engine that are metrics under separate names
ENGINE = {
    "perkey_commits_refused": ("Commits that the broker refused", "commits_refused"),
    "perkey_commits_in_doubt": ("Commits without a response in time", "commits_in_doubt"),
    "perkey_late_completions": ("Completions of ended assignments, dropped", "late_completions"),
    "perkey_late_commit_answers": (
        "Responses to commits that had timed out",
        "late_commit_answers",
    ),
    "perkey_riders_cut": (
        "Times that commits lost room for the attempts of all failing records",
        "riders_cut",
    ),
    "perkey_on_exhausted_failed": (
        "Records parked since the function on_exhausted= raised or returned no outcome",
        "on_exhausted_failed",
    ),
    "perkey_not_now": ("Records that their handler postponed with NotNow", "not_now"),
    "perkey_outages": ("Times that hold= made records wait for a probe", "outages"),
    "perkey_budget_waits": (
        "Times that a service asked the handlers of a budget= to wait",
        "budget_waits",
    ),
    "perkey_brakes": ("Times that brake= made records wait for a probe", "brakes"),
    "perkey_partitions_revoked": ("Partitions revoked", "partitions_revoked"),
    "perkey_partitions_lost": ("Partitions lost without notice", "partitions_lost"),
    "perkey_partitions_refetched": (
        "Partitions not fetched for 30 s although their log grew: fetch restarted",
        "partitions_refetched",
    ),
}
#: times between two polls
GAPS = {
    "perkey_poll_gap_max_seconds": (
        "Longest time between two polls since the start",
        "poll_gap_max_s",
    ),
    "perkey_poll_gap_recent_seconds": (
        "The same for the last minutes, including the current one",
        "poll_gap_recent_s",
    ),
}


class SnapshotCollector:
    """Collects from one snapshot for each scrape."""

    def __init__(self, snapshot: Callable[[], Row]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Every metric family, also those without a sample."""
        shot = self._snapshot()
        group = str(shot.get("app", {}).get("group", ""))
        yield from _of_run(shot, group)
        yield from _of_partitions(shot, group)
        yield from _of_handlers(shot, group)


def _of_run(shot: Row, group: str) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    state = GaugeMetricFamily(
        "perkey_state", "1 for the state of the run", labels=["group", "state"]
    )
    for name in STATES:
        state.add_metric([group, name], float(shot["state"] == name))
    yield state
    halted = GaugeMetricFamily(
        "perkey_halted", "1 while this cause blocks records", labels=["group", "cause"]
    )
    causes = {halt["cause"] for halt in shot.get("halts", ())}
    for cause in HALTS:
        halted.add_metric([group, cause.name], float(cause.name in causes))
    yield halted
    if "members" in shot:
        members = GaugeMetricFamily(
            "perkey_fleet_members", "Members of a fleet: up, away, ended", labels=["group", "state"]
        )
        states = Counter(one["state"] for one in shot["members"])
        for name in ("up", "away", "ended"):
            members.add_metric([group, name], states[name])
        yield members
    for name, (text, field) in ENGINE.items():
        counter = CounterMetricFamily(name, text, labels=["group"])
        counter.add_metric([group], shot.get("counts", {}).get(field, 0))
        yield counter
    errors = CounterMetricFamily(
        "perkey_callback_errors", "Exceptions raised by callbacks", labels=["group"]
    )
    errors.add_metric([group], shot.get("callback_errors", 0))
    yield errors
    for name, (text, field) in GAPS.items():
        gap = GaugeMetricFamily(name, text, labels=["group"])
        gap.add_metric([group], shot.get(field, 0.0))
        yield gap
    letters = CounterMetricFamily(
        "perkey_dead_letters",
        "Records dead-lettered, by type of error",
        labels=["group", "handler", "type"],
    )
    for row in shot.get("failures", ()):
        if row["dead_lettered"]:
            letters.add_metric([group, row["handler"], row["type"]], row["dead_lettered"])
    yield letters
    yield _histogram(
        "perkey_commit_seconds",
        "Time of a commit or transaction",
        ["group"],
        {(group,): shot.get("commit_buckets")},
    )


def _of_partitions(shot: Row, group: str) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    rows = shot["partitions"]
    labels = ["group", "topic", "partition"]
    for name, (text, field) in OF_PARTITION.items():
        gauge = GaugeMetricFamily(name, text, labels=labels)
        for row in rows:
            if (value := row.get(field)) is not None:
                gauge.add_metric([group, row["topic"], str(row["partition"])], float(value))
        yield gauge
    places: dict[tuple[str, str], int] = {}
    for row in rows:
        for place, count in row["places"].items():
            where = (str(row["handler"]), place)
            places[where] = places.get(where, 0) + count
    gauge = GaugeMetricFamily(
        "perkey_records", "Records held, by place", labels=["group", "handler", "place"]
    )
    for (handler, place), count in places.items():
        gauge.add_metric([group, handler, place], count)
    yield gauge


def _of_handlers(shot: Row, group: str) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    rows: Mapping[str, Row] = shot["handlers"]
    outcomes = CounterMetricFamily(
        "perkey_records_finished",
        "Records by outcome",
        labels=["group", "handler", "outcome"],
    )
    for handler, row in rows.items():
        for outcome, field in OUTCOMES.items():
            outcomes.add_metric([group, handler, outcome], row.get(field, 0))
    yield outcomes
    kinds = ((COUNTED, CounterMetricFamily), (OF_HANDLER, GaugeMetricFamily))
    for table, family in kinds:
        for name, (text, field) in table.items():
            metric = family(name, text, labels=["group", "handler"])
            for handler, row in rows.items():
                metric.add_metric([group, handler], row.get(field, 0))
            yield metric
    for name, (text, field) in TIMED.items():
        each: dict[tuple[str, ...], Row | None] = {
            (group, handler): row.get(field) for handler, row in rows.items()
        }
        yield _histogram(name, text, ["group", "handler"], each)


def _histogram(
    name: str, text: str, labels: list[str], each: Mapping[tuple[str, ...], Row | None]
) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for values, row in each.items():
        if row is not None:
            total, buckets = 0, []
            for bound, count in zip([*row["le"], "+Inf"], row["counts"], strict=True):
                total += count
                buckets.append((str(bound), float(total)))
            family.add_metric(list(values), buckets, row["sum"])
    return family


def exposed(snapshot: Callable[[], Row]) -> bytes:
    """The text that Prometheus scrapes."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    return generate_latest(registry)


def names() -> set[str]:
    """Every metric's name as queries have it: counters end in _total, histograms in _bucket."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    empty = {"state": "starting", "partitions": [], "handlers": {}}
    found: set[str] = set()
    for family in SnapshotCollector(lambda: empty).collect():
        if isinstance(family, CounterMetricFamily):
            found.add(f"{family.name}_total")
        elif isinstance(family, HistogramMetricFamily):
            found |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
        else:
            found.add(family.name)
    return found
