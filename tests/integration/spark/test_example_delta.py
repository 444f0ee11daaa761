"""examples/pipeline into a Delta table: PySpark 4.2 and a fleet, killed, then run in another size."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
from tests.integration.spark.example_kit import SPARK, example, run
from tests.integration.spark.test_example_pipeline import (
    BATCH,
    RIDES,
    SCRIPT,
    TARIFFS,
    WAIT_S,
    broker,
    cost,
    feed,
    killed_when,
    owners,
    ride,
)  # fmt: skip
from tests.integration.spark.test_table_runtimes import DELTA
from tests.integration.spark.test_versions import ROOT, python_of
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1800)]
__all__ = ["broker"]

GOOD = [number for number in range(RIDES) if ride(number)["zone"] != "west"]


def commits(table: Path) -> list[list[dict[str, Any]]]:
    """The rows of each commit, in the order in which they were written: DuckDB reads its files."""
    found = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        rows = []
        for name in [one["add"]["path"] for one in actions if "add" in one]:
            read = duckdb.connect().execute("select * from read_parquet(?)", [str(table / name)])
            names = [column[0] for column in read.description]
            rows += [dict(zip(names, row, strict=True)) for row in read.fetchall()]
        found.append(rows)
    return [rows for rows in found if rows]


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rides cost, by number."""
    fields = ("ride", "vehicle", "owner", "cost")
    return sorted(({name: row[name] for name in fields} for row in rows), key=lambda r: r["ride"])


def in_order(rows: list[dict[str, Any]]) -> bool:
    """A vehicle's rows were written in the order of their offsets."""
    lanes: dict[Any, list[int]] = {}
    for row in rows:
        lanes.setdefault((row["partition"], row["key"]), []).append(row["offset"])
    return all(a < b for offsets in lanes.values() for a, b in pairwise(offsets))


def changes(look: Callable[[], Any]) -> Callable[[], bool]:
    """Whether it is another one than now."""
    before = look()
    return lambda: look() != before


def spark_of(cores: int) -> str:
    """The arguments of a session with Delta."""
    conf = " ".join(f"--conf {name}={value}" for name, value in DELTA.items())
    return SPARK.replace("local[2]", f"local[{cores}]").replace(
        "pyspark-shell", f"{conf} pyspark-shell"
    )


def threads(process: psutil.Process) -> int:
    """How many threads a Python worker has: a member has many, the daemon and idle ones have few."""
    try:
        is_worker = "pyspark.daemon" in " ".join(process.cmdline())
        return process.num_threads() if is_worker else 0
    except psutil.Error:  # it has ended
        return 0


@pytest.mark.java
def test_a_delta_table_by_spark_killed_and_resumed_in_other_sizes(broker, tmp_path) -> None:
    """Killed in a batch, behind a table's commit, and in the replay: each ride is one row."""
    feed(broker)
    log, tariffs, table = tmp_path / "log", tmp_path / "tariffs.json", tmp_path / "rides"
    tariffs.write_text(json.dumps(TARIFFS))
    python = str(python_of("4.2"))
    step = (broker.bootstrap, str(tmp_path), "--delta")
    settings = {
        "TARIFFS": str(tariffs), "BATCH_RECORDS": str(2 * BATCH), **owners(tmp_path), "python": python,
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip

    def sized(cores: int, slots: int) -> dict[str, str]:
        return {**settings, "SLOTS": str(slots), "PYSPARK_SUBMIT_ARGS": spark_of(cores)}

    def logged(name: str) -> int:
        return len(list((tmp_path / "checkpoint" / name).glob("[0-9]*")))

    def versions() -> int:
        return len(list((table / "_delta_log").glob("*.json")))

    batch_begins, table_grows = (lambda: logged("offsets") > logged("commits")), changes(versions)
    killed_when(batch_begins, SCRIPT, "run", *step, log=log, **sized(2, 2))
    killed_when(table_grows, SCRIPT, "run", *step, log=log, **sized(3, 5))
    run(SCRIPT, "run", *step, log=log, timeout_s=WAIT_S, **sized(2, 3))
    rows = [row for one in commits(table) for row in one]
    assert len(rows) == RIDES + 1
    done = [row for row in rows if row["status"] == "done"]
    assert counted(done) == [cost(number, TARIFFS) for number in GOOD]
    assert in_order(done)

    mended = {**TARIFFS, "west": 3.0}
    tariffs.write_text(json.dumps(mended))
    begun = changes(lambda: len(list(table.glob("*.parquet"))))
    killed_when(begun, SCRIPT, "replay", *step, log=log, **sized(2, 2))
    run(SCRIPT, "replay", *step, log=log, timeout_s=WAIT_S, **sized(3, 4))
    done = [row for one in commits(table) for row in one if row["status"] == "done"]
    assert counted(done) == [cost(number, mended) for number in range(RIDES)]


def test_a_delta_table_by_a_fleet_killed_and_resumed_in_other_sizes(broker, tmp_path) -> None:
    """Driver and members killed with two, started with three, one of which is killed."""
    feed(broker)
    log, table = tmp_path / "log", tmp_path / "live"
    run(SCRIPT, "prepare", broker.bootstrap, str(tmp_path), log=log, timeout_s=WAIT_S, **owners(tmp_path))  # fmt: skip

    def fleet(members: int) -> tuple[str, ...]:
        return (
            "-m", "perkey.cli.main", "run", "pipeline.pipeline:app", "--until", "drained",
            "--engine", "spark", "--members", str(members), "--conf", "spark.ui.enabled=false",
            "--sink", f"delta:{table}",
            "--sink-schema", "ride long, vehicle string, owner string, cost double",
        )  # fmt: skip

    settings = {"BOOTSTRAP": broker.bootstrap, "PYTHONPATH": str(ROOT / "src")}
    killed_when(lambda: commits(table), *fleet(2), log=log, **settings)
    feed(broker)
    run(SCRIPT, "prepare", broker.bootstrap, str(tmp_path), log=log, timeout_s=WAIT_S, **owners(tmp_path))  # fmt: skip
    with example(*fleet(3), log=log, **settings) as driver:
        wait_for(lambda: b"assigned" in log.read_bytes() or driver.poll() is not None, WAIT_S)
        max(psutil.Process(driver.pid).children(recursive=True), key=threads).kill()
        assert driver.wait(WAIT_S) == 0, log.read_text()[-4_000:]
    rows = [row for one in commits(table) for row in one]
    twice = sorted([*GOOD, *GOOD])
    assert counted(rows) == [cost(number, TARIFFS) for number in twice]
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows)
    assert in_order(rows)
