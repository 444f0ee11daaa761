"""How long partitions wait when a member is killed while its group rebalances.

    python benchmarks/spark_lost.py [--delivery exactly_once] [--rounds 5] [--nodes 1]

A fleet of four members on Spark (`local[4]`), eight partitions, 160 records per second. One member
gets SIGTERM and leaves, and as soon as the group rebalances for it another one gets SIGKILL; Spark
starts both again. Measured is the longest time between two calls of a partition, for those of the
two members that live on, of the one that left, and of the dead one. Exit code 1 where one of the
first waits for more than 2 s, or one of the last for more than 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import perkey
from benchmarks import machine
from benchmarks.spark_kit import CallLog, told
from perkey.broker import LocalBroker
from perkey.types import DeliveryName

MEMBERS, PARTITIONS, RATE_PER_S = 4, 8, 160
LIVING_MAX_S, DEAD_MAX_S = 2.0, 5.0
#: whose partitions: of the members that live on, of the one that leaves, of the one that is killed
LEAVER, DEAD = 0, 1
WAIT_S = 240.0
#: calls after the kill that must have come everywhere before the next one
CALM_S = 5.0


def main() -> int:
    """Run it; 0 where the limits hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument(
        "--delivery", choices=get_args(DeliveryName), default="at_least_once", help="of the handler"
    )
    parser.add_argument("--json", help="also write the lines to this file")
    asked = parser.parse_args()
    with LocalBroker(nodes=asked.nodes) as broker, session() as spark:
        broker.create_topic("lost", partitions=PARTITIONS)
        fleet = Watched(broker.bootstrap, "lost", MEMBERS, asked.delivery, spark=spark)
        rounds = [classes(fleet) for _ in range(asked.rounds)]
        fleet.close()
    longest = {who: [round(one[who], 2) for one in rounds] for who in rounds[0]}
    ok = max(longest["living"]) <= LIVING_MAX_S and max(longest["dead"]) <= DEAD_MAX_S
    limits = {"living": LIVING_MAX_S, "dead": DEAD_MAX_S}
    line = {
        "type": "lost",
        "nodes": asked.nodes,
        "delivery": asked.delivery,
        "wait_s": longest,
        "limits_s": limits,
        "ok": ok,
    }
    return told([machine.facts(), line], asked.json)


@contextmanager
def session(slots: int = MEMBERS) -> Iterator[Any]:
    """So many slots, and Spark's own retries."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{slots},100]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


class Feed:
    """Writes records evenly over the partitions until it is closed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic, self._over = topic, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._over.wait(0.01):
            while sent < (time.monotonic() - began) * RATE_PER_S:
                self._producer.produce(self._topic, b"", b"k%d" % (sent % 64), sent % PARTITIONS)
                sent += 1
            self._producer.poll(0)

    def close(self) -> None:
        """Stop, once all is written."""
        self._over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


class Watched:
    """A fleet of processes on a topic that is fed, and when each partition's calls began."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        members: int,
        delivery: DeliveryName = "at_least_once",
        kafka: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> None:
        """`how`: more of what `app.start` takes."""
        self._group, self._members, self._log = f"g-{topic}", members, CallLog()
        note = self._log.noting()
        self.app = perkey.App(
            group=self._group, kafka={"bootstrap.servers": bootstrap, **(kafka or {})}
        )

        async def handle(record: perkey.Record) -> perkey.Produce:
            note(record.partition, time.time())
            await asyncio.sleep(0.002)
            return perkey.Produce(record.value, topic=f"{topic}-out")

        self.app.consume(topic, concurrency=50, delivery=delivery)(handle)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._admin.create_topics([NewTopic(f"{topic}-out", 4)])[f"{topic}-out"].result(60)
        self._feed = Feed(bootstrap, topic)
        self.run = self.app.start(engine="spark", members=members, **how)

    def close(self) -> None:
        """End it."""
        self.run.stop()
        report = self.run.wait(WAIT_S)
        self._feed.close()
        self._log.close()
        assert report.exit_code == 0, report.reason

    def state(self) -> str:
        """The group's, in Kafka's word."""
        asked = self._admin.describe_consumer_groups([self._group], request_timeout=30)
        return str(asked[self._group].result(40).state.name)

    def settled(self) -> dict[int, int] | None:
        """Partition -> member, once all are at work and the group is at rest."""
        held = {row["partition"]: row["member"] for row in self.app.snapshot()["partitions"]}
        there = len(held) == PARTITIONS and len(set(held.values())) == self._members
        return held if there and self.flows(time.time() - 1) and self.state() == "STABLE" else None

    def pids(self) -> dict[int, int]:
        """Member -> process id."""
        return {one["member"]: one["pid"] for one in self.app.snapshot()["members"]}

    def waits(self, since: float) -> dict[int, float]:
        """The longest time between two calls of each partition, from then to now."""
        longest = {}
        for number, times in self._log.numbers().items():
            before = max((one for one in times if one < since), default=since)
            later = [before, *sorted(one for one in times if one >= since)]
            longest[number] = max((b - a for a, b in pairwise(later)), default=0.0)
        return longest

    def flows(self, since: float) -> bool:
        """Every partition has had calls since then, and still has."""
        last = [times[-1] for times in self._log.numbers().values()]
        return len(last) == PARTITIONS and min(last) > since


def lose(fleet: Watched, before: Callable[[], None] = lambda: None) -> tuple[float, dict[int, int]]:
    """Have one leave and kill another in the rebalance for it: since when, and who held what."""
    held: dict[int, int] = wait_until(fleet.settled, WAIT_S, "a group at rest")
    pids, since = fleet.pids(), time.time()
    before()
    os.kill(pids[LEAVER], signal.SIGTERM)
    wait_until(lambda: fleet.state() != "STABLE", WAIT_S, "a rebalance")
    os.kill(pids[DEAD], signal.SIGKILL)
    killed = time.time()
    wait_until(lambda: fleet.flows(killed + CALM_S), WAIT_S, "calls in every partition")
    return since, held


def classes(fleet: Watched) -> dict[str, float]:
    """The longest wait of a partition, by whose it was."""
    since, held = lose(fleet)
    names = {LEAVER: "leaver", DEAD: "dead"}
    longest: dict[str, float] = {}
    for where, seconds in fleet.waits(since).items():
        who = names.get(held[where], "living")
        longest[who] = max(seconds, longest.get(who, 0.0))
    return longest


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for something that becomes true; what it was."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)  # between two looks
    return value


if __name__ == "__main__":
    sys.exit(main())
