"""Durations: counted in Prometheus buckets, with a sample of the latest."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

#: seconds; from a no-op call to calls that need attention
CALL_S = (
    *(0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300),
)
AGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 86400)


class Histogram:
    """Counts by upper bound. Not thread-safe."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def observe_all(self, seconds: Iterable[float]) -> None:
        """Count many: one search per bound, not one per value."""
        ordered, counted = sorted(seconds), 0
        for place, bound in enumerate(self._bounds):
            upto = bisect_right(ordered, bound, counted)
            self._counts[place] += upto - counted
            counted = upto
        self._counts[-1] += len(ordered) - counted
        self._sum += sum(ordered)

    def row(self) -> dict[str, Any]:
        """`{"le": bounds, "counts": per bucket, the last one above all bounds, "sum"}`."""
        return {"le": list(self._bounds), "counts": list(self._counts), "sum": round(self._sum, 6)}


def summed(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Any:
    """The sum of two rows with the same bounds; None if both are None."""
    if one is None or other is None:
        return one or other
    counts = [a + b for a, b in zip(one["counts"], other["counts"], strict=True)]
    return {"le": one["le"], "counts": counts, "sum": round(one["sum"] + other["sum"], 6)}


SAMPLES = 1024
#: samples kept between two looks (ten per second): a sample of ten thousand per second is as good
#: as all of them
FRESH_MAX = 1024
#: the same for ages and waits, which cost more to compute
AGES_MAX = 256


class Latency:
    """The latest sampled durations of one handler's calls, in seconds."""

    def __init__(self, bounds: tuple[float, ...] = CALL_S, fresh_max: int = FRESH_MAX) -> None:
        #: samples since the last look
        self.fresh: deque[float] = deque(maxlen=fresh_max)
        #: append a duration here; appending to a bounded deque is atomic
        self.add = self.fresh.append
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._histogram = Histogram(bounds)
        self._folding = threading.Lock()

    @property
    def enough(self) -> bool:
        """Whether the sample for the next look is full."""
        return len(self.fresh) == self.fresh.maxlen

    def fold(self) -> int:
        """Count the samples since the last call; returns how many. Never on the calls' path."""
        if not self.fresh:
            return 0
        with self._folding:
            take_one = self.fresh.popleft
            fresh = [take_one() for _ in range(len(self.fresh))]
            self._samples.extend(fresh)
            self._histogram.observe_all(fresh)
            return len(fresh)

    def buckets(self) -> dict[str, Any]:
        """All samples as a histogram."""
        self.fold()
        return self._histogram.row()

    def samples(self, count_max: int = 128) -> list[float]:
        """Sorted durations in seconds that represent all samples."""
        self.fold()
        ordered = sorted(self._samples)
        step = max(1, len(ordered) // count_max)
        return ordered[step // 2 :: step]

    def percentiles_ms(self) -> dict[str, float | None]:
        """`{"p50": …, "p99": …}` in milliseconds; None before the first call."""
        self.fold()
        ordered = sorted(self._samples)
        if not ordered:
            return {"p50": None, "p99": None}
        last = len(ordered) - 1
        return {
            "p50": round(ordered[last // 2] * 1e3, 3),
            "p99": round(ordered[round(last * 0.99)] * 1e3, 3),
        }
