"""A long storm on a broker of its own: `python -m tests.support.storm --protocol consumer --minutes 10`.

Members join, leave, are killed and are stopped past their session, at random, under load; the
judge looks at all of it at the end. Exit code 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

from tests.support.chaos import PROTOCOLS, SESSION_S, Chaos, say

from perkey.broker import LocalBroker

SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 300,
}


def main() -> None:
    """Parse, storm, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol", choices=PROTOCOLS, default="eager")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rate", type=float, default=150)
    parser.add_argument("--kind", choices=("async", "threads"), default="async")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-stops", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="perkey-storm-"))
    say(f"storm in {folder}")
    with LocalBroker(config=SETTINGS) as broker:
        run = Chaos(
            broker,
            folder,
            seed=arguments.seed,
            protocol=arguments.protocol,
            session_s=SESSION_S,
            partitions=arguments.partitions,
            kind=arguments.kind,
            work_s=0.01,
            failing_permille=10,
            slow_permille=5,
            slow_s=1.5,
        )
        with run:
            storm(run, arguments)
            say(run.verdict().summary())


def storm(run: Chaos, arguments: argparse.Namespace) -> None:
    """Faults at random until the time is over, then everything must come to rest."""
    actions: dict[str, int] = {}
    run.start()
    run.feed(arguments.rate, keys=200)
    ends = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < ends:
        action = step(run, arguments.members, stops=not arguments.no_stops)
        actions[action] = actions.get(action, 0) + 1
        threading.Event().wait(run.dice.uniform(0.3, 3.0))
    run.stop_feeding()
    say(f"actions {actions}, produced {len(run.produced)}")
    run.all_done(120)
    run.until(run.committed, 30, "everything committed")
    for child in run.living():
        run.terminate(child)


def step(run: Chaos, members: int, *, stops: bool) -> str:
    """One random fault or change."""
    living, dice = run.living(), run.dice.random()
    if len(living) < 2 or (len(living) < members and dice < 0.45):
        run.start()
        return "start"
    child = run.dice.choice(living)
    if dice < 0.65:
        run.kill(child)
        return "kill"
    if dice < 0.8 and stops:
        since = run.suspend(child)
        threading.Event().wait(run.dice.choice([0.5, SESSION_S + 2.5]))
        run.wake(child, since)
        return "stop"
    run.terminate(child)
    return "term"


if __name__ == "__main__":
    main()
