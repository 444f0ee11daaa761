"""What every test shares: the lane a test belongs to follows from its fixtures."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `broker` whatever asks for the real broker, so that the fast lane leaves it out."""
    for item in items:
        if "kafka_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
