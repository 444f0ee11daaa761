"""How long calls take, sampled: p50 and p99 of the latest ones, at no cost worth naming."""

from __future__ import annotations

from collections import deque

SAMPLES = 1024


class Latency:
    """The latest sampled durations of one handler's calls, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        #: append a duration here; appending to a bounded deque is atomic
        self.add = self._samples.append

    def samples(self, count_max: int = 128) -> list[float]:
        """Durations in seconds that stand for all that were sampled, in order."""
        ordered = sorted(self._samples)
        step = max(1, len(ordered) // count_max)
        return ordered[step // 2 :: step]

    def percentiles_ms(self) -> dict[str, float | None]:
        """`{"p50": …, "p99": …}` in milliseconds; None before the first call."""
        ordered = sorted(self._samples)
        if not ordered:
            return {"p50": None, "p99": None}
        last = len(ordered) - 1
        return {
            "p50": round(ordered[last // 2] * 1e3, 3),
            "p99": round(ordered[round(last * 0.99)] * 1e3, 3),
        }
