"""The lane of the long seeds, and the seeds that once failed."""

from __future__ import annotations

from pathlib import Path

import pytest

REGRESSIONS = Path(__file__).with_name("regressions.txt")


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker of this folder."""
    config.addinivalue_line("markers", "push: takes a minute; not in `make test-fast`")


def regressions() -> list[int]:
    """Every seed that ever failed, kept for ever."""
    lines = REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]
