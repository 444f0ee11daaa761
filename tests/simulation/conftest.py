"""The seeds that once failed."""

from __future__ import annotations

from pathlib import Path

REGRESSIONS = Path(__file__).with_name("regressions.txt")


def regressions() -> list[int]:
    """Every seed that ever failed, kept for ever."""
    lines = REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]
