"""Parked lanes in a run: their records leave the memory, and are read again when released."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe.orders import Order
from perkey.testing import MemoryKafka
from perkey.testing.memory_connection import MemoryLogReader

WAIT_S = 60.0
KEYS, BEHIND = 10, 12
RECORD_BYTES = 1_000


@pytest.fixture
def kafka() -> Iterator[MemoryKafka]:
    """A broker with one topic of one partition."""
    made = MemoryKafka()
    made.create_topic("t")
    yield made
    made.close()


class Poisoned:
    """An app whose handler fails for all but one key until it is mended."""

    def __init__(self, kafka: MemoryKafka, **options: object) -> None:
        self.mended = threading.Event()
        self.handled: defaultdict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        self.app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap, **options})
        self.app.consume("t", retry=perkey.Retry(attempts=1))(self.handle)
        self.run: Any = self.app.start()

    def handle(self, record: perkey.Record) -> None:
        """One record."""
        key = record.key or b""
        if key != b"good" and not self.mended.is_set():
            raise ValueError("not mended")
        self.handled[key].append((record.offset, record.value))

    def part(self) -> dict[str, Any]:
        """The partition as the snapshot has it."""
        parts: list[dict[str, Any]] = self.app.snapshot()["partitions"]
        return parts[0] if parts else {"parked": 0, "unfetched": 0, "frontier": 0, "buffered": 0}

    def wait_until_parked(self) -> None:
        """One record of each key is, and all others are behind it."""
        everything = (KEYS, KEYS * (BEHIND - 1))
        wait_for(lambda: (self.part()["parked"], self.part()["unfetched"]) == everything)

    def release(self) -> None:
        """The first record of each key, all in one command."""
        self.mended.set()
        records = tuple((0, offset) for offset in range(KEYS))
        assert self.run.control.obey(Order("release", "a test", "id", "t", records=records))

    def end(self) -> None:
        """Stop the run."""
        self.run.stop()
        self.run.wait(WAIT_S)


def fill(kafka: MemoryKafka) -> dict[bytes, list[int]]:
    """Records of the poisoned keys in turns; their offsets by key."""
    there: defaultdict[bytes, list[int]] = defaultdict(list)
    for number in range(KEYS * BEHIND):
        key = b"%d" % (number % KEYS)
        kafka.produce("t", b"v" * RECORD_BYTES, key=key)
        there[key].append(number)
    return there


def test_parked_lanes_are_read_again_when_released(kafka: MemoryKafka) -> None:
    """Meanwhile only the parked records themselves are held, without their values."""
    there = fill(kafka)
    poisoned = Poisoned(kafka)
    poisoned.wait_until_parked()
    kafka.produce("t", b"v", key=b"good")
    wait_for(lambda: poisoned.handled[b"good"])
    wait_for(lambda: poisoned.part()["in_flight"] == 0)
    part = poisoned.part()
    assert (part["buffered"], part["frontier"]) == (KEYS, 0)
    poisoned.release()
    wait_for(lambda: poisoned.part()["frontier"] == KEYS * BEHIND + 1)
    poisoned.end()
    for key, offsets in there.items():
        assert poisoned.handled[key] == [(offset, b"v" * RECORD_BYTES) for offset in offsets]


def test_what_cannot_be_read_now_is_read_later(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is away for a moment is reported, and costs no record."""
    there, read, failed = fill(kafka), MemoryLogReader.read, threading.Event()

    def fails_once(self: MemoryLogReader, ranges: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise KafkaUnavailable("away")
        return read(self, ranges)

    monkeypatch.setattr(MemoryLogReader, "read", fails_once)
    with caplog.at_level(logging.WARNING, "perkey"):
        poisoned = Poisoned(kafka)
        poisoned.wait_until_parked()
        poisoned.release()
        wait_for(lambda: poisoned.part()["frontier"] == KEYS * BEHIND)
        poisoned.end()
    assert "cannot be read again now" in caplog.text
    assert {key: [at for at, _ in seen] for key, seen in poisoned.handled.items()} == there


def test_what_retention_took_is_counted(kafka: MemoryKafka) -> None:
    """The records that are left are handled."""
    there = fill(kafka)
    poisoned = Poisoned(kafka)
    poisoned.wait_until_parked()
    gone = KEYS * 2
    kafka.delete_before("t", 0, gone)
    poisoned.release()
    wait_for(lambda: poisoned.part()["frontier"] == KEYS * BEHIND)
    counts = poisoned.app.snapshot()["counts"]
    poisoned.end()
    assert counts["parked_records_gone"] == gone
    left = {key: [offset for offset in all_ if offset >= gone] for key, all_ in there.items()}
    assert {key: [at for at, _ in seen] for key, seen in poisoned.handled.items()} == left
