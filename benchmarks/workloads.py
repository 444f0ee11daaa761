"""The workloads of the speed table and what each must reach (issue "The engine", section 8)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.topics import TopicSpec

#: Seconds by side: "bare-async", "bare-threads", "perkey-async", "perkey-threads", "java".
Seconds = Mapping[str, float]

HEADLINE_KEYS = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
_HEADLINE_RECORDS = 10_000
_SHORT_S = 5.0
_REPEATS_OF_SHORT = 3


@dataclass(frozen=True)
class Check:
    """One measured value beside what it must reach and what it should."""

    name: str
    value: float
    must: float | None
    goal: float | None
    lower_is_better: bool = False

    @property
    def passed(self) -> bool:
        """Whether the must is reached; a value without a must is information."""
        return self.must is None or self._reaches(self.must)

    @property
    def reached_goal(self) -> bool:
        """Whether the goal is reached too."""
        return self.goal is None or self._reaches(self.goal)

    def _reaches(self, bar: float) -> bool:
        return self.value <= bar if self.lower_is_better else self.value >= bar


@dataclass(frozen=True)
class Workload:
    """One topic, one handler, and the sides that run it."""

    group: str
    name: str
    topic: TopicSpec
    ordering: str
    handler: str
    concurrency: int
    kinds: tuple[str, ...] = ("async", "threads")
    bare: bool = True
    java: bool = True

    @property
    def lanes(self) -> int | None:
        """How many records can be handled at once because of the order; None: no limit."""
        if self.ordering == "unordered":
            return None
        return self.topic.keys if self.ordering == "key" else self.topic.partitions

    @property
    def repeats(self) -> int:
        """Short runs are repeated, their median counts."""
        return _REPEATS_OF_SHORT if self.expected_s < _SHORT_S else 1

    @property
    def expected_s(self) -> float:
        """Rough seconds of one ideal run."""
        mean_s = {"noop": 5e-6, "table": 2.5e-3}.get(self.handler) or float(self.handler) / 1000
        at_once = min(self.concurrency, self.lanes or self.concurrency)
        return self.topic.records * mean_s / (1 if self.handler == "noop" else at_once)

    def sides(self) -> Iterator[str]:
        """The runs in their order, the baselines next to what is compared with them."""
        for kind in self.kinds:
            if self.bare:
                yield f"bare-{kind}"
            yield f"perkey-{kind}"
        if self.java:
            yield "java"

    def checks(self, seconds: Seconds) -> list[Check]:
        """What this workload must reach, from the sides that ran to their end."""
        return list(_CHECKS[self.group](self, seconds))


def all_workloads(scale: float) -> list[Workload]:
    """The whole table with its record counts times `scale`."""
    return [_scaled(workload, scale) for workload in (*_headline(), *_RATES)]


def _headline() -> Iterator[Workload]:
    base = Workload(
        group="headline",
        name="",
        topic=TopicSpec(records=_HEADLINE_RECORDS, keys=10_000, partitions=1, value_bytes=100),
        ordering="key",
        handler="table",
        concurrency=100,
    )
    for keys in HEADLINE_KEYS:
        yield replace(base, name=f"headline-key-{keys}", topic=replace(base.topic, keys=keys))
    yield replace(base, name="headline-unordered", ordering="unordered")
    yield replace(base, name="headline-partition", ordering="partition")


_RATES = (
    Workload(
        group="noop",
        name="noop",
        topic=TopicSpec(records=1_000_000, keys=1_000, partitions=4, value_bytes=100),
        ordering="key",
        handler="noop",
        concurrency=100,
        bare=False,
    ),
    Workload(
        group="sleep10",
        name="sleep10",
        topic=TopicSpec(records=500_000, keys=1_000, partitions=8, value_bytes=100),
        ordering="key",
        handler="10",
        concurrency=1_000,
    ),
    Workload(
        group="wide",
        name="wide",
        topic=TopicSpec(records=1_000_000, keys=100_000, partitions=8, value_bytes=100),
        ordering="key",
        handler="10",
        concurrency=10_000,
        kinds=("async",),
    ),
)


def _scaled(workload: Workload, scale: float) -> Workload:
    records = max(1, int(workload.topic.records * scale))
    return replace(workload, topic=replace(workload.topic, records=records))


def _headline_checks(_workload: Workload, seconds: Seconds) -> Iterator[Check]:
    for kind, must in (("async", 1.10), ("threads", 1.15)):
        perkey, bare = seconds.get(f"perkey-{kind}"), seconds.get(f"bare-{kind}")
        if perkey and bare:
            yield Check(f"{kind} time of bare", perkey / bare, must, 1.05, lower_is_better=True)
    perkeys = [
        seconds[f"perkey-{kind}"] for kind in ("async", "threads") if f"perkey-{kind}" in seconds
    ]
    if perkeys and "java" in seconds:
        yield Check("better's time of Java", min(perkeys) / seconds["java"], 1.0, None, True)


def _noop_checks(_workload: Workload, seconds: Seconds) -> Iterator[Check]:
    for kind, must, goal in (("async", 4.0, 8.0), ("threads", 2.5, 5.0)):
        if f"perkey-{kind}" in seconds and "java" in seconds:
            yield Check(
                f"{kind} rate of Java", seconds["java"] / seconds[f"perkey-{kind}"], must, goal
            )


def _sleep10_checks(workload: Workload, seconds: Seconds) -> Iterator[Check]:
    if "perkey-async" not in seconds:
        return
    rate = workload.topic.records / seconds["perkey-async"]
    yield Check("async records/s", rate, 70_000, 85_000)
    if "java" in seconds:
        yield Check("async rate of Java", seconds["java"] / seconds["perkey-async"], 1.6, None)


def _wide_checks(workload: Workload, seconds: Seconds) -> Iterator[Check]:
    if "perkey-async" in seconds:
        rate = workload.topic.records / seconds["perkey-async"]
        yield Check("async records/s", rate, 100_000, 150_000)


_CHECKS = {
    "headline": _headline_checks,
    "noop": _noop_checks,
    "sleep10": _sleep10_checks,
    "wide": _wide_checks,
}
