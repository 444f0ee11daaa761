"""The operator on batch DataFrames: one row a record, lanes whole, failures as rows."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from pyspark import TaskContext

import perkey
from perkey.errors import ConfigError
from perkey.spark import process

pytestmark = pytest.mark.spark

COLUMNS = ("topic string", "partition int", "offset long", "key binary", "value binary")


@pytest.fixture
def records(spark):
    """A DataFrame as a Kafka source gives it: `count` records of one partition and `keys` keys."""

    def make(count: int, keys: int = 10):
        return spark.range(count).selectExpr(
            "'t' as topic",
            "0 as partition",
            "id as offset",
            f"cast(concat('k', id % {keys}) as binary) as key",
            "cast(cast(id as string) as binary) as value",
        )

    return make


def in_order(results):
    """All rows, by offset. Sorted here: Spark's orderBy runs what it sorts twice, to sample it."""
    return sorted(results.collect(), key=lambda row: (row.partition, row.offset))


def told(folder):
    """What handlers wrote, line by line, from whatever process."""
    lines = [path.read_text().splitlines() for path in folder.iterdir()]
    return [line.split() for of_one in lines for line in of_one]


def teller(folder):
    """A function for handlers that writes down a line in this process's file, one for each task.

    Spark uses a process again: the second task may be in that of the first, if it starts late.
    """
    path = str(folder)

    def tell(*words: object) -> None:
        task = TaskContext.get().partitionId()
        with open(f"{path}/{os.getpid()}-{task}", "a") as file:  # noqa: PTH123  # in Spark's worker
            file.write(" ".join(map(str, words)) + "\n")

    return tell


def test_one_row_for_each_record_in_the_columns_of_the_contract(records):
    """Names and types exactly; a handler that returns nothing gives done, 1, null, []."""

    async def handler(record):
        assert record.value == str(record.offset).encode()

    results = process(records(100), handler)
    header = "array<struct<key:string,value:binary>>"
    assert results.schema.simpleString() == (
        "struct<topic:string,partition:int,offset:bigint,key:binary,status:string,attempts:int,"
        f"error:string,outputs:array<struct<topic:string,key:binary,value:binary,headers:{header}>>>"
    )
    rows = in_order(results)
    assert [row.offset for row in rows] == list(range(100))
    assert {(row.status, row.attempts, row.error, len(row.outputs)) for row in rows} == {
        ("done", 1, None, 0)
    }
    assert (rows[3].topic, rows[3].partition, rows[3].key) == ("t", 0, b"k3")


def test_keys_stay_whole_and_in_order_over_two_slots(records, tmp_path):
    """Rows in any order come in: each key is in one process, in offset order, one at a time."""
    tell = teller(tmp_path)

    async def handler(record):
        tell("start", record.key.decode(), record.offset)
        await asyncio.sleep(0.001)
        tell("end", record.key.decode(), record.offset)

    shuffled = records(400, keys=20).orderBy("value")
    assert process(shuffled, handler, slots=2).count() == 400
    assert len(list(tmp_path.iterdir())) == 2
    lines = told(tmp_path)
    for key in {line[1] for line in lines}:
        of_key = [line for line in lines if line[1] == key]
        offsets = [int(line[2]) for line in of_key[::2]]
        assert offsets == sorted(offsets)
        assert len(offsets) == 20
        assert [line[0] for line in of_key] == ["start", "end"] * 20


def test_failures_are_rows_of_a_job_that_succeeds(records):
    """A failing key has its attempts and error in its row; the others are done."""

    def handler(record):
        if record.offset % 10 == 3:
            raise ValueError(f"no {record.value.decode()}")

    results = process(records(100), handler, retry=perkey.Retry(attempts=2, delay_s=0.001))
    failed = in_order(results.where("status = 'failed'"))
    assert [row.offset for row in failed] == list(range(3, 100, 10))
    assert {row.attempts for row in failed} == {2}
    assert failed[0].error == "ValueError: no 3"


def test_stop_ends_the_job_with_one_line(records):
    """The record, its error, and no traceback."""

    def handler(record):
        raise ValueError("broken")

    stopping = process(
        records(1), handler, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Stop()
    )
    with pytest.raises(Exception, match="its policy is Stop: ValueError: broken") as error:
        stopping.collect()
    assert "Traceback" not in str(error.value).partition("JVM stacktrace")[0]


def test_outputs_are_a_column(records):
    """Ready to be written to Kafka or a table: topic, key, value, headers."""

    def handler(record):
        return [perkey.Produce({"n": record.offset}, topic="out", headers=[("h", b"1")])]

    rows = process(records(3), handler).selectExpr("offset", "explode(outputs) as o").collect()
    first = min(rows).o
    assert (first.topic, first.key, first.value) == ("out", b"k0", b'{"n":0}')
    assert [tuple(header) for header in first.headers] == [("h", b"1")]


def test_options_of_the_decorator_and_the_lifespan(records, tmp_path):
    """value= and output= as decorated; the lifespan opens and closes once in each task."""
    tell = teller(tmp_path)

    @contextlib.asynccontextmanager
    async def lifespan():
        tell("open")
        yield 1000
        tell("close")

    kafka = {"bootstrap.servers": "127.0.0.1:9"}
    app = perkey.App(group="g", kafka=kafka, lifespan=lifespan)

    @app.consume("t", value="json", output="out")
    async def handler(record):
        return str(record.value + app.state)

    rows = in_order(process(records(20), handler, slots=2))
    assert [row.outputs[0].value for row in rows] == [b"%d" % (1000 + n) for n in range(20)]
    assert sorted(line[0] for line in told(tmp_path)) == ["close", "close", "open", "open"]


