"""The two halves of the second example: Spark prepares, a Perkey app does the slow part."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer
from tests.integration.spark.example_kit import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

INSIDE, OUTSIDE = (48.1, 11.5), (52.5, 13.4)
VEHICLES = "vehicle,owner,watched\nv0,ann,true\nv1,bob,true\nv2,eve,false\n"


def position(vehicle: str, where: tuple[float, float]) -> str:
    return json.dumps({"vehicle": vehicle, "lat": where[0], "lon": where[1]})


def values(bootstrap: str, topic: str, count: int) -> list[dict]:
    """What is in the topic, at least `count` records of it."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "look", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    try:
        consumer.subscribe([topic])
        found = []
        for _ in range(600):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(json.loads(message.value()))
            elif message is not None and len(found) >= count:
                break
        return found
    finally:
        consumer.close()


@pytest.mark.long
def test_prepared_by_spark_and_checked_by_perkey(kafka_broker, produce, tmp_path):
    """What cannot be read, is nowhere, unknown or not watched is left out; alerts are for those in the zone."""
    for topic in ("gps.raw", "gps.prepared", "geofence.alerts"):
        kafka_broker.create_topic(topic, partitions=1)
    raw = [position("v0", INSIDE), position("v0", OUTSIDE), position("v1", INSIDE)]
    left_out = ["{", position("v0", (91, 0)), position("v2", INSIDE), position("v9", INSIDE)]
    produce("gps.raw", [*raw, *left_out, None], key=b"k")
    vehicles = tmp_path / "vehicles.csv"
    vehicles.write_text(VEHICLES)
    bootstrap = kafka_broker.bootstrap

    prepare = ("prepare_positions.py", bootstrap, str(vehicles), str(tmp_path / "c"), "--once")
    run(*prepare, log=tmp_path / "log", timeout_s=300)
    prepared = values(bootstrap, "gps.prepared", 3)
    assert [(p["vehicle"], p["owner"], p["lat"]) for p in prepared] == [
        ("v0", "ann", 48.1),
        ("v0", "ann", 52.5),
        ("v1", "bob", 48.1),
    ]

    app = ("-m", "perkey.cli.main", "run", "check_positions:app", "--until", "drained")
    run(*app, log=tmp_path / "log", timeout_s=200, BOOTSTRAP=bootstrap)
    alerts = values(bootstrap, "geofence.alerts", 2)
    assert sorted(alerts, key=str) == [
        {"vehicle": "v0", "owner": "ann"},
        {"vehicle": "v1", "owner": "bob"},
    ]
