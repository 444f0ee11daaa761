"""The set-up: a real broker with filled topics, the service, and their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from confluent_kafka import Producer

from demo.children import Child, Children, DemoError
from demo.tracks import Fleet
from perkey.broker import LocalBroker

POSITIONS, DEAD_LETTERS = "gps.positions", "gps.positions.dlq"
PARTITIONS, ALERT_PARTITIONS = 10, 4
#: The runs, as the service's log and the group ids name them.
PLAIN, LOCAL, SPARK = "plain", "local", "spark"
ALERTS = {LOCAL: "gps.alerts.local", SPARK: "gps.alerts"}
_SHOW_EVERY = 2_000
_FLUSH_TIMEOUT_S = 60.0


def group_of(run: str) -> str:
    """The consumer group of a run."""
    return f"geofence-{run}"


@dataclass(slots=True)
class Service:
    """The geofence service's process, and its counts."""

    child: Child
    port: int
    log: Path
    _connection: HTTPConnection

    def url(self, run: str) -> str:
        """Where this run asks."""
        return f"http://127.0.0.1:{self.port}/{run}/check"

    def counts(self, run: str) -> dict[int, int]:
        """Member -> answers so far; members are process ids."""
        try:
            self._connection.request("GET", "/stats")
            answer = json.loads(self._connection.getresponse().read())
        except (HTTPException, OSError, ValueError) as error:
            self.child.check()
            raise DemoError(f"the geofence service does not answer: {error}") from error
        members: dict[str, int] = answer.get(run, {})
        return {int(member): count for member, count in members.items() if member.isdigit()}

    def stop(self) -> None:
        """End it, with its log complete."""
        self.child.stop()


@contextmanager
def broker(folder: Path | None) -> Iterator[LocalBroker]:
    """A real Kafka that dies with us, with the demo's topics; its data in `folder` if given."""
    with LocalBroker(data_dir=folder) as kafka:
        kafka.create_topic(POSITIONS, PARTITIONS)
        kafka.create_topic(DEAD_LETTERS, PARTITIONS)
        for topic in ALERTS.values():
            kafka.create_topic(topic, ALERT_PARTITIONS)
        yield kafka


def start_service(children: Children, log: Path) -> Service:
    """Start it, and return when it listens."""
    child = children.start("service", "demo.service", str(log), read=True)
    assert child.process.stdout is not None
    line = child.process.stdout.readline()
    if not line.strip().isdigit():
        child.process.wait()
        child.check()
        raise DemoError(f"the geofence service did not start (see {child.log})")
    return Service(child, int(line), log, HTTPConnection("127.0.0.1", int(line), timeout=30))


def fill(bootstrap: str, fleet: Fleet, on_progress: Callable[[int], None]) -> None:
    """Send all positions: key is the vehicle, timestamp is when it was there."""
    settings = {"linger.ms": 20, "log_level": 0, "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number, position in enumerate(fleet.in_time_order()):
        producer.produce(
            POSITIONS, position.to_json(), position.vehicle.encode(), timestamp=position.at_ms
        )
        if number % _SHOW_EVERY == 0:
            producer.poll(0)
            on_progress(number)
    if producer.flush(_FLUSH_TIMEOUT_S):
        raise DemoError(f"the broker did not take all positions within {_FLUSH_TIMEOUT_S:.0f} s")
