"""`transactional=true`: a batch that is repeated adds nothing, whoever was killed in between."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.spark.example_kit import example, kill
from tests.integration.spark.sink_kit import values

from weft.broker.process import wait_until
from weft.spark.sink.options import sink_options
from weft.spark.sink.plain import SinkError
from weft.spark.sink.transactions import Place, write_transaction

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def rows(*numbers: int, keys: bool = True) -> pa.RecordBatch:
    columns = {"value": [str(n) for n in numbers]}
    if keys:
        columns["key"] = [f"k{n}" for n in numbers]
    return pa.RecordBatch.from_pydict(columns)


class Task:
    """One task of a query, without Spark: what `write` does, called batch by batch."""

    def __init__(self, broker, topic):
        base = {"kafka.bootstrap.servers": broker.bootstrap, "transactional": "true"}
        self.options = sink_options({**base, "topic": topic})
        self.id = f"weft-sink-{uuid.uuid4().hex}-0"

    def write(self, batch: int, *batches: pa.RecordBatch):
        return write_transaction(batches, self.options, Place(self.id, batch))


@pytest.fixture
def task(kafka_broker, topic):
    made = Task(kafka_broker, topic(2))
    made.values = lambda: values(kafka_broker, made.options.topic)
    return made


def test_a_repeated_batch_adds_nothing(task):
    """The marker in the transaction says that it was committed; the next batch is written."""
    assert task.write(0, rows(1, 2), rows(3)) == (3, True)
    assert task.write(0, rows(1, 2), rows(3)) == (3, False)
    assert task.write(0, rows(3), rows(2, 1)) == (3, False), "the order of rows says nothing"
    assert task.write(1, rows(4)) == (1, True)
    assert task.write(0, rows(9)) == (1, False), "a late attempt of an older batch"
    assert task.write(2) == (0, False), "no rows, no transaction"
    assert task.values() == ["1", "2", "3", "4"]


def test_a_repeat_in_another_order_over_several_topics_adds_nothing(kafka_broker, topic):
    """The marker stands under every topic of the batch, so whichever row comes first finds it."""
    names = [topic(), topic()]
    made = Task(kafka_broker, "unused")
    options = sink_options({"kafka.bootstrap.servers": kafka_broker.bootstrap})
    both = [pa.RecordBatch.from_pydict({"value": ["v"], "topic": [name]}) for name in names]
    assert write_transaction(both, options, Place(made.id, 0)) == (2, True)
    assert write_transaction(both[::-1], options, Place(made.id, 0)) == (2, False)
    assert [values(kafka_broker, name) for name in names] == [["v"], ["v"]]


def test_an_attempt_that_fails_leaves_nothing(task):
    """Rows of an attempt that ended in the middle are aborted by the next one."""

    def broken():
        yield rows(1, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_transaction(broken(), task.options, Place(task.id, 0))
    assert task.write(0, rows(1, 2)) == (2, True)
    assert task.values() == ["1", "2"]


def test_an_attempt_that_was_given_up_cannot_commit(task):
    """A zombie that wakes after the second attempt has finished: Kafka refuses its transaction."""
    began, go, outcome = threading.Event(), threading.Event(), []

    def slow():
        yield rows(1, 2)
        began.set()
        go.wait(60)

    def zombie():
        try:
            outcome.append(write_transaction(slow(), task.options, Place(task.id, 0)))
        except SinkError as error:
            outcome.append(error)

    thread = threading.Thread(target=zombie, daemon=True)
    thread.start()
    try:
        assert began.wait(60)
        assert task.write(0, rows(1, 2)) == (2, True)
    finally:
        go.set()
        thread.join(60)
    assert isinstance(outcome[0], SinkError)
    assert task.values() == ["1", "2"]


@pytest.mark.parametrize("keys", [True, False])
def test_a_repeat_with_other_rows_is_told(task, keys):
    """Plans with chance in them would lose rows: the line names the batch and the cure."""
    task.write(0, rows(1, 2, keys=keys))
    for other in (rows(1, 3, keys=keys), rows(1, keys=keys)):
        with pytest.raises(SinkError, match="batch 0 was written before with other rows"):
            task.write(0, other)
    assert task.values() == ["1", "2"]


#: Topic to topic, two tasks, of which the second one takes its time.
JOB = """
import sys, time
from pyspark.sql import SparkSession
from weft.spark import KafkaSource

bootstrap, source, target, checkpoint, slow_s = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(KafkaSource)
kafka = {"kafka.bootstrap.servers": bootstrap}

def slowly(batches):
    for batch in batches:
        if batch.num_rows and batch.column("partition")[0].as_py() == 1:
            time.sleep(float(slow_s))
        yield batch

df = (spark.readStream.format("weft").options(**kafka).option("subscribe", source)
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20").load())
rows = df.selectExpr("key", "value", "partition").mapInArrow(
    slowly, "key binary, value binary, partition int")
query = (rows.writeStream.format("weft").options(**kafka).option("topic", target)
    .option("transactional", "true").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start())
query.awaitTermination()
"""


class Checkpoint:
    """What a query has logged, and which batch its first task has committed to Kafka."""

    def __init__(self, folder: Path, broker, target: str):
        self.folder, self.bootstrap, self.target = folder, broker.bootstrap, target

    def logged(self, log: str) -> set[int]:
        place = self.folder / log
        found = place.iterdir() if place.exists() else ()
        return {int(path.name) for path in found if path.name.isdigit()}

    def half_written(self) -> bool:
        """Task 0 has its transaction, Spark does not know yet that the batch is finished."""
        try:
            query = json.loads((self.folder / "metadata").read_text())["id"]
        except (FileNotFoundError, ValueError):
            return False
        group = f"weft-sink-{query}-0"
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        mark = consumer.committed([TopicPartition(self.target, 0)], 60)[0].offset
        consumer.close()
        return mark > 0 and mark - 1 not in self.logged("commits")

    def uncommit_last(self) -> None:
        """Leave what a kill leaves between the last task's end and Spark's commit log."""
        last = max(self.logged("commits"))
        for name in (str(last), f".{last}.crc"):
            (self.folder / "commits" / name).unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_killed_between_the_tasks_of_a_batch_every_row_is_there_once(
    kafka_broker, topic, produce, tmp_path, kills
):
    """Kill -9 of the whole job with one of two transactions committed, then again and again."""
    source, target = topic(2), topic(2)
    for partition in (0, 1):
        values_ = [f"{partition}-{n:03}" for n in range(60)]
        for value in values_:
            produce(source, [value], partition=partition, key=value.encode())
    script = tmp_path / "job.py"
    script.write_text(JOB)
    checkpoint = Checkpoint(tmp_path / "c", kafka_broker, target)
    command = (str(script), kafka_broker.bootstrap, source, target, str(checkpoint.folder))
    for _ in range(kills):
        with example(*command, "4", log=tmp_path / "log") as process:
            assert wait_until(
                lambda: checkpoint.half_written() or not psutil.pid_exists(process.pid), 300
            )
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            kill(process)
    for _ in range(2):
        with example(*command, "0", log=tmp_path / "log") as process:
            assert process.wait(200) == 0, (tmp_path / "log").read_text()[-3000:]
        found = values(kafka_broker, target)
        assert found == sorted(f"{p}-{n:03}" for p in (0, 1) for n in range(60))
        checkpoint.uncommit_last()
