"""A fleet's results into Delta and Iceberg tables: every row once, whatever is killed between two steps."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog
from pyiceberg.catalog import load_catalog
from tests.integration.spark.fleet_kit import START_S, fill, running
from tests.integration.spark.sink_kit import messages
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.kafka.admin import KafkaAdmin
from perkey.kafka.settings import client_settings
from perkey.spark import DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS, PARTITIONS = 1_200, 4

#: Members and the driver die by their own hand where a file in the folder says so. Records of each
#: key wait for a file, too: what a step's death needs is not handled before the last death.
JOB = """
import asyncio, logging, os, signal, time
from contextlib import asynccontextmanager
from pathlib import Path
import perkey
from perkey.spark import DeltaTable, IcebergTable

HERE = Path({here!r})

def dies_once(when):
    try:
        os.rename(HERE / f"die-{{when}}", HERE / f"died-{{when}}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

@asynccontextmanager
async def lifespan(app):
    from perkey.spark.table.line import TableLine
    real = TableLine.hand_over
    def hand_over(self, *given):
        dies_once("before")
        after = (HERE / "die-between").exists()
        if after:  # the rows are with the driver, and the answer never comes
            send = self._send
            self._send = lambda message: (send(message), time.sleep(0.05), dies_once("between"))
        answer = real(self, *given)
        if answer is not None and "version" in answer:
            dies_once("after")
        return answer
    TableLine.hand_over = hand_over
    yield
    TableLine.hand_over = real

app = perkey.App(group={group!r}, kafka={kafka!r}, lifespan=lifespan, drain_timeout_s=60)

@app.consume({topic!r}, concurrency=20, value="json", output="unused",
             retry=perkey.Retry(attempts=1), on_exhausted=perkey.DeadLetter({dead!r}))
async def handle(record):
    await asyncio.sleep(0.005)
    for first, gate in {gates!r}.items():
        while record.value >= first and not (HERE / gate).exists():
            await asyncio.sleep(0.05)
    if record.value % 30 == 29:
        raise ValueError("no")
    if record.value % 30 == 28:
        return None
    return {{"n": record.value, "name": record.key.decode()}}

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    from perkey.spark.table import delta, iceberg
    for store in (delta.DeltaStore, iceberg.IcebergStore):
        def append(self, rows, *given, real=store.append):
            if rows.num_rows:
                dies_once("driver-before")
            version = real(self, rows, *given)
            if rows.num_rows:
                dies_once("driver-after")
            return version
        store.append = append
    table = {table}
    report = app.run(
        engine="spark", members={members}, master="local[{members}]", until="drained", sink=table,
        conf={{"spark.ui.enabled": "false", "perkey.control.wait_s": "{wait_s}"}})
    raise SystemExit(report.exit_code)
"""


TABLES = {
    "delta": 'DeltaTable(HERE / "table", "n long, name string", interval_s=0.3)',
    "iceberg": 'IcebergTable({"name": "here", "type": "sql", "uri": f"sqlite:///{HERE}/catalog.db", "warehouse": '
    'f"file://{HERE}/warehouse"}, "rides.checked", "n long, name string", interval_s=0.3)',
}


#: the first number within a key that waits for a file, by file
ONE_BY_ONE = {8: "died-before", 16: "died-between", 24: "died-after"}
AT_HALF = {15: "go"}
AT_START = {0: "go"}
MANY = 40


@pytest.fixture(params=["delta"])
def job(request, tmp_path, topic, kafka_broker) -> Any:
    """A folder with job.py for a topic with records in it."""
    members, partitions, gates = {
        test_members_killed_between_the_steps: (2, PARTITIONS, ONE_BY_ONE),
        test_forty_members_write_one_table: (MANY, MANY, AT_START),
    }.get(request.function, (2, PARTITIONS, AT_HALF))
    name, dead = topic(partitions, "table"), topic(1, "dead")
    fill(kafka_broker.bootstrap, name, RECORDS, partitions, keys=40)
    kafka = {
        "bootstrap.servers": kafka_broker.bootstrap,
        "session.timeout.ms": 120_000,
        "heartbeat.interval.ms": 500,
    }
    values = {"here": str(tmp_path), "group": f"g-{name}", "kafka": kafka, "topic": name}
    values |= {"dead": dead, "table": TABLES[request.param], "wait_s": START_S, "gates": gates}
    values["members"] = members
    (tmp_path / "job.py").write_text(JOB.format(**values))
    return tmp_path, name, dead


def run(folder: Path) -> Any:
    """The driver as its own process."""
    return running(folder, command=[sys.executable, "job.py"])


def rows(folder: Path) -> list[dict[str, Any]]:
    """What another reader sees in the files of the table's newest version."""
    files: list[str] = []
    if any((folder / "table" / "_delta_log").glob("*.json")):
        files = DeltaLog(folder / "table").file_uris()
    elif (folder / "catalog.db").exists():
        where = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        catalog = load_catalog("here", type="sql", **where)
        if catalog.table_exists("rides.checked"):
            plan = catalog.load_table("rides.checked").scan().plan_files()
            files = [one.file.file_path.removeprefix("file://") for one in plan]
    if not files:
        return []
    found = duckdb.connect().execute("select * from read_parquet(?)", [files])
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


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


@pytest.mark.parametrize(
    "job", ["delta", pytest.param("iceberg", marks=pytest.mark.long)], indirect=True
)
def test_members_killed_between_the_steps(job, kafka_broker) -> None:
    """Before the rows are with the driver, before its answer, and before offsets are committed."""
    folder, topic, dead = job
    for name in ("die-before", "die-between", "die-after"):
        (folder / name).touch()
    with run(folder) as fleet:
        assert fleet.wait(400) == 0, fleet.text
    assert sorted(path.name for path in folder.glob("died-*")) == [
        "died-after", "died-before", "died-between"
    ]  # fmt: skip
    check_whole(folder, kafka_broker, topic, dead)


@pytest.mark.long
@pytest.mark.parametrize("job", list(TABLES), indirect=True)
@pytest.mark.parametrize("when", ["driver-before", "driver-after", ""])
def test_a_driver_killed_and_started_again(job, kafka_broker, when) -> None:
    """Before and after a commit of the table, or at any time: the next run goes on."""
    folder, topic, dead = job
    if when:
        (folder / f"die-{when}").touch()
    with run(folder) as fleet:
        if not when:
            wait_for(lambda: len(rows(folder)) > 50, START_S, "the first rows")
            fleet.signal(signal.SIGKILL)
        assert fleet.process.wait(400) == -signal.SIGKILL
        before = len(rows(folder))
        (folder / "go").touch()
        with run(folder) as again:
            assert again.wait(400) == 0, again.text
    assert before < len(rows(folder))
    check_whole(folder, kafka_broker, topic, dead)


@pytest.mark.long
@pytest.mark.parametrize("job", list(TABLES), indirect=True)
def test_forty_members_write_one_table(job, kafka_broker) -> None:
    """Each has a partition before the first record is handled; one is killed; rows are there once."""
    folder, topic, dead = job
    (folder / "die-before").touch()
    with run(folder) as fleet:

        def at_work() -> int:
            return len(set(re.findall(r"member (\d+): assigned", fleet.text)))

        wait_for(lambda: at_work() == MANY or fleet.process.poll() is not None, 500, "40 at work")
        (folder / "go").touch()
        assert fleet.wait(300) == 0, fleet.text
    assert (folder / "died-before").exists()
    check_whole(folder, kafka_broker, topic, dead)


def test_what_cannot_be_is_reported_before_a_job_starts(
    spark, topic, kafka_broker, tmp_path
) -> None:
    """A table with another schema, and a schema that is none: one line, and no member starts."""
    DeltaLog.create(str(tmp_path / "theirs"), pa.schema([("other", pa.int64())]))
    app = perkey.App(group="g-refused", kafka={"bootstrap.servers": kafka_broker.bootstrap})

    @app.consume(topic(1, "refused"))
    def handle(record: perkey.Record) -> None: ...

    for schema, said in (
        ("n long", "has another schema: it has other int64"),
        ("n lng", "cannot be read"),
    ):
        with pytest.raises(perkey.ConfigError, match=said):
            app.run(
                engine="spark", spark=spark, members=1, sink=DeltaTable(tmp_path / "theirs", schema)
            )
