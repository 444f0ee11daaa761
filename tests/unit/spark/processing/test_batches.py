"""Batch handlers in a task of the operator."""

from __future__ import annotations

import pytest
from tests.unit.spark.processing import seen

import perkey


@pytest.fixture(autouse=True)
def facts():
    """What handlers told, in order."""
    seen.FACTS.clear()
    return seen.FACTS


def declared(function, **batch):
    """A batch handler of an app."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "127.0.0.1:9"})
    options = perkey.Batch(**{"linger_s": 0.01, **batch})
    quick = perkey.Retry(attempts=2, delay_s=0.001)
    return app.consume("t", batch=options, retry=quick, output="out")(function)


RECORDS = [(offset, b"k%d" % (offset % 7), b"%d" % offset) for offset in range(100)]


def plain(batch):
    """Fails with one record in it; tells what it got."""
    seen.tell([record.offset for record in batch])
    if any(record.value == b"13" for record in batch):
        raise ValueError("thirteen")


async def awaited(batch):
    """The same, async."""
    plain(batch)


@pytest.mark.push
@pytest.mark.parametrize("handler", [plain, awaited])
def test_a_batch_is_one_call_and_one_row_for_each_record(rows, facts, handler):
    """As large as max_records; one bad record is found in halves and fails alone."""
    found = rows(declared(handler, max_records=20), RECORDS)
    assert [row["offset"] for row in found] == list(range(100))
    failed = [row for row in found if row["status"] == "failed"]
    assert [(row["offset"], row["error"]) for row in failed] == [(13, "ValueError: thirteen")]
    assert max(map(len, facts)) == 20


def test_acknowledged_records_are_done_with_their_outputs(rows):
    """ack="explicit": each record by itself; a nacked one is tried again, then failed."""

    def handler(batch):
        for record in batch:
            if record.offset % 2:
                batch.nack(record, ValueError("odd"))
            else:
                batch.ack(record, outputs=perkey.Produce(b"even"))

    found = rows(declared(handler, ack="explicit", by="key"), [(n, None, b"") for n in range(10)])
    assert [row["status"] for row in found] == ["done", "failed"] * 5
    assert [[o["value"] for o in row["outputs"]] for row in found] == [[b"even"], []] * 5
    assert {row["attempts"] for row in found if row["offset"] % 2} == {2}
