"""What a handler is given: decoded values, keys, headers, and where the record came from."""

from __future__ import annotations

import os
import subprocess
import sys

import pydantic
import pytest

import perkey


class Order(pydantic.BaseModel):
    """A value with a type of its own."""

    id: int


def records_of(kafka, source, **options):
    """What a handler of this topic is given, once it is drained."""
    app = kafka.app()
    records = []

    @app.consume(source, on_exhausted=perkey.Skip(), **options)
    def handler(record):
        records.append(record)

    return records, kafka.drain(app)


@pytest.mark.parametrize(
    ("kind", "good", "value", "bad"),
    [
        ("bytes", b"\xff", b"\xff", None),
        ("str", "grüße".encode(), "grüße", b"\xff"),
        ("json", b'{"a": 1}', {"a": 1}, b"{"),
        (Order, b'{"id": 7}', Order(id=7), b'{"id": "x"}'),
        (int, b"42", 42, b"x"),
    ],
    ids=["bytes", "str", "json", "model", "callable"],
)
def test_values_are_decoded_and_bad_ones_are_final_failures(kafka, kind, good, value, bad):
    """A value that cannot be decoded ends its record after one attempt, without a call."""
    source = kafka.topic()
    kafka.fill(source, [good] if bad is None else [good, bad])
    records, report = records_of(kafka, source, value=kind)
    assert [record.value for record in records] == [value]
    assert (report.done, report.skipped, report.failed_attempts) == (1, bool(bad), bool(bad))


def test_a_tombstone_stays_none_and_is_never_decoded(kafka):
    """Also with a model, which could not be made of nothing."""
    source = kafka.topic()
    kafka.fill(source, [{"key": b"k", "value": None}])
    records, report = records_of(kafka, source, value=Order)
    assert (records[0].value, report.done) == (None, 1)


@pytest.mark.broker
def test_a_record_reports_everything_about_itself(kafka):
    """Topic, partition, offset, timestamp, key and headers, duplicates and nulls included."""
    source = kafka.topic(partitions=2)
    headers = [("a", b"1"), ("a", b""), ("none", None)]
    kafka.fill(
        source,
        [{"value": b"v", "key": b"", "headers": headers, "timestamp": 1_600_000_000_123}],
        partition=1,
    )
    (record,), _ = records_of(kafka, source)
    assert record[:8] == (source, 1, 0, 1_600_000_000_123, b"", b"v", tuple(headers), 1)
    assert (record.last_error, record.prefetched) == (None, None)
    assert "v" not in repr(record).split("value=")[1].replace("value", "")
    with pytest.raises(AttributeError):
        record.value = b"other"


# A client of its own, in pure Python: every other one checks what it writes.
FOREIGN = """
import asyncio, sys
from aiokafka import AIOKafkaProducer

class Name(str):
    def encode(self, *_): return b"\\xff"

async def main(bootstrap, topic):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"before")
        await producer.send_and_wait(topic, b"bad", headers=[(Name("x"), b"v")])
        await producer.send_and_wait(topic, b"after", headers=[("fine", b"v")])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.broker
def test_a_header_whose_name_is_not_utf8_stops_no_one(kafka, caplog):
    """confluent-kafka cannot read it: the record comes without headers, with a warning."""
    source = kafka.topic()
    subprocess.run(
        [sys.executable, "-c", FOREIGN, kafka.bootstrap, source],
        check=True,
        timeout=60,
        env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"},
    )
    records, report = records_of(kafka, source, ordering="partition")
    assert report.done == 3
    assert [(record.value, record.headers) for record in records] == [
        (b"before", ()),
        (b"bad", ()),
        (b"after", (("fine", b"v"),)),
    ]
    assert f"{source}[0]@1: a header's name is not UTF-8" in caplog.text
