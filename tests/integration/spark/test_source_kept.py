"""Consumers that are kept between batches, on a real broker."""

from __future__ import annotations

import pytest

from perkey.spark.source import fetch, worker
from perkey.spark.source.fetch import Consumers, FetchSettings
from perkey.spark.source.ranges import OffsetRange

pytestmark = pytest.mark.spark


def test_a_kept_consumer_reads_each_range_exactly(kafka_broker, topic, produce, monkeypatch):
    """The same again, backwards, inside, with a gap at its end, and of a topic made again."""
    monkeypatch.setenv(worker.REUSED, "1")
    kept = Consumers()
    monkeypatch.setattr(fetch, "CONSUMERS", kept)
    name = topic(2)
    for partition in (0, 1):
        produce(name, map(str, range(500)), partition=partition)
    settings = FetchSettings({"bootstrap.servers": kafka_broker.bootstrap}, "g", True, 60.0, 500)

    def read(partition, start, end):
        found = []
        with fetch.open_fetch(OffsetRange(name, partition, start, end), settings) as range_fetch:
            while messages := range_fetch.next_batch():
                found += [(m.partition(), m.offset()) for m in messages]
        return found

    try:
        for partition, start, end in (
            (0, 0, 400), (0, 0, 400), (0, 100, 500), (0, 3, 4), (1, 0, 400), (0, 100, 500),
        ):  # fmt: skip
            assert read(partition, start, end) == [(partition, o) for o in range(start, end)]
        assert len(kept) == 3  # of two partitions, one of them also for ranges of one record
        kafka_broker.delete_topic(name)
        kafka_broker.create_topic(name, partitions=2)
        produce(name, map(str, range(300)))
        assert read(0, 0, 300) == [(0, o) for o in range(300)]
    finally:
        kept.close()
