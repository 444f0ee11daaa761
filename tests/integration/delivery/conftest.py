"""The real brokers of the app tests and of the process tests, for the ways of delivery."""

from __future__ import annotations

import pytest
from tests.integration.app.conftest import _kafka, kafka
from tests.integration.processes.conftest import chaos, chaos_broker

__all__ = ["_kafka", "chaos", "chaos_broker", "kafka"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need the real broker."""
    for item in items:
        if "delivery" in item.path.parts:
            item.add_marker(pytest.mark.broker)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))  # they start processes, and are patient
