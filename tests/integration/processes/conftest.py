"""A broker whose groups can notice a dead member soon, and the chaos harness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.chaos import Chaos

from perkey.broker import LocalBroker


@pytest.fixture
def chaos_broker(kafka_broker: LocalBroker) -> LocalBroker:
    """One node, shared with all tests that leave it alone."""
    return kafka_broker


@pytest.fixture
def chaos(chaos_broker: LocalBroker, tmp_path: Path) -> Iterator[Callable[..., Chaos]]:
    """Make a scenario on the shared broker; its children are ended whatever happens."""
    made: list[Chaos] = []

    def make(**options: Any) -> Chaos:
        made.append(Chaos(chaos_broker, tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.__exit__(None, None, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need the real broker."""
    for item in items:
        if "processes" in item.path.parts:
            item.add_marker(pytest.mark.broker)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))  # they start processes, and are patient
