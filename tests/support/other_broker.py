"""Brokers of another version: `python -m pytest -p tests.support.other_broker …`.

`PERKEY_TEST_KAFKA=4.1.1` chooses it. Its jars come from Maven or Ivy as those of the pinned version
do. Their checksums are not pinned: this is for `make broker-matrix` only. Commands that the tests
start in another process still use the pinned version.
"""

from __future__ import annotations

import os

import pytest

from perkey.broker import jars
from perkey.broker.folder import locked


def pytest_configure() -> None:
    """Before any broker starts; workers of xdist inherit the variable."""
    version = os.environ["PERKEY_TEST_KAFKA"]
    where = jars.cache_dir() / f"kafka-{version}"
    with locked(where, "set PERKEY_CACHE to one that can"):
        if not (where / f"kafka_2.13-{version}.jar").exists():
            jars.fetch(version, where, frozenset())
    digests = {path.name: jars.sha256(path) for path in sorted(where.glob("*.jar"))}
    jars.KAFKA_VERSION = version
    jars.checksums = lambda: digests  # type: ignore[assignment]  # the same call, without a cache


def pytest_report_header() -> str:
    """The version, so that a log shows what it is of."""
    return f"brokers: Apache Kafka {jars.KAFKA_VERSION}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before 4.0 the protocol of KIP-848 is a preview that a broker does not offer by itself."""
    if int(jars.KAFKA_VERSION.partition(".")[0]) < 4:
        for item in items:
            if item.name.endswith("consumer]"):
                item.add_marker(pytest.mark.skip(reason="KIP-848 needs Kafka 4.0 or newer"))
