"""A fleet's results straight into a table: every row once, whatever is killed between two steps."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.spark.fleet_kit import START_S, fill, running, wait_until
from tests.integration.spark.sink_kit import messages

import weft
from weft.broker import LocalBroker
from weft.kafka.admin import KafkaAdmin
from weft.kafka.settings import client_settings
from weft.spark import ParquetTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS, PARTITIONS = 1_200, 4

#: Members die by their own hand where a file in the folder says so: before a file of the table has
#: its name, and after that, before the group's offsets are committed. The second half of each
#: key's records waits for a file, too.
JOB = """
import asyncio, os, signal
from contextlib import asynccontextmanager
from pathlib import Path
import weft
from weft.spark import ParquetTable

HERE = Path({here!r})

def dies_once(when):
    try:
        os.rename(HERE / f"die-{{when}}", HERE / f"died-{{when}}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

@asynccontextmanager
async def lifespan(app):
    from weft.spark.table import log
    real = log.linked
    def linked(staged, target):
        dies_once("before")
        done = real(staged, target)
        dies_once("after")
        return done
    log.linked = linked
    yield
    log.linked = real

app = weft.App(group={group!r}, kafka={kafka!r}, lifespan=lifespan, drain_timeout_s=60)

@app.consume({topic!r}, concurrency=20, value="json", output="unused",
             retry=weft.Retry(attempts=1), on_exhausted=weft.DeadLetter({dead!r}))
async def handle(record):
    await asyncio.sleep(0.005)
    while record.value >= 15 and not (HERE / "go").exists():
        await asyncio.sleep(0.05)
    if record.value % 30 == 29:
        raise ValueError("no")
    if record.value % 30 == 28:
        return None
    return {{"n": record.value, "name": record.key.decode()}}

if __name__ == "__main__":
    table = ParquetTable(HERE / "table", schema={schema!r}, interval_s=0.3)
    app.run(engine="spark", members=2, master="local[2]", until="drained", sink=table,
            conf={{"spark.ui.enabled": "false", "weft.control.wait_s": "{wait_s}"}})
"""


@pytest.fixture
def job(tmp_path, topic, kafka_broker) -> Any:
    """A folder with job.py for a topic with records in it."""
    name, dead = topic(PARTITIONS, "table"), topic(1, "dead")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS, keys=40)
    kafka = {
        "bootstrap.servers": kafka_broker.bootstrap,
        "session.timeout.ms": 120_000,
        "heartbeat.interval.ms": 500,
    }
    values = {"here": str(tmp_path), "group": f"g-{name}", "kafka": kafka, "topic": name}
    text = JOB.format(**values, dead=dead, schema="n long, name string", wait_s=START_S)
    (tmp_path / "job.py").write_text(text)
    return tmp_path, name, dead


def run(folder: Path) -> Any:
    """The driver as its own process."""
    return running(folder, command=[sys.executable, "job.py"])


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a reader of the folder sees."""
    table = folder / "table"
    return pq.read_table(table).to_pylist() if list(table.glob("*.parquet")) else []


def check_whole(folder: Path, broker: LocalBroker, topic: str, dead: str) -> None:
    """Every result once, every failure a dead letter, and the group is at the end."""
    found = rows(folder)
    assert set(Counter((one["partition"], one["offset"]) for one in found).values()) == {1}
    numbers = RECORDS // 40
    expected = sorted(
        (f"k{key}", n) for key in range(40) for n in range(numbers) if n % 30 not in (28, 29)
    )
    assert sorted((one["name"], one["n"]) for one in found) == expected
    assert {one.key() for one in messages(broker, dead)} == {b"k%d" % key for key in range(40)}
    settings = client_settings(
        {"bootstrap.servers": broker.bootstrap}, {}, group=f"g-{topic}", buffer_records=1_000,
        buffer_bytes=2**20, delivery="at_least_once",
    )  # fmt: skip
    with KafkaAdmin(settings) as admin:
        ends = admin.ends([topic], committed=True, timeout_s=60)
        assert admin.group_offsets(f"g-{topic}", list(ends), 60) == ends


def test_members_killed_between_the_steps(job, kafka_broker) -> None:
    """One dies before its file has its name, one after, before the offsets are committed."""
    folder, topic, dead = job
    for name in ("die-before", "die-after", "go"):
        (folder / name).touch()
    with run(folder) as fleet:
        assert fleet.wait(200) == 0, fleet.text
    assert (folder / "died-before").exists()
    assert (folder / "died-after").exists()
    check_whole(folder, kafka_broker, topic, dead)


@pytest.mark.long
def test_a_driver_killed_and_started_again(job, kafka_broker) -> None:
    """Kill -9 of the driver while rows come: the next run goes on, and nothing is there twice."""
    folder, topic, dead = job
    with run(folder) as fleet:
        wait_until(lambda: len(rows(folder)) > 50, START_S, "the first rows")
        fleet.signal(signal.SIGKILL)
        fleet.process.wait(60)
        before = len(rows(folder))
        (folder / "go").touch()
        with run(folder) as again:
            assert again.wait(200) == 0, again.text
    assert before < len(rows(folder))
    check_whole(folder, kafka_broker, topic, dead)


@pytest.mark.parametrize(
    ("schema", "said"),
    [("n long", "has another schema: it has other int64"), ("n lng", "cannot be read")],
)
def test_what_cannot_be_is_said_before_a_job_starts(
    spark, topic, kafka_broker, tmp_path, schema, said
) -> None:
    """A table with another schema, and a schema that is none: one line, and no member starts."""
    pq.write_table(pa.table({"other": [1]}), tmp_path / "theirs.parquet")
    app = weft.App(group="g-refused", kafka={"bootstrap.servers": kafka_broker.bootstrap})

    @app.consume(topic(1, "refused"))
    def handle(record: weft.Record) -> None: ...

    with pytest.raises(weft.ConfigError, match=said):
        app.run(engine="spark", spark=spark, members=1, sink=ParquetTable(tmp_path, schema))
