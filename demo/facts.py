"""The results of the demo as data: summary.json, and the content of the report."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from demo.checks import Check, RunSeen
from demo.runs import CONCURRENCY, MEMBERS, Kill, rate_of
from demo.stage import LOCAL, PLAIN, SPARK
from demo.tracks import Fleet
from demo.witness import Answer
from perkey._version import __version__


@dataclass(slots=True)
class Found:
    """Everything that was seen."""

    fleet: Fleet
    answers: dict[str, list[Answer]]
    runs: dict[str, RunSeen]
    kill: Kill
    rows: Sequence[dict[str, Any]]
    checks: list[Check]
    seconds: float

    @property
    def ok(self) -> bool:
        """Every check holds."""
        return all(check.ok for check in self.checks)

    def rate(self, run: str) -> float:
        """Records per second of a run."""
        return rate_of(self.answers.get(run, ()))

    def total(self, name: str) -> int:
        """The checks of this name, over all runs."""
        return sum(check.found for check in self.checks if check.name == name)

    @property
    def back_after_s(self) -> float | None:
        """Seconds from the kill to the first call of a member that was not there before."""
        before = {one.member for one in self.answers[SPARK] if one.begin <= self.kill.at}
        later = [one.begin for one in self.answers[SPARK] if one.member not in before]
        return min(later) - self.kill.at if later else None

    @property
    def repeats(self) -> int:
        """Positions that were handled again, in both runs of Perkey."""
        return sum(seen.repeats for seen in self.runs.values())


def summary(found: Found) -> dict[str, Any]:
    """summary.json: rates in records per second, counts over both runs of Perkey."""
    plain = found.rate(PLAIN)
    back = found.back_after_s
    return {
        "ok": found.ok,
        "records": found.fleet.records,
        "vehicles": len(found.fleet.tracks),
        "lost": found.total("lost"),
        "order_breaks": found.total("order breaks"),
        "repeats": found.repeats,
        "unexplained_repeats": found.runs[LOCAL].repeats + found.total("unexplained repeats"),
        "dead_letters": found.total("dead letters"),
        "dead_letters_expected": len(found.fleet.no_fix) * len(found.runs),
        "alerts": found.total("alerts"),
        "alerts_expected": len(found.fleet.alerts) * len(found.runs),
        "vanilla_rate": round(plain, 1),
        "perkey_rate": round(found.rate(LOCAL), 1),
        "spark_rate": round(found.rate(SPARK), 1),
        "perkey_factor": round(found.rate(LOCAL) / plain, 1) if plain else None,
        "spark_factor": round(found.rate(SPARK) / plain, 1) if plain else None,
        "parquet_rows": len(found.rows),
        "parquet_expected": len(found.runs[SPARK].alerts),
        "killed_member_pid": found.kill.pid,
        "back_after_kill_s": None if back is None else round(back, 2),
        "concurrency": CONCURRENCY,
        "members": MEMBERS,
        "seconds": round(found.seconds, 1),
        "perkey": __version__,
        "python": platform.python_version(),
        "checks": [
            {"run": c.run, "name": c.name, "found": c.found, "wanted": c.wanted, "ok": c.ok}
            for c in found.checks
        ],
    }
