"""`kafka.oauth_cb`: a factory's dotted name gives the callback, on the driver and in tasks."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Consumer

from perkey.errors import ConfigError
from perkey.spark.sink.options import check_producer, sink_options
from perkey.spark.source.cluster import accepted
from perkey.spark.source.fetch import FetchSettings, check_consumer
from perkey.spark.source.options import source_options
from perkey.spark.source.secrets import with_oauth

OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanisms": "OAUTHBEARER",
    "kafka.oauth_cb": "tokens_of_ours.factory",
}


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """A module with a factory; what its callback was asked with."""
    calls: list[str] = []

    def callback(config: str) -> tuple[str, float]:
        calls.append(config)
        return "token", time.time() + 3_600

    def fails() -> None:
        raise RuntimeError("no vault")

    module: Any = ModuleType("tokens_of_ours")
    module.factory, module.fails, module.number = lambda: callback, fails, lambda: 7
    monkeypatch.setitem(sys.modules, "tokens_of_ours", module)
    return calls


def test_a_client_gets_its_token_from_it(asked) -> None:
    """What the factory returned is called when the client wants its first token."""
    kafka = source_options({**OPTIONS, "subscribe": "t"}).kafka
    # Closed at the end: it never reaches a broker, and says so.
    config = {**kafka, "group.id": "g", "log_level": 0, "error_cb": lambda _: None}
    consumer = accepted(Consumer, config, kafka)
    deadline = time.monotonic() + 60
    while not asked and time.monotonic() < deadline:
        consumer.poll(0.05)
    consumer.close()
    assert len(asked) == 1


def test_source_and_sink_take_it(asked) -> None:
    """Both check it when the job is made, before it starts."""
    source = source_options({**OPTIONS, "subscribe": "t"})
    check_consumer(FetchSettings(source.kafka, "g", True, 1.0, 500))
    check_producer(sink_options({**OPTIONS, "topic": "t"}))


def test_without_it_nothing_changes() -> None:
    """The configuration is the same object."""
    config = {"bootstrap.servers": "b"}
    assert with_oauth(config) is config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("factory", "is no dotted name"),
        ("a b.c", "is no dotted name"),
        ("nowhere_at_all.factory", "cannot be imported here"),
        ("tokens_of_ours.nothing", "cannot be imported here"),
        ("tokens_of_ours.fails", r"failed: RuntimeError: no vault"),
        ("tokens_of_ours.number", "returned int, not a callback"),
    ],
)
def test_what_leads_to_no_callback(asked, name, said) -> None:
    """One line that says what the name must lead to."""
    with pytest.raises(ConfigError, match=said):
        with_oauth({"oauth_cb": name})


def test_bytes_in_a_trigger_are_refused_with_the_reason() -> None:
    """Brokers tell no sizes; the line names what there is."""
    with pytest.raises(ConfigError, match="use maxOffsetsPerTrigger"):
        source_options({**OPTIONS, "subscribe": "t", "maxBytesPerTrigger": "1m"})
