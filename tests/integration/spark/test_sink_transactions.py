"""`transactional=true`: a batch that is repeated adds nothing, whoever was killed in between."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.spark.example_kit import example, kill
from tests.integration.spark.sink_kit import values
from tests.support.waiting import wait_for

from perkey.spark.sink.options import sink_options
from perkey.spark.sink.plain import Sending
from perkey.spark.sink.protocol import SinkError, Task, Written
from perkey.spark.sink.transactions import finish_batch, write_transaction

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def rows(*numbers: int, keys: bool = True) -> pa.RecordBatch:
    columns = {"value": [str(n) for n in numbers]}
    if keys:
        columns["key"] = [f"k{n}" for n in numbers]
    return pa.RecordBatch.from_pydict(columns)


class Query:
    """A query without Spark: what its tasks do, and what the driver does after them."""

    def __init__(self, broker, topic, session="run-1"):
        base = {"kafka.bootstrap.servers": broker.bootstrap, "transactional": "true"}
        self.options = sink_options({**base, **({"topic": topic} if topic else {})})
        self.name = f"perkey-sink-{uuid.uuid4().hex}"
        self.session = session

    def task(self, number: int, batch: int, *batches: pa.RecordBatch) -> Written:
        task = Task(number, batch, self.session)
        return write_transaction(batches, self.options, self.name, task)

    def write(self, batch: int, *batches: pa.RecordBatch) -> tuple[int, int]:
        """As task 0: its rows, and how many of them were written now."""
        written = self.task(0, batch, *batches)
        return written.rows, written.new

    def finish(self, batch: int, *tasks: Written) -> None:
        finish_batch(self.options, self.name, batch, tasks)


@pytest.fixture
def query(kafka_broker, topic):
    made = Query(kafka_broker, topic(2))
    made.values = lambda: values(kafka_broker, made.options.topic)
    return made


def test_a_repeated_attempt_adds_nothing(query):
    """The marker in the transaction shows that the batch was committed; the next one is written."""
    assert query.write(0, rows(1, 2), rows(3)) == (3, 3)
    assert query.write(0, rows(1, 2), rows(3)) == (3, 0)
    assert query.write(0, rows(3), rows(2, 1)) == (3, 0), "the order of rows does not matter"
    assert query.write(1, rows(4)) == (1, 1)
    assert query.write(0, rows(9)) == (1, 0), "a late attempt of an older batch"
    assert query.write(2) == (0, 0), "no rows, no transaction"
    assert query.values() == ["1", "2", "3", "4"]


def test_a_batch_half_committed_is_finished_by_another_number_of_tasks(query):
    """Two tasks, of which one committed; then three with other rows each, and equal rows in two."""
    query.task(0, 0, rows(*range(100), 7))
    query.session = "run-2"
    again = [
        query.task(0, 0, rows(*range(7, 150))),
        query.task(1, 0, rows(*range(150, 200), 7)),
        query.task(2, 0, rows(*range(7))),
    ]
    assert [task.new for task in again] == [50, 50, 0]
    query.finish(0, *again)
    assert query.values() == sorted(map(str, [*range(200), 7]))
    assert query.task(3, 0, rows(1)).new == 0, "the batch is finished"
    query.finish(1, query.task(5, 1, rows(1, 1)))
    assert query.values() == sorted(map(str, [*range(200), 7, 1, 1]))


@pytest.mark.long
def test_copies_recognised_by_two_tasks_are_written_when_the_batch_is_finished(query):
    """One of three equal rows is in Kafka; two tasks take it for theirs."""
    query.task(0, 0, rows(7, 8))
    query.session = "run-2"
    again = [query.task(0, 0, rows(7, 7)), query.task(1, 0, rows(8, 7))]
    assert [task.new for task in again] == [1, 0]
    query.finish(0, *again)
    assert query.values() == ["7", "7", "7", "8"]


def test_a_run_that_was_superseded_writes_nothing(query):
    """Its late tasks end with one line; also one whose number the new run does not use."""
    query.task(0, 0, rows(1))
    query.session = "run-2"
    assert query.task(0, 0, rows(1, 2)).new == 1
    query.session = "run-1"
    with pytest.raises(SinkError, match="another run of this query has taken over"):
        query.task(9, 0, rows(2))
    assert query.values() == ["1", "2"]


@pytest.mark.long
def test_topics_in_a_column_are_recognised_too(kafka_broker, topic):
    """A topic that comes later in the batch is noted before its first row."""
    names = [topic(), topic(2)]
    query = Query(kafka_broker, None)
    both = [pa.RecordBatch.from_pydict({"value": ["v"], "topic": [name]}) for name in names]
    query.task(0, 0, *both)
    query.session = "run-2"
    again = [query.task(0, 0, both[1]), query.task(1, 0, both[0], both[1])]
    assert [task.new for task in again] == [0, 0]
    query.finish(0, *again)
    assert [values(kafka_broker, name) for name in names] == [["v"], ["v", "v"]]


@pytest.mark.long
def test_an_attempt_that_fails_leaves_nothing(query):
    """Rows of an attempt that ended in the middle are aborted by the next one."""

    def broken():
        yield rows(1, 2)
        raise ZeroDivisionError

    task = Task(0, 0, query.session)
    with pytest.raises(ZeroDivisionError):
        write_transaction(broken(), query.options, query.name, task)
    assert query.write(0, rows(1, 2)) == (2, 2)
    assert query.values() == ["1", "2"]


def test_an_attempt_that_was_given_up_cannot_commit(query, monkeypatch):
    """A zombie that wakes after the next run has finished: Kafka refuses its transaction."""
    began, sent, go, outcome = threading.Event(), threading.Event(), threading.Event(), []
    send = Sending.send

    def noted(sending, rows):
        send(sending, rows)
        sending.flush()
        sent.set()

    monkeypatch.setattr(Sending, "send", noted)

    def slow():
        yield rows(1, 2)
        while not sent.is_set():  # rows are read ahead while the transaction is opened
            yield rows(3)
        began.set()
        go.wait(60)

    def zombie():
        try:
            task = Task(3, 0, "run-1")
            outcome.append(write_transaction(slow(), query.options, query.name, task))
        except SinkError as error:
            outcome.append(error)

    thread = threading.Thread(target=zombie, daemon=True)
    thread.start()
    try:
        assert began.wait(60)
        query.session = "run-2"
        assert query.write(0, rows(1, 2)) == (2, 2)
    finally:
        go.set()
        thread.join(60)
    assert isinstance(outcome[0], SinkError)
    assert query.values() == ["1", "2"]


@pytest.mark.parametrize("keys", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_attempt_with_other_rows_is_refused(query, keys):
    """Plans with chance in them would lose rows: the line names the batch and the way out."""
    query.write(0, rows(1, 2, keys=keys))
    for other in (rows(1, 3, keys=keys), rows(1, keys=keys)):
        with pytest.raises(SinkError, match=r"batch 0 was written before with other rows.*=false"):
            query.write(0, other)
    assert query.values() == ["1", "2"]


@pytest.mark.long
def test_a_repeated_batch_with_other_rows_is_refused_before_it_is_written_twice(query):
    """The first repeat finds out after its tasks; the ones after it write nothing."""
    query.task(0, 0, rows(1, 2))
    query.session = "run-2"
    with pytest.raises(SinkError, match=r"cannot be finished: 2 rows .*transactional=false"):
        query.finish(0, query.task(0, 0, rows(3, 4, 5)))
    query.session = "run-3"
    with pytest.raises(SinkError, match="batch 0 cannot be finished"):
        query.task(0, 0, rows(6, 7))
    query.finish(1, query.task(0, 1, rows(9)))
    assert query.values() == ["1", "2", "3", "4", "5", "9"]


#: Topic to topic; all tasks but the first one take their time.
JOB = """
import sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession
from perkey.spark import KafkaSource

