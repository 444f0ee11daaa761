"""Observations from outside: raw topics, the groups' offsets, the service's log, the table.

Nothing here uses Perkey's runtime; a wrong engine could not talk itself out of it.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from demo.children import DemoError

READ_TIMEOUT_S = 60.0
_CONSUME_S, _CONSUME_RECORDS = 0.2, 5_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of a topic, as a raw consumer reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of the service's log: times are UNIX seconds, member is a process id."""

    begin: float
    end: float
    member: str
    vehicle: str
    seq: int
    status: int

    @property
    def final(self) -> bool:
        """The position is finished with: checked, or refused for good."""
        return self.status in (200, 422)


def read_topic(bootstrap: str, topic: str) -> list[Seen]:
    """Every record that is there now, partition by partition in offset order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-witness",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
    )
    try:
        return sorted(_read(consumer, topic), key=lambda one: (one.partition, one.offset))
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str) -> Iterator[Seen]:
    partitions = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
    places = [TopicPartition(topic, number, 0) for number in partitions]
    ends = {p.partition: consumer.get_watermark_offsets(p, READ_TIMEOUT_S)[1] for p in places}
    consumer.assign(places)
    deadline = time.monotonic() + READ_TIMEOUT_S
    while any(p.offset < ends[p.partition] for p in consumer.position(places) if ends[p.partition]):
        for message in consumer.consume(_CONSUME_RECORDS, _CONSUME_S):
            if message.error() is None:
                yield _seen(message)
        if time.monotonic() > deadline:
            raise DemoError(f"{topic} could not be read within {READ_TIMEOUT_S:.0f} s")


def _seen(message: Any) -> Seen:
    return Seen(
        message.partition(),
        message.offset(),
        message.key(),
        message.value() or b"",
        dict(message.headers() or ()),
    )


def read_answers(log: Path) -> dict[str, list[Answer]]:
    """Run -> what the service answered, in order of arrival."""
    runs: dict[str, list[Answer]] = {}
    with log.open(newline="") as file:
        for begin, end, run, member, vehicle, seq, status in csv.reader(file):
            answer = Answer(float(begin), float(end), member, vehicle, int(seq), int(status))
            runs.setdefault(run, []).append(answer)
    for answers in runs.values():
        answers.sort(key=lambda one: one.begin)
    return runs


def lag_of(bootstrap: str, group: str, topic: str) -> tuple[int, int]:
    """(partitions with a committed offset, records before their ends): `perkey offsets show`."""
    command = [sys.executable, "-m", "perkey.cli.main", "offsets", "show", "--json"]
    shown = subprocess.run(
        [*command, "--group", group, "--bootstrap-servers", bootstrap],
        capture_output=True, text=True, check=False, timeout=READ_TIMEOUT_S,
    )  # fmt: skip
    if shown.returncode != 0:
        raise DemoError(f"the offsets of {group} could not be read: {shown.stderr.strip()}")
    rows = [row for row in json.loads(shown.stdout) if row["topic"] == topic]
    return len(rows), sum(row["lag"] for row in rows)


def read_table(folder: Path) -> list[dict[str, Any]]:
    """The rows of the Parquet table, with the date that their folder names."""
    import pyarrow.dataset as ds

    if not folder.exists():
        raise DemoError(f"there is no table in {folder}")
    table = ds.dataset(str(folder), format="parquet", partitioning="hive").to_table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
