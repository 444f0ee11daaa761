"""The cluster of a contract test: in memory, and again on the real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.clusters import Cluster, InMemory, Real


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Both brokers, one after the other."""
    if request.param == "memory":
        made: Cluster = InMemory(request.getfixturevalue("memory_broker"))
    else:
        made = Real(request.getfixturevalue("kafka_broker"))
    yield made
    for close in made.closing:
        close()
