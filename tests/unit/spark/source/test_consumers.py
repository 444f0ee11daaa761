"""Consumers kept between batches: taken again with the same settings alone, and never for long."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from perkey.spark.openings import fetch_settings
from perkey.spark.source import fetch, worker
from perkey.spark.source.fetch import Consumers, FetchSettings, Held, consumer_config, key_of
from perkey.spark.source.options import source_options
from perkey.spark.source.ranges import OffsetRange


class FakeConsumer:
    """Remembers what was done to it."""

    def __init__(self):
        self.done: list[str] = []
        self.at = OFFSET_INVALID

    def assign(self, partitions):
        self.done.append("assign")

    def unassign(self):
        self.done.append("unassign")

    def close(self):
        self.done.append("close")

    def position(self, partitions):
        return [TopicPartition("t", 0, self.at)]


@pytest.fixture
def kept(monkeypatch):
    """An empty store at time 0, of which nothing is swept behind the test's back."""
    monkeypatch.setattr(Consumers, "_sweep", lambda self: None)
    kept = Consumers(lambda: kept.now)
    kept.now = 0.0
    return kept


def held(partition: int = 0, group_prefix: str = "g", **config) -> Held:
    """As a task has one."""
    one = Held(key_of("t", partition, group_prefix, config))
    fake: Any = FakeConsumer()
    one.consumer = fake
    return one


def test_it_is_taken_once_and_fetches_nothing_meanwhile(kept):
    """The next batch of the same partition has it; nobody else then."""
    one = held()
    kept.put(one)
    assert one.consumer.done == ["unassign"]
    assert kept.take(one.key) is one
    assert one.used
    assert kept.take(one.key) is None


@pytest.mark.parametrize(
    "other",
    [
        held(1),
        held(group_prefix="h"),
        held(sasl_password="b"),
        held(**{"isolation.level": "read_committed"}),
    ],
)
def test_other_settings_are_another_consumer(kept, other):
    """Also where only a secret differs."""
    kept.put(held())
    assert kept.take(other.key) is None


def test_one_that_still_knows_its_place_is_not_taken(kept):
    """Its position would end the next range before it began."""
    one = held()
    kept.put(one)
    one.consumer.at = 7
    assert kept.take(one.key) is None
    assert one.consumer.done == ["unassign", "close"]


def test_the_longest_idle_goes_where_there_are_too_many(kept, monkeypatch):
    """So many and no more."""
    monkeypatch.setattr(fetch, "KEPT_MAX", 2)
    three = [held(partition) for partition in range(3)]
    for one in three:
        kept.put(one)
    assert [one.consumer.done for one in three] == [
        ["unassign", "close"],
        ["unassign"],
        ["unassign"],
    ]
    assert len(kept) == 2


def test_what_is_idle_for_long_is_closed(kept):
    """And what was used since is not; at the end of the process all are."""
    old, new = held(0), held(1)
    kept.put(old)
    kept.now = 50.0
    kept.put(new)
    kept.now = 61.0
    kept.close(60.0)
    assert (old.consumer.done, new.consumer.done) == (["unassign", "close"], ["unassign"])
    kept.close()
    assert new.consumer.done == ["unassign", "close"]
    assert len(kept) == 0


def test_queries_have_each_others_consumers(kept, monkeypatch):
    """A group id that is new each time would leave a consumer for nobody."""
    monkeypatch.setattr(fetch, "CONSUMERS", kept)
    monkeypatch.setenv(worker.REUSED, "1")
    made: list[str] = []

    def consumer(config):
        made.append(config["group.id"])
        return FakeConsumer()

    monkeypatch.setattr(fetch, "Consumer", consumer)
    for _ in range(2):
        settings = fetch_settings(
            source_options({"kafka.bootstrap.servers": "x:1", "subscribe": "t"}), "prefix"
        )
        with fetch.open_fetch(OffsetRange("t", 0, 0, 1), settings):
            """Nothing is read."""
    (group_id,) = made
    assert re.fullmatch(r"prefix-[0-9a-f-]{36}-executor", group_id)


def test_batches_of_about_one_size_have_one_key():
    """What is fetched ahead follows the size of the range, in steps."""
    settings = FetchSettings({"bootstrap.servers": "x:1"}, "g", True, 60.0, 500)
    sizes = {
        size: consumer_config(OffsetRange("t", 0, 0, size), settings)["queued.min.messages"]
        for size in (1, 400, 500, 900, 1_000_000)
    }
    assert sizes[400] == sizes[500] == sizes[900] == 1024
    assert all(size <= ahead for size, ahead in sizes.items() if size < 100_000)
    assert sizes[1_000_000] == 100_000
