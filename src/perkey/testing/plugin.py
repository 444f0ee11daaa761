"""The pytest plugin: fixtures for tests on Kafka. Registered by installing Perkey."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perkey.broker import LocalBroker
    from perkey.testing import MemoryKafka


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A real one-node Kafka, shared by all tests of the session (one per worker under xdist)."""
    # Imported late: pytest loads this plugin in every project where Perkey is installed.
    from perkey.broker import LocalBroker
    from perkey.broker.topics import wait_for_groups

    with LocalBroker() as broker:
        wait_for_groups(broker.bootstrap)
        yield broker


@pytest.fixture
def memory_broker() -> Iterator[MemoryKafka]:
    """A Kafka in memory, new for each test: it is cheap to create."""
    from perkey.testing import MemoryKafka

    with MemoryKafka() as broker:
        yield broker
