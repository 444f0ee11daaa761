"""What comes after the operator: two tables from one run, failed rows again, helpers that travel."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import time

import pytest
from pydantic import BaseModel
from pyspark.sql import Observation
from pyspark.sql import functions as F  # the name every Spark job gives it

import perkey
from perkey.errors import ConfigError
from perkey.spark import once, process, replay

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RETRY = perkey.Retry(attempts=1)


@pytest.fixture
def records(spark):
    """A DataFrame as a Kafka source gives it, with some keys."""

    def make(count: int, keys: int = 10):
        return spark.range(count).selectExpr(
            "'t' as topic",
            "0 as partition",
            "id as offset",
            f"cast(concat('k', id % {keys}) as binary) as key",
            "cast(cast(id as string) as binary) as value",
            "timestamp_millis(1700000000000 + id) as timestamp",
            "array(struct('h' as key, cast('x' as binary) as value)) as headers",
        )

    return make


def calls_in(folder) -> list[str]:
    """What handlers wrote, of all processes."""
    return [line for path in folder.iterdir() for line in path.read_text().split()]


def failing(folder, bad=lambda offset: False):
    """A handler that writes down its calls and fails for some records."""
    place = str(folder)

    def handler(record):
        with open(f"{place}/{os.getpid()}", "a") as file:  # noqa: PTH123  # in Spark's worker
            file.write(f"{record.offset}\n")
        if bad(record.offset):
            raise ValueError("bad")
        return {"n": record.offset}

    return handler


def test_other_columns_are_carried_as_they_are(records, tmp_path):
    """`carry="*"`: each record's own, whatever their types and names, beside failed rows too."""
    (calls := tmp_path / "calls").mkdir()
    odd = "`the ``city`"
    df = records(50).selectExpr(
        "*", f"map('n', offset) as {odd}",
        "named_struct('at', timestamp, 'cost', offset / 4D) as ride",
    )  # fmt: skip
    results = process(df, failing(calls, lambda n: n == 7), retry=RETRY, carry="*", slots=2)
    wanted = ["value", "timestamp", "headers", "the `city", "ride"]
    assert results.columns[8:] == wanted
    assert [results.schema[name].dataType.simpleString() for name in wanted] == [
        df.schema[name].dataType.simpleString() for name in wanted
    ]
    before = {row.offset: row for row in df.collect()}
    rows = results.collect()
    assert len(rows) == 50
    for row in rows:
        assert [row[name] for name in wanted] == [before[row.offset][name] for name in wanted]
    some = process(df, failing(calls), carry=["ride"])
    assert some.columns[8:] == ["ride"]
    with pytest.raises(ConfigError, match="DataFrame has no column rides: it has topic"):
        process(df, failing(calls), carry=["rides"])
    with pytest.raises(ConfigError, match="the rows have their own column status"):
        process(df.withColumn("status", F.lit(1)), failing(calls), carry="*")
    with pytest.raises(ConfigError, match="the rows have their own column status"):
        process(df.withColumn("Status", F.lit(1)), failing(calls), carry="*")
    with pytest.raises(ConfigError, match="the rows have their own column results"):
        process(df.withColumn("results", F.lit(1)), failing(calls), carry="*", schema="n long")


def test_a_carried_column_may_have_any_other_name(records, tmp_path):
    """Also those in which tasks count calls, and `results` without `schema=`.

    Those that count are no columns of the result: `metrics=` may come to a resumed job.
    """
    df = records(10).selectExpr("*", "offset as calls", "offset as took_ms", "offset as results")
    counted = Observation("any name")
    names = ["calls", "took_ms", "results"]
    (calls := tmp_path / "calls").mkdir()
    first = process(df, failing(calls), carry=names, progress=str(tmp_path / "kept"))
    assert first.count() == 10
    rows = process(
        df, failing(calls), carry=names, progress=str(tmp_path / "kept"), metrics=counted
    ).collect()
    assert all([row[name] for name in names] == [row.offset] * 3 for row in rows)
    assert (len(rows), counted.get["done"]) == (10, 10)