bootstrap, source, target, checkpoint, slow_s, tasks = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(KafkaSource)
kafka = {"kafka.bootstrap.servers": bootstrap}

def slowly(batches):
    for batch in batches:
        if batch.num_rows and TaskContext.get().partitionId():
            time.sleep(float(slow_s))
        yield batch

df = (spark.readStream.format("perkey").options(**kafka).option("subscribe", source)
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load())
rows = df.selectExpr("key", "value").repartition(int(tasks), "key").mapInArrow(
    slowly, "key binary, value binary")
query = (rows.writeStream.format("perkey").options(**kafka).option("topic", target)
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
        group = f"perkey-sink-{query}-0"
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        mark = consumer.committed([TopicPartition(self.target, 0)], 60)[0].offset
        consumer.close()
        return mark > 0 and mark - 1 not in self.logged("commits")

    def uncommit_last(self) -> None:
        """Leave what a kill leaves between the last task's end and Spark's commit log."""
        last = max(self.logged("commits"))
        for name in (str(last), f".{last}.crc"):
            (self.folder / "commits" / name).unlink(missing_ok=True)


#: how many tasks each run has: all but the last two are killed
LAYOUTS = [[2, 3, 3], [3, 2, 4, 4, 1, 3]]


@pytest.mark.long
@pytest.mark.parametrize("layouts", LAYOUTS, ids=["once", "often"])
def test_killed_between_the_tasks_of_a_batch_every_row_is_there_once(
    kafka_broker, topic, produce, tmp_path, layouts
):
    """Kill -9 with one transaction of a batch committed, repeated with other numbers of tasks."""
    source, target = topic(2), topic(2)
    for partition in (0, 1):
        values_ = [f"{partition}-{n:03}" for n in range(60)]
        for value in values_:
            produce(source, [value], partition=partition, key=value.encode())
    script = tmp_path / "job.py"
    script.write_text(JOB)
    checkpoint = Checkpoint(tmp_path / "c", kafka_broker, target)
    command = (str(script), kafka_broker.bootstrap, source, target, str(checkpoint.folder))
    *killed, last, again = map(str, layouts)
    for tasks in killed:
        with example(*command, "4", tasks, log=tmp_path / "log") as process:
            wait_for(lambda: checkpoint.half_written() or process.poll() is not None, 300)
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            kill(process)
    for tasks in (last, again):
        with example(*command, "0", tasks, log=tmp_path / "log") as process:
            assert process.wait(200) == 0, (tmp_path / "log").read_text()[-3000:]
        found = values(kafka_broker, target)
        assert found == sorted(f"{p}-{n:03}" for p in (0, 1) for n in range(60))
        checkpoint.uncommit_last()