def test_it_is_lazy(records, tmp_path):
    """Nothing runs before an action; two actions call the handler twice for each record."""
    tell = teller(tmp_path)
    results = process(records(5), lambda record: tell(record.offset))
    assert told(tmp_path) == []
    results.write.format("noop").mode("overwrite").save()
    results.write.format("noop").mode("overwrite").save()
    assert sorted(int(line[0]) for line in told(tmp_path)) == sorted([*range(5)] * 2)


@pytest.mark.long
def test_records_of_a_real_topic_with_timestamps_and_headers(read, topic, produce):
    """Straight from the source: null keys, tombstones, timestamps and headers reach the handler."""
    name = topic(partitions=2)
    produce(name, ["a", None], partition=1, key=b"k", timestamp=1_700_000_000_123)
    produce(name, ["b"], partition=0, headers=[("h", b"1")], timestamp=1_700_000_000_456)

    def handler(record):
        return perkey.Produce(repr(tuple(record)[3:7]), topic="out")

    df = read(name, includeHeaders="true")
    rows = in_order(process(df, handler))
    assert [row.outputs[0].value.decode() for row in rows] == [
        "(1700000000456, None, b'b', (('h', b'1'),))",
        "(1700000000123, b'k', b'a', ())",
        "(1700000000123, b'k', None, ())",
    ]


def test_missing_columns_are_named_before_any_job(spark):
    """The line says what is missing and what is needed."""
    df = spark.range(1).selectExpr("'t' as topic", "id as offset", "'v' as value")
    with pytest.raises(ConfigError, match="no column partition and no column key: it needs topic"):
        process(df, print)


@pytest.mark.parametrize(
    ("column", "kind", "wanted"),
    [
        ("topic", "binary", "string"),
        ("partition", "string", "int"),
        ("offset", "double", "long"),
        ("key", "int", "binary or string"),
        ("value", "array<int>", "binary or string"),
        ("timestamp", "long", "timestamp"),
        ("headers", "array<string>", "array<struct<key: string, value: binary>>"),
    ],
)
def test_columns_of_a_wrong_type_are_named(spark, column, kind, wanted):
    """The line says which column, what it is and what it must be."""
    types = dict(field.split() for field in COLUMNS) | {column: kind}
    df = spark.createDataFrame([], ", ".join(f"`{name}` {t}" for name, t in types.items()))
    with pytest.raises(ConfigError) as error:
        process(df, print)
    assert f"column {column} is " in str(error.value)
    assert f", not {wanted}: cast or rename it" in str(error.value)
    assert "\n" not in str(error.value)


def test_text_columns_are_taken_as_their_bytes(spark):
    """cast(value as string), as most jobs write it, needs no way back."""
    df = spark.createDataFrame(
        [("t", 0, 0, "clé", "{}")],
        "topic string, partition int, offset long, key string, value string",
    )

    def handler(record):
        assert record.value == {}

    (row,) = process(df, handler, value="json").collect()
    assert (row.status, row.error, row.key) == ("done", None, "clé".encode())


def test_what_is_no_dataframe_and_columns_that_stand_twice(spark, records):
    """Both are told in one line."""
    with pytest.raises(ConfigError, match="the first argument is list, not a DataFrame"):
        process([], print)
    twice = records(1).selectExpr("*", "'u' as topic")
    with pytest.raises(ConfigError, match="two columns are named topic"):
        process(twice, print)


def test_a_handler_that_cannot_be_pickled(records):
    """Told when process is called, with the culprit's name."""
    lock = __import__("threading").Lock()

    def handler(record):
        return lock

    with pytest.raises(ConfigError, match="handler uses 'lock', a lock: open what belongs to"):
        process(records(1), handler)


@pytest.mark.long
def test_a_batch_that_failed_continues_behind_what_it_finished(records, tmp_path, monkeypatch):
    """`progress=`: the second job calls the handler for the rest; all rows are in its result."""
    (calls := tmp_path / "calls").mkdir()
    tell = teller(calls)
    broken = str(tmp_path / "broken")
    Path(broken).touch()

    async def handler(record):
        if record.offset == 350 and os.path.exists(broken):  # noqa: ASYNC240, PTH110  # in Spark's worker
            raise ValueError("broken")
        tell(record.offset)
        return record.value

    def job(df, **more):
        return process(
            df, handler, progress=str(tmp_path / "done"), retry=perkey.Retry(attempts=1),
            on_exhausted=perkey.Stop(), concurrency=5, **more,
        )  # fmt: skip

    df = records(400).repartition(3)
    with pytest.raises(Exception, match="broken"):
        job(df, slots=2, carry=["value"]).collect()
    Path(broken).unlink()
    before = len(told(calls))
    rows = in_order(job(df, carry=["value"]))
    assert [row.offset for row in rows] == list(range(400))
    assert all(row.outputs[0].value == row.value for row in rows)
    assert 400 <= len(told(calls)) <= 400 + before
    assert in_order(job(df, carry=["value"])) == rows
    assert 400 <= len(told(calls)) <= 400 + before
    with pytest.raises(ConfigError, match="a job with slots=2, and this one has 3"):
        job(df, slots=3, carry=["value"])