def test_good_rows_and_dead_letters_from_one_stream_call_the_handler_once(
    spark, topic, produce, read_stream, tmp_path
):
    """`once`: a batch's rows go into two tables and a count, and each record was called once."""
    name = topic(2)
    for partition in (0, 1):
        written = range(partition, 200, 2)
        produce(name, map(str, written), partition, keys=[b"k%d" % (n % 7) for n in written])
    calls = tmp_path / "calls"
    calls.mkdir()
    good, dead = str(tmp_path / "good"), str(tmp_path / "dead")

    def write(rows, batch_id):
        rows.where("status = 'done'").write.mode("append").parquet(good)
        rows.where("status = 'failed'").write.mode("append").parquet(dead)
        assert rows.count() > 0

    df = read_stream(name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    handled = process(
        df, failing(calls, lambda o: o % 10 == 3), retry=RETRY, carry="failed", metrics="handled"
    )
    writer = handled.writeStream.foreachBatch(once(write)).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    assert query.awaitTermination(120)
    seen = [one["observedMetrics"]["handled"] for one in query.recentProgress]
    assert [sum(one[i] for one in seen) for i in ("done", "failed", "attempts")] == [180, 20, 200]
    assert all(0 < one["p50_ms"] <= one["p99_ms"] for one in seen)
    assert len(calls_in(calls)) == 200
    assert spark.read.parquet(good).count() == 180
    failed = spark.read.parquet(dead).collect()
    assert len(failed) == 20
    assert all(row.value and row.timestamp and row.story for row in failed)


def test_a_batch_is_counted_as_it_runs(records, tmp_path):
    """An Observation has what became of the records and the time of calls, in one action."""
    counted = Observation("counted")
    fails = failing(tmp_path, lambda o: o < 5)

    def handler(record):
        time.sleep(0.05 if record.offset < 5 else 0)  # 10 of 55 calls: p99 is theirs, p50 is not
        return fails(record)

    rows = process(
        records(50), handler, retry=perkey.Retry(attempts=2, delay_s=0), carry="failed",
        metrics=counted,
    )  # fmt: skip
    assert rows.columns[-1] == "story"
    kept = rows.localCheckpoint()
    assert (kept.count(), kept.where("status is null").count()) == (50, 0)
    seen = counted.get
    p50_ms, p99_ms = seen.pop("p50_ms"), seen.pop("p99_ms")
    assert seen == {"done": 45, "failed": 5, "attempts": 55}
    assert p50_ms < p99_ms
    assert p99_ms > 50 * 0.95
    assert len(calls_in(tmp_path)) == 55


@pytest.mark.parametrize("metrics", ["", 7])
def test_metrics_have_a_name(records, metrics):
    """One line for what is none."""
    with pytest.raises(ConfigError, match="give a name, or a"):
        process(records(1), lambda record: None, metrics=metrics)


def test_a_replay_handles_failed_rows_again_in_their_keys_order(spark, records, tmp_path):
    """Each failed record once, a key's in offset order; what came later and was done is stated."""
    first = process(
        records(100), failing(tmp_path, lambda o: o in (3, 13, 94)), retry=RETRY, carry="failed"
    ).localCheckpoint()
    dead = first.where("status = 'failed'")
    again = tmp_path / "again"
    again.mkdir()
    twice = dead.union(dead)
    rows = replay(twice, failing(again), results=first, slots=1, carry="all").localCheckpoint()
    handled = rows.collect()
    assert sorted(calls_in(again)) == ["13", "3", "94"]
    assert [o for o in calls_in(again) if o in ("3", "13")] == ["3", "13"]
    found = {row.offset: row for row in handled}
    assert {o: row.status for o, row in found.items()} == {3: "done", 13: "done", 94: "done"}
    assert {o: row.overtaken_by for o, row in found.items()} == {3: 93, 13: 93, 94: None}
    assert found[3].value == b"3"
    assert found[3].headers[0].key == "h"
    assert found[3].timestamp is not None
    # What was done by the replay is left out by the next one.
    results = first.unionByName(rows, allowMissingColumns=True)
    assert replay(dead, failing(again), results=results).count() == 0


def test_what_cannot_be_replayed_is_reported(spark, records, read_stream, topic):
    """A table without the values, and a stream."""
    plain = process(records(1), failing("/nowhere"))
    with pytest.raises(ConfigError, match=r"no column value: .*carry="):
        replay(plain, failing("/nowhere"))
    with pytest.raises(ConfigError, match="read the table as a batch"):
        replay(read_stream(topic()), failing("/nowhere"))


def test_outputs_become_typed_columns(records, tmp_path):
    """schema=: the values of a record's outputs with the fields asked for; failed rows have none."""
    handler = failing(tmp_path, lambda o: o == 1)
    handled = process(records(3), handler, retry=RETRY, schema="n long", on_exhausted=perkey.Skip())
    assert handled.schema["results"].dataType.simpleString() == "array<struct<n:bigint>>"
    rows = {row.offset: row.results for row in handled.collect()}
    assert (rows[0][0].n, rows[1], rows[2][0].n) == (0, None, 2)
    cost = process(records(1), handler, schema="n struct<a: int>")
    with pytest.raises(Exception, match=r"(?i)malformed|failfast|cannot_parse"):
        cost.collect()
    with pytest.raises(ConfigError, match="schema=3: give the fields"):
        process(records(1), handler, schema=3)


class Ride(BaseModel):
    """What a row is of."""

    n: int
    at: dt.datetime
    tags: list[str] = []


@pytest.mark.parametrize("columns", ["value", pytest.param("of their own", marks=pytest.mark.long)])
def test_a_model_is_made_of_columns(spark, records, columns):
    """A struct column or columns of the fields' names, without JSON; carried and replayed so."""

    def handler(record):
        ride = record.value
        if ride.n == 2 and record.timestamp_ms >= 0:
            raise ValueError("bad")
        return {"n": ride.n, "year": ride.at.year, "tags": ride.tags}

    fields = "int(offset) as n", "timestamp'2026-05-06' as at", "array('x') as tags", "1 as other"
    df = records(3).drop("value").selectExpr("*", *fields)
    if columns == "value":
        struct = F.struct("n", "at", "tags", "other").alias("value")
        df = df.select("topic", "partition", "offset", "key", "timestamp", "headers", struct)
    handled = process(
        df,
        handler,
        value=Ride,
        retry=RETRY,
        carry="failed",
        schema="n long, year long, tags array<string>",
    ).localCheckpoint()
    rows = {row.offset: row for row in handled.collect()}
    assert [rows[o].status for o in range(3)] == ["done", "done", "failed"]
    assert tuple(rows[1].results[0]) == (1, 2026, ["x"])
    assert rows[2].value.asDict() == {"n": 2, "at": dt.datetime(2026, 5, 6), "tags": ["x"]}  # noqa: DTZ001  # Spark's rows
    again = replay(handled.drop("timestamp"), handler, value=Ride).collect()
    assert [(row.offset, row.status) for row in again] == [(2, "done")]


def test_columns_that_make_no_model_are_reported(records):
    """One line before any job, with the column and the cure."""
    flat = records(1).drop("value")
    wrong = [
        (flat, Ride, r"value=Ride needs column n, which is not there: add it"),
        (flat.selectExpr("*", "'x' as n", "1 as at"), Ride, r"column n as bigint.*string: cast it"),
        (records(1).withColumn("value", F.struct("offset")), "bytes", r"is a struct.*value=Model"),
        (records(1).withColumn("value", F.struct("offset")), Ride, r"needs column value\.n"),
        (flat, "json", "has no column value"),
    ]
    for df, value, told in wrong:
        with pytest.raises(ConfigError, match=told):
            process(df, lambda record: None, value=value)
    timed = type("Timed", (BaseModel,), {"__annotations__": {"timestamp": int}})
    with pytest.raises(ConfigError, match=r"field timestamp, which is a column.*struct column"):
        process(flat, lambda record: None, value=timed)


JOB = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from perkey.spark import process
import beside

def handle(record):
    from lazily.inside import answer
    return beside.shout(answer(record.value.decode()))

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    df = spark.range(4).selectExpr("'t' as topic", "0 as partition", "id as offset",
        "cast(null as binary) as key", "cast(cast(id as string) as binary) as value")
    rows = process(df, handle).collect()
    print(sorted(row.outputs[0].value.decode() if row.outputs else row.error for row in rows))
"""


@pytest.mark.long
def test_a_job_finds_perkey_and_its_helpers_on_the_executors(tmp_path):
    """`.venv/bin/python job.py` as it is: no PYSPARK_PYTHON, no addPyFile, another python3 first."""
    (tmp_path / "lazily").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "beside.py").write_text(
        "from lazily import more\ndef shout(x): return x + more.MARK\n"
    )
    (tmp_path / "lazily" / "__init__.py").write_text("")
    (tmp_path / "lazily" / "more.py").write_text("MARK = '!'\n")
    (tmp_path / "lazily" / "inside.py").write_text(
        "from .more import MARK\ndef answer(x): return x + MARK\n"
    )
    path = [place for place in os.environ["PATH"].split(os.pathsep) if ".venv" not in place]
    assert shutil.which("python3", path=os.pathsep.join(path)), "no other python3 to be found"
    env = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    env |= {"PATH": os.pathsep.join(path), "SPARK_LOCAL_IP": "127.0.0.1"}
    workers = tmp_path / "elsewhere"
    workers.mkdir()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        cwd=workers, env=env, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "['0!!', '1!!', '2!!', '3!!']"
