"""A backfill with `progress=`, killed with -9 and started again: it resumes behind what is kept."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.spark.fleet_kit import START_S, kill, running
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS, KEYS, STRETCH = 1_200, 24, 20

JOB = """
import asyncio, os
from contextlib import contextmanager
from pyspark.sql import SparkSession
import perkey
from perkey.spark import process

@contextmanager
def small():
    from perkey.spark.processing import stretches, task
    stretches.STRETCH_ROWS = task.ROWS_EACH = {stretch}
    yield

async def handle(record):
    await asyncio.sleep(0.05)
    line = f"{{record.offset}} {{os.getpid()}}\\n".encode()
    with open("calls", "ab", buffering=0) as file:
        file.write(line)
    return {{"n": record.offset}}

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = process(spark.read.parquet("in"), handle, concurrency=4, slots=2, lifespan=small, progress="progress")
rows.write.mode("overwrite").parquet("out")
"""


def test_a_backfill_killed_twice_has_each_row_once_and_repeats_little(tmp_path) -> None:
    """Only what was not in a stretch is handled again, and keys stay in order."""
    keys = pa.array([b"k%d" % (n % KEYS) for n in range(RECORDS)])
    values = pa.array([b"%d" % n for n in range(RECORDS)])
    place = [
        pa.array(["t"] * RECORDS),
        pa.array([0] * RECORDS, pa.int32()),
        pa.array(range(RECORDS)),
    ]
    names = ["topic", "partition", "offset", "key", "value"]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table([*place, keys, values], names=names), tmp_path / "in" / "one.parquet")
    (tmp_path / "job.py").write_text(JOB.format(stretch=STRETCH))
    for lives in (1, 2, 3):
        kept = len(list(tmp_path.glob("progress/*/*.parquet")))
        with running(tmp_path, command=[sys.executable, "job.py"]) as job:
            if lives == 3:
                assert job.wait() == 0, job.text
                break
            grown = kept + 8
            wait_for(
                lambda grown=grown: (
                    len(list(tmp_path.glob("progress/*/*.parquet"))) >= grown
                    or job.process.poll() is not None
                ),
                START_S,
                "stretches",
            )
            assert job.process.poll() is None, job.text
            for one in [*job.descendants(), job.process]:
                kill(one.pid)
    query = "select count(*), count(distinct \"offset\"), sum((status = 'done')::int) from read_parquet(?)"
    assert duckdb.execute(query, [str(tmp_path / "out" / "*.parquet")]).fetchone() == (RECORDS,) * 3
    calls = [
        tuple(map(int, line.split())) for line in (tmp_path / "calls").read_text().splitlines()
    ]
    again = sum(count - 1 for count in Counter(offset for offset, _ in calls).values())
    # In each of two kills, of two tasks: one stretch that was not full, what waited to be written
    # into it, and the calls in flight.
    assert again <= 2 * 2 * (3 * STRETCH + 4)
    lanes: dict[tuple[int, int], list[int]] = {}
    for offset, process in calls:
        lanes.setdefault((process, offset % KEYS), []).append(offset)
    assert all(a < b for offsets in lanes.values() for a, b in pairwise(offsets))
