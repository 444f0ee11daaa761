"""The brokers of the app tests and of the process tests, for the ways of delivery."""

from __future__ import annotations

import pytest
from tests.integration.app.conftest import _kafka, kafka, pytest_generate_tests
from tests.integration.processes.conftest import chaos, chaos_broker

__all__ = ["_kafka", "chaos", "chaos_broker", "kafka", "pytest_generate_tests"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They start processes, and are patient."""
    for item in items:
        if "delivery" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
