"""All brokers away for longer than a session: how soon each kind of group member works again.

    python benchmarks/outage.py [--session 10] [--away 15] [--rounds 3] [--json FILE]

One broker is killed with -9 and started again `--away` seconds later; members of each kind are in
groups of their own, so that one outage is measured by all of them. The clock starts when the broker
has acknowledged a producer's record again, and stops with the first record that a member handles
after that. Prints one JSON line for each kind: seconds of every round and their median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import perkey
from perkey.broker import LocalBroker

TOPIC, WAIT_S, EVERY_S = "outage", 300.0, 0.05


def kinds(session_s: float) -> dict[str, dict[str, Any]]:
    """Kinds of members by name, as their properties."""
    session = {"session.timeout.ms": int(session_s * 1000)}
    return {
        "eager": {"partition.assignment.strategy": "range", **session},
        "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **session},
        "eager, static": {"group.instance.id": "one", **session},
        "cooperative, static": {
            "partition.assignment.strategy": "cooperative-sticky",
            "group.instance.id": "one",
            **session,
        },
        "eager, a session longer than the outage": {"session.timeout.ms": 300_000},
        "consumer (KIP-848)": {"group.protocol": "consumer"},
    }


class Member:
    """One app, and when it handled a record last."""

    def __init__(self, bootstrap: str, name: str, kafka: dict[str, Any]) -> None:
        self.name, self.handled = name, [0.0]
        group = "".join(c if c.isalnum() else "-" for c in name)
        self.app = perkey.App(group=group, kafka={"bootstrap.servers": bootstrap, **kafka})
        self.app.consume(TOPIC, ordering="unordered")(self.handle)
        self.run = self.app.start()

    def handle(self, record: perkey.Record) -> None:
        """Note when."""
        self.handled.append(time.monotonic())

    def first_after(self, since: float) -> float | None:
        """Seconds until its first record after this time."""
        return next((at - since for at in self.handled if at > since), None)


class Feed:
    """A producer that tries all the time."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged_at, self._over = 0.0, threading.Event()
        config = {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0}
        self._producer = Producer({**config, "message.timeout.ms": 1000 * WAIT_S})
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self._producer.produce(TOPIC, b"x", on_delivery=self._acknowledged)
            self._producer.poll(0)

    def _acknowledged(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged_at = time.monotonic()

    def close(self) -> None:
        """No more."""
        self._over.set()


def wait_for(what: Any) -> None:
    """Until it is true."""
    deadline = time.monotonic() + WAIT_S
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def outage(broker: LocalBroker, feed: Feed, members: list[Member], away_s: float) -> list[float]:
    """One round: seconds of each member after the producer's."""
    now = time.monotonic()
    wait_for(lambda: all(one.first_after(now) for one in members))
    broker.kill()
    since = time.monotonic()
    time.sleep(away_s)
    broker.restart()
    wait_for(lambda: feed.acknowledged_at > since)
    back = feed.acknowledged_at
    wait_for(lambda: all(one.first_after(back) for one in members))
    return [one.first_after(back) or 0.0 for one in members]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--session", type=float, default=10.0, help="session.timeout.ms, in s")
    parser.add_argument("--away", type=float, default=15.0, help="how long no broker is there, s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the lines there")
    asked = parser.parse_args()
    server = {"group.consumer.session.timeout.ms": int(asked.session * 1000)}
    with LocalBroker(config=server) as broker:
        broker.create_topic(TOPIC)
        feed = Feed(broker.bootstrap)
        every = kinds(asked.session).items()
        members = [Member(broker.bootstrap, name, kafka) for name, kafka in every]
        rounds = [outage(broker, feed, members, asked.away) for _ in range(asked.rounds)]
        for one in members:
            one.run.stop("now")
        for one in members:
            one.run.wait(WAIT_S)
        feed.close()
    lines = [
        json.dumps(
            {
                "kind": one.name,
                "session_s": asked.session,
                "away_s": asked.away,
                "median_s": round(statistics.median(took), 2),
                "seconds": [round(s, 2) for s in took],
            }
        )
        for one, took in zip(members, zip(*rounds, strict=True), strict=True)
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    if asked.json:
        asked.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
