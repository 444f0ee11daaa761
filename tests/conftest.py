"""What every test shares: which lane it belongs to, and when its turn comes.

`make test` deals the tests out to two workers one by one in the order given here: first those
that start processes or Spark, being the longest. Each worker has brokers of its own.
Groups of tests for one worker are not to be had: xdist 3.8 writes `xdist_group` into an attribute
that pytest 9.2 does not read any more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
INTEGRATION = TESTS / "integration"
#: Folders and files of the longest tests.
HEAVY = tuple(
    INTEGRATION / name for name in ("spark", "test_demo.py", "processes", "delivery", "workers")
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the lanes; the longest come first."""
    for item in items:
        if INTEGRATION in item.path.parents or "kafka_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
        if INTEGRATION / "spark" in item.path.parents:
            item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: not _heavy(item.path))


def _heavy(path: Path) -> bool:
    return any(path == place or place in path.parents for place in HEAVY)
