"""The operator on streaming DataFrames from a real topic."""

from __future__ import annotations

import pytest

import perkey
from perkey.spark import process

pytestmark = pytest.mark.spark


@pytest.fixture
def run_once(spark, tmp_path):
    """Run a streaming DataFrame to the ends of its topics, into Parquet; all rows so far."""

    def run(results):
        writer = results.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(str(tmp_path / "out"))
        assert query.awaitTermination(120)
        rows = spark.read.schema(results.schema).parquet(str(tmp_path / "out"))
        return rows.orderBy("partition", "offset").collect()

    return run


def test_a_stream_in_batches_keeps_the_order_of_keys(
    read_stream, topic, produce, run_once, tmp_path
):
    """Sorted in the task: each key's records in offset order, in and across micro-batches."""
    name = topic(partitions=2)
    for partition in (0, 1):
        written = range(partition, 60, 2)
        produce(name, map(str, written), partition, keys=[b"k%d" % (n % 3) for n in written])
    log = str(tmp_path / "log")

    async def handler(record):
        with open(log, "a") as file:  # noqa: ASYNC230, PTH123  # a line of the test's
            file.write(f"{record.partition}-{record.key.decode()} {record.offset}\n")

    df = read_stream(name, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    rows = run_once(process(df, handler))
    assert [(r.partition, r.offset) for r in rows] == [(p, o) for p in (0, 1) for o in range(30)]
    lanes: dict[str, list[int]] = {}
    for line in (tmp_path / "log").read_text().splitlines():
        lane, offset = line.split()
        lanes.setdefault(lane, []).append(int(offset))
    assert len(lanes) == 6
    assert all(offsets == sorted(offsets) for offsets in lanes.values())


@pytest.mark.long
def test_a_failing_record_does_not_end_the_query(read_stream, topic, produce, run_once):
    """Its row says failed; a restart goes on behind it."""
    name = topic()
    produce(name, ["good", "bad"], key=b"k")

    def handler(record):
        if record.value == "bad":
            raise ValueError("bad")

    def results():
        df = read_stream(name, startingOffsets="earliest")
        return process(df, handler, value="str", retry=perkey.Retry(attempts=2, delay_s=0.001))

    assert [row.status for row in run_once(results())] == ["done", "failed"]
    produce(name, ["more"], key=b"k")
    rows = run_once(results())
    assert [row.status for row in rows] == ["done", "failed", "done"]
    assert (rows[1].attempts, rows[1].error) == (2, "ValueError: bad")


@pytest.mark.long
def test_unfinished_rows_go_to_the_next_batch(read_stream, topic, produce, run_once, tmp_path):
    """`deadline_s`: a record that waits for its retry holds its key, and not the micro-batch."""
    name = topic()
    produce(name, ["wait", "behind"], key=b"a")
    produce(name, ["other"], key=b"b")

    def handler(record):
        if record.value == "wait" and record.attempt == 1:
            raise perkey.RetryAfter(600)

    def results():
        df = read_stream(name, startingOffsets="earliest")
        left = str(tmp_path / "left")
        return process(df, handler, value="str", slots=2, deadline_s=2, progress=left)

    assert [row.offset for row in run_once(results())] == [2]
    produce(name, ["more"], key=b"b")
    rows = run_once(results())
    assert [(row.offset, row.attempts) for row in rows] == [(0, 2), (1, 1), (2, 1), (3, 1)]
