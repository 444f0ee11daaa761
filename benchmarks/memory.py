"""The memory workload: ten million records through one member, resident memory sampled."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import sides
from benchmarks.topics import TopicSpec
from benchmarks.workloads import Check, Workload

BUFFER_BYTES = 128 * 2**20
_ALLOWANCE_BYTES = 150 * 10**6
_GROWTH_MAX = 1.05
_MB = 10**6
_RECORDS = 10_000_000
_LIMIT_S = 600

#: (records handled, resident bytes), in time order.
Samples = Sequence[tuple[int, int]]


def workload(scale: float) -> Workload:
    """Ten million records of 100 B through a no-op async handler with Perkey's defaults."""
    return Workload(
        group="memory",
        name="memory",
        topic=TopicSpec(
            records=max(1, int(_RECORDS * scale)),
            keys=1_000,
            partitions=4,
            value_bytes=100,
        ),
        ordering="key",
        handler="noop",
        concurrency=100,
        kinds=("async",),
        bare=False,
        java=False,
    )


def run(work: Workload, bootstrap: str, topic: str) -> dict[str, Any]:
    """Run Perkey with its memory sampled; raises SideError."""
    spec = {**sides.app_spec(work, "async", bootstrap, topic), "sample_memory": True}
    return sides.run_app(spec, _LIMIT_S)


def checks(records: int, samples: Samples) -> list[Check]:
    """Growth from the second tenth of the records to the last, and the highest point of all."""
    second, last = _tenth(samples, records, 1), _tenth(samples, records, 9)
    limit_mb = (BUFFER_BYTES + _ALLOWANCE_BYTES) / _MB
    highest_mb = max(rss for _, rss in samples) / _MB
    found = [Check("highest MB", highest_mb, limit_mb, None, lower_is_better=True)]
    if second and last:
        growth = statistics.median(last) / statistics.median(second)
        found.append(Check("last tenth of second", growth, _GROWTH_MAX, None, True))
    return found


def tenths_mb(records: int, samples: Samples) -> list[float | None]:
    """Median resident MB of each tenth of the records: a leak is a slope, a high mark a step."""
    tenths = [_tenth(samples, records, index) for index in range(10)]
    return [round(statistics.median(tenth) / _MB, 1) if tenth else None for tenth in tenths]


def _tenth(samples: Samples, records: int, index: int) -> list[int]:
    low, high = records * index / 10, records * (index + 1) / 10
    return [rss for handled, rss in samples if low <= handled < high]
