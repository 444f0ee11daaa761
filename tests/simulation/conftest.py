"""The seeds that once failed."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def regressions(name: str = "regressions.txt") -> list[int]:
    """Every seed that ever failed, kept for ever."""
    lines = (FOLDER / name).read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]
