"""The producer that a worker process keeps between batches."""

from __future__ import annotations

import pytest

from perkey.spark.sink.options import SinkOptions, sink_options
from perkey.spark.sink.plain import Kept


def options(topic: str, **kafka: str) -> SinkOptions:
    """As a query gives them; nobody answers there."""
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in kafka.items()}
    return sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": topic, **named})


def test_one_producer_serves_the_next_batch_of_any_topic() -> None:
    """A topic is no property of a producer: a new one would ask for a producer id first."""
    kept = Kept()
    sending = kept.take(options("a"))
    kept.put(options("a"), sending)
    assert kept.take(options("b")) is sending


@pytest.mark.parametrize("more", [{"client_id": "another"}, {"sasl_password": "another"}])
def test_other_properties_are_another_producer(more) -> None:
    """Also where only a secret differs."""
    kept = Kept()
    sending = kept.take(options("a"))
    kept.put(options("a"), sending)
    assert kept.take(options("a", **more)) is not sending


def test_a_broken_one_is_not_taken_again() -> None:
    """After a fatal error nothing can be written with it."""
    kept = Kept()
    sending = kept.take(options("a"))
    sending.broken = True
    kept.put(options("a"), sending)
    assert kept.take(options("a")) is not sending


def test_one_that_is_in_use_is_no_one_elses() -> None:
    """Two tasks in one process: each has its own."""
    kept = Kept()
    sending = kept.take(options("a"))
    assert kept.take(options("a")) is not sending
