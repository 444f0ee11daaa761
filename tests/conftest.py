"""What every test shares: which lane it belongs to, and which of two workers runs it.

`make test` runs two workers. Whatever starts processes, kills them or measures time is one chain
on the first of them, one after the other; the other worker runs everything else, file by file. So
no two of the heavy ones ever share the machine's two cores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
INTEGRATION = TESTS / "integration"
#: Folders and files of the chain.
HEAVY = tuple(
    INTEGRATION / name for name in ("spark", "test_demo.py", "processes", "delivery", "workers")
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses, and before xdist deals
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the lanes and the groups; the chain comes first, being the longest."""
    for item in items:
        if INTEGRATION in item.path.parents or "kafka_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
        if INTEGRATION / "spark" in item.path.parents:
            item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.xdist_group("chain" if _heavy(item.path) else str(item.path)))
    items.sort(key=lambda item: not _heavy(item.path))


def _heavy(path: Path) -> bool:
    return any(path == place or place in path.parents for place in HEAVY)
