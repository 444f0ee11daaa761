"""The example that brings results into a table: exactly once, wherever it is killed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from tests.integration.spark.example_kit import example, kill, run
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCRIPT = "results_to_parquet.py"
RECORDS, BATCH, WAIT_S = 150, 25, 300
DAY_1 = int(dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC).timestamp() * 1000)
DAY_MS = 86_400_000


class Table:
    """The table, its checkpoint, and what is in them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "alerts"
        self.checkpoint = folder / "alerts-checkpoint"

    def logged(self, log: str) -> set[int]:
        """Batches in the write-ahead log ("offsets") or the commit log ("commits")."""
        return numbers(self.checkpoint / log)

    def recorded(self) -> set[int]:
        """Batches whose files the sink has recorded."""
        return numbers(self.path / "_spark_metadata")

    def files(self) -> int:
        """Data files, of recorded batches or not."""
        return len(list(self.path.glob("date=*/*.parquet")))

    def files_recorded(self) -> int:
        """Data files that the sink has recorded: a line of JSON each in its log."""
        logs = list((self.path / "_spark_metadata").glob("[0-9]*"))
        compacted = [path for path in logs if path.suffix == ".compact"]
        after = max((int(path.stem) for path in compacted), default=-1)
        plain = [path for path in logs if not path.suffix and int(path.stem) > after]
        last = [path for path in compacted if int(path.stem) == after]
        return sum(path.read_text().count('"path"') for path in plain + last)

    def uncommit_last(self) -> None:
        """Leave what a kill leaves that comes after the sink's record and before the commit."""
        last = max(self.recorded())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        assert last in self.logged("offsets")
        assert last not in self.logged("commits")


def numbers(folder: Path) -> set[int]:
    """Names of files that are numbers; the sink's compacted ones count by their number."""
    found = folder.iterdir() if folder.exists() else ()
    return {int(path.stem) for path in found if path.stem.isdigit()}


def planned_not_committed(table: Table) -> bool:
    """A batch is in the write-ahead log and not in the commit log."""
    return bool(table.logged("offsets") - table.logged("commits"))


def files_not_recorded(table: Table) -> bool:
    """Files of a batch are written that the sink has not recorded."""
    begun = table.logged("offsets") - table.recorded()
    return len(table.recorded()) >= 1 and bool(begun) and table.files() > table.files_recorded()


@pytest.fixture
def alerts(topic, produce):
    """A topic with alerts of three days."""
    name = topic(partitions=2, prefix="alerts")
    for kind in range(6):
        values = [f"alert {number}" for number in range(kind, RECORDS, 6)]
        at = DAY_1 + (kind % 3) * DAY_MS
        produce(name, values, partition=kind % 2, key=b"k", timestamp=at)
    return name


@pytest.mark.long
def test_killed_between_commit_points_every_row_is_there_once(
    spark, kafka_broker, alerts, tmp_path
):
    """Kill -9 with a batch planned, with files written, and with a batch recorded: then a restart."""
    table = Table(tmp_path)
    command = (
        *(SCRIPT, kafka_broker.bootstrap, alerts, str(table.path), "--once"),
        *("--batch-records", str(BATCH)),
    )
    for moment in (planned_not_committed, files_not_recorded):
        with example(*command) as process:
            wait_for(lambda now=moment: now(table) or process.poll() is not None, WAIT_S)
            assert process.poll() is None, "it ended before it could be killed"
            kill(process)
    assert len(table.logged("commits")) < RECORDS // BATCH
    table.uncommit_last()

    run(*command, log=tmp_path / "log", timeout_s=WAIT_S)

    rows = spark.read.parquet(str(table.path)).collect()
    assert len(rows) == RECORDS
    assert {row.value for row in rows} == {b"alert %d" % n for n in range(RECORDS)}
    assert {(r.partition, r.offset) for r in rows} == {(n % 2, n // 2) for n in range(RECORDS)}
    assert {row.date for row in rows} == {dt.date(2026, 3, day) for day in (1, 2, 3)}
    assert all(row.date == row.timestamp.date() for row in rows)
