"""What a fleet costs while no record comes: processor time of its members and of its driver.

    python benchmarks/spark_idle.py [--members 40] [--partitions 400] [--seconds 60] [--json FILE]

A fleet on Spark (`local[members]`) on a topic without records. Measured over so many seconds, once
all members hold partitions: processor time of the members' processes and of the driver's Python
(Spark's Java is not in it), in cores, and the members' resident memory. Exit code 1 where members
and driver together take more than 0.3 of a core for 40 members, in proportion for others.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import psutil

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import perkey
from benchmarks import machine
from benchmarks.spark_kit import told
from benchmarks.spark_lost import session, wait_until
from perkey.broker import LocalBroker

CORES_MAX, OF_MEMBERS = 0.3, 40
START_S, SETTLE_S = 600.0, 10.0


def main() -> int:
    """Run it; 0 where the limit holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=OF_MEMBERS)
    parser.add_argument("--partitions", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", help="also write the lines to this file")
    asked = parser.parse_args()
    with LocalBroker() as broker, session(asked.members) as spark:
        broker.create_topic("idle", partitions=asked.partitions)
        line = idle(broker.bootstrap, spark, asked.members, asked.partitions, asked.seconds)
    return told([machine.facts(), line], asked.json)


def idle(
    bootstrap: str, spark: Any, members: int, partitions: int, seconds: float
) -> dict[str, Any]:
    """Start a fleet, let it settle, and look at its processes' times."""
    app = perkey.App(group="idle", kafka={"bootstrap.servers": bootstrap})

    async def handle(_record: perkey.Record) -> None:
        """Never called."""

    app.consume("idle")(handle)
    patience = {"perkey.control.wait_s": f"{START_S:.0f}"}
    run = app.start(engine="spark", spark=spark, members=members, conf=patience)

    def settled() -> bool:
        rows = app.snapshot()["partitions"]
        return len(rows) == partitions and len({row["member"] for row in rows}) == members

    wait_until(settled, START_S, "a fleet at rest")
    time.sleep(SETTLE_S)  # what a start leaves to do is not idleness
    pids = [one["pid"] for one in app.snapshot()["members"]]
    processes = [psutil.Process(pid) for pid in pids]
    before, driver_s, began = times(processes), time.process_time(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    members_cores = (times(processes) - before) / took
    driver_cores = (time.process_time() - driver_s) / took
    resident = sum(one.memory_info().rss for one in processes)
    run.stop()
    run.wait(120)
    limit = CORES_MAX * members / OF_MEMBERS
    return {
        "type": "idle", "members": members, "partitions": partitions,
        "members_cores": round(members_cores, 3), "driver_cores": round(driver_cores, 3),
        "member_mib": round(resident / members / 2**20), "limit_cores": round(limit, 3),
        "ok": members_cores + driver_cores <= limit,
    }  # fmt: skip


def times(processes: list[psutil.Process]) -> float:
    """Processor seconds of all of them so far."""
    spent = [one.cpu_times() for one in processes]
    return float(sum(one.user + one.system for one in spent))


if __name__ == "__main__":
    sys.exit(main())
