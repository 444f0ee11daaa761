"""The whole way of examples/pipeline: topic, join, ordered handling, two tables, and back."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.integration.spark.example_kit import example, kill, run
from tests.integration.spark.sink_kit import messages
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

SCRIPT = "pipeline/pipeline.py"
RIDES, VEHICLES, BATCH, WAIT_S = 120, 5, 30, 300
TARIFFS = {"north": 1.5, "south": 2.0}
#: the last vehicle has none
OWNERS = ("Ada", "Ben", "Cleo", "Dan", None)
BROKEN = b"{no json \xff"


@pytest.fixture
def broker():
    """A broker of its own, which may be killed; the example's topics have fixed names."""
    with LocalBroker() as made:
        for topic in ("rides", "rides.prepared", "rides.priced", "rides.dead"):
            made.create_topic(topic, partitions=2)
        yield made


def ride(number: int) -> dict:
    zone = "west" if number % 6 == 1 else ("north", "south")[number % 2]
    return {"ride": number, "vehicle": f"v{number % VEHICLES}", "zone": zone, "km": number / 4}


def feed(broker: LocalBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RIDES):
        one = ride(number)
        partition = number % VEHICLES % 2
        producer.produce("rides", json.dumps(one), one["vehicle"], partition=partition)
    producer.produce("rides", BROKEN, "v9", partition=0)
    assert producer.flush(60) == 0


def cost(number: int, tariffs: dict) -> dict:
    one = ride(number)
    owner = OWNERS[number % VEHICLES]
    price = round(one["km"] * tariffs[one["zone"]], 2)
    return {"ride": number, "vehicle": one["vehicle"], "owner": owner, "cost": price}


def owners(folder: Path) -> dict[str, str]:
    """The environment with the list of vehicles that have one."""
    path = folder / "vehicles.csv"
    named = [f"v{number},{owner}\n" for number, owner in enumerate(OWNERS) if owner]
    path.write_text("".join(["vehicle,owner\n", *named]))
    return {"VEHICLES": str(path)}


class Tables:
    """What is in the tables, read without Spark: the files of finished batches."""

    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self, name: str) -> list[dict]:
        done = self.folder.glob(f"{name}/batch=*/_SUCCESS")
        files = [path for mark in done for path in mark.parent.glob("*.parquet")]
        return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]

    def priced(self) -> list[dict]:
        found = [
            {k: row[k] for k in ("ride", "vehicle", "owner", "cost")} for row in self.rows("priced")
        ]
        return sorted(found, key=lambda row: row["ride"])

    def logged(self, log: str) -> set[str]:
        place = self.folder / "checkpoint" / log
        return {p.name for p in place.iterdir() if p.name.isdigit()} if place.exists() else set()

    def in_a_batch(self) -> bool:
        """A batch was planned and is not finished."""
        return bool(self.logged("offsets") - self.logged("commits"))

    def half_a_replay(self) -> bool:
        """Files of a replay are there that is not finished."""
        begun = {path.parent for path in self.folder.glob("priced/batch=replay-*/*")}
        return any(not (place / "_SUCCESS").exists() for place in begun)


def killed_when(moment, *command: str, log: Path, **environment: str) -> None:
    """Run a step and kill it, its JVM and its workers with -9 at that moment."""
    with example(*command, log=log, **environment) as process:
        wait_for(lambda: moment() or process.poll() is not None, WAIT_S)
        assert process.poll() is None, log.read_text()[-3000:]
        kill(process)


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_every_ride_is_in_the_table_once_whatever_is_killed(broker, tmp_path, kills):
    """Priced or dead, then the tariff is mended and the dead are replayed; counted from outside."""
    feed(broker)
    tables, log = Tables(tmp_path), tmp_path / "log"
    tariffs = tmp_path / "tariffs.json"
    tariffs.write_text(json.dumps(TARIFFS))
    settings = {"TARIFFS": str(tariffs), "BATCH_RECORDS": str(BATCH), **owners(tmp_path)}
    step = (broker.bootstrap, str(tmp_path))

    for _ in range(kills):
        killed_when(tables.in_a_batch, SCRIPT, "run", *step, log=log, **settings)
    if kills > 1:
        broker.kill()
        broker.restart()
    run(SCRIPT, "run", *step, log=log, timeout_s=WAIT_S, **settings)
    good = [number for number in range(RIDES) if ride(number)["zone"] != "west"]
    assert tables.priced() == [cost(number, TARIFFS) for number in good]
    dead = tables.rows("dead")
    (broken,) = [row for row in dead if row["error"] == "Reject: not a ride"]
    assert base64.b64decode(json.loads(broken["value"])["raw"]) == BROKEN
    dead.remove(broken)
    assert len(dead) == RIDES - len(good)
    assert {row["error"] for row in dead} == {"LookupError: no tariff for zone west"}
    assert all(row["attempts"] == 2 and row["story"] for row in dead)

    mended = {**TARIFFS, "west": 3.0}
    tariffs.write_text(json.dumps(mended))
    if kills > 1:
        killed_when(tables.half_a_replay, SCRIPT, "replay", *step, log=log, **settings)
    for _ in range(2):
        run(SCRIPT, "replay", *step, log=log, timeout_s=WAIT_S, **settings)
        assert tables.priced() == [cost(number, mended) for number in range(RIDES)]
    overtaken = {row["ride"]: row["overtaken_by"] for row in tables.rows("priced")}
    assert [overtaken[number] is None for number in range(12)] == [
        number not in (1, 7) for number in range(12)
    ], "a replayed ride that is not its vehicle's last names the one that came before it"


@pytest.mark.long
def test_the_same_handler_live_between_topics(broker, tmp_path):
    """`prepare` writes each ride once, `perkey run` prices them, the failed are dead letters."""
    feed(broker)
    log = tmp_path / "log"
    step = (broker.bootstrap, str(tmp_path))
    run(SCRIPT, "prepare", *step, log=log, timeout_s=WAIT_S, **owners(tmp_path))
    assert len(messages(broker, "rides.prepared")) == RIDES + 1
    app = ("-m", "perkey.cli.main", "run", "pipeline.pipeline:app", "--until", "drained")
    run(*app, log=log, timeout_s=WAIT_S, BOOTSTRAP=broker.bootstrap)
    priced = [json.loads(m.value() or b"") for m in messages(broker, "rides.priced")]
    good = [number for number in range(RIDES) if ride(number)["zone"] != "west"]
    assert sorted(priced, key=lambda row: row["ride"]) == [cost(n, TARIFFS) for n in good]
    assert len(messages(broker, "rides.dead")) == RIDES - len(good) + 1
