"""The app under chaos: its handlers write to the log what they do, and nothing else is trusted.

`perkey run tests.support.chaos_app:app` with the plan as JSON in PERKEY_CHAOS; see `Plan`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.handler_log import Writer

import perkey
from perkey.core.commits import Plans
from perkey.core.effects import PlanItem
from perkey.core.offsets import Snapshot
from perkey.core.partition import Partition
from perkey.runtime import door

VARIABLE = "PERKEY_CHAOS"
FOREVER_S = 1e9


@dataclass
class Plan:
    """What one child is to do."""

    bootstrap: str = ""
    group: str = ""
    topic: str = ""
    log: str = ""
    kind: str = "async"  # or "threads"
    kafka: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 32
    ordering: str = "key"
    #: a call takes 0 to twice this long
    work_s: float = 0.005
    #: how many of 1,000 records fail their first attempt
    failing_permille: int = 0
    #: how many of 1,000 records take `slow_s`
    slow_permille: int = 0
    slow_s: float = 0.0
    #: records whose value starts with "stuck" are held until this file exists
    release: str = ""
    #: and, where that is asked for, until a stop is in force
    until_stopped: bool = False
    commit_s: float = 0.2
    #: `Commit()`: after `commit_s`, which is 1 then, or a thousand records
    commit_by_default: bool = False
    revoke_timeout_s: float = 20.0
    drain_timeout_s: float = 20.0
    seed: int = 0
    attempts: int = 5
    #: the release fails on keys that start with "bad"
    poisoned: bool = False
    #: bad keys with "dead" in them end in the dead-letter topic, the others are parked
    dead_letters: bool = False
    #: the topic by which the group is commanded
    control: str = ""
    #: a way of delivery other than the default, and where its outputs go; see delivery_app
    mode: str = ""
    output: str = ""
    #: break the library in one way, to show that the judge would see it; see `MUTANTS`
    mutant: str = ""

    def text(self) -> str:
        """As the child gets it."""
        return json.dumps(asdict(self))


def log_level_info() -> None:
    """Rebalances on stderr, for people who read a failure."""
    import logging

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(created).3f %(levelname)s %(message)s"
    )


def die_with_parent() -> None:
    """A child whose test was killed must not go on."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)  # a look every so often, as long as the process lives
        os._exit(99)

    threading.Thread(target=watch, daemon=True).start()


class Handlers:
    """Both kinds of handler, doing the same."""

    def __init__(self, plan: Plan, app: perkey.App) -> None:
        self._plan, self._app = plan, app
        self._log = Writer(plan.log)
        #: of each partition the last assignment that a call began in
        self._epochs: dict[int, int] = {}

    async def wait(self, record: perkey.Record) -> None:
        """An `async def` handler."""
        epoch = self._begin(record)
        try:
            await asyncio.sleep(self._seconds(record))
            while self._stuck(record):  # noqa: ASYNC110  # what releases it is a file
                await asyncio.sleep(0.02)
            self._fail(record)
        except BaseException:
            self._write("F", record, epoch)
            raise
        self._write("E", record, epoch)

    def block(self, record: perkey.Record) -> None:
        """A plain handler."""
        epoch = self._begin(record)
        try:
            time.sleep(self._seconds(record))  # its work
            while self._stuck(record):
                time.sleep(0.02)  # its work, which hangs
            self._fail(record)
        except BaseException:
            self._write("F", record, epoch)
            raise
        self._write("E", record, epoch)

    def _begin(self, record: perkey.Record) -> int:
        epoch = self._epoch(record)
        if epoch < 0:
            # A revoke takes the partition first and then waits for its calls: what is marked as
            # started (at_most_once) begins under the assignment that ends.
            epoch = self._epochs.get(record.partition, -1)
        self._epochs[record.partition] = epoch
        self._write("S", record, epoch)
        return epoch

    def _epoch(self, record: perkey.Record) -> int:
        """Which assignment this is, as the member knows it; the judge compares, nothing more."""
        run: Any = self._app._run
        held = run.member.partitions.get((record.topic, record.partition))
        return -1 if held is None else int(held.epoch)

    def _write(self, kind: Any, record: perkey.Record, epoch: int) -> None:
        key = "" if record.key is None else record.key.decode()
        self._log.write(kind, epoch, record.partition, record.offset, key)

    def _dice(self, record: perkey.Record) -> random.Random:
        return random.Random(f"{self._plan.seed} {record.partition} {record.offset}")

    def _seconds(self, record: perkey.Record) -> float:
        plan, dice = self._plan, self._dice(record)
        if dice.randrange(1000) < plan.slow_permille:
            return plan.slow_s
        return 2 * plan.work_s * dice.random()

    def _stuck(self, record: perkey.Record) -> bool:
        held = record.value is not None and record.value.startswith(b"stuck")
        return held and not (self._stopped() and Path(self._plan.release).exists())

    def _stopped(self) -> bool:
        """Whether the engine knows of the stop that must come first, if one must."""
        run: Any = self._app._run
        return not self._plan.until_stopped or run.member.engine.state.stop_mode is not None

    def _fail(self, record: perkey.Record) -> None:
        if self._plan.poisoned and (record.key or b"").startswith(b"bad"):
            raise KeyError("no such customer")
        if record.attempt == 1 and self._dice(record).randrange(1000) >= (
            1000 - self._plan.failing_permille
        ):
            raise ValueError("the first attempt fails, as planned")


def forget_the_map() -> None:
    """Commit the frontier alone."""
    whole = Plans.plan

    def plan(self: Plans, partition: Partition, claims: Any = None) -> PlanItem | None:
        item = whole(self, partition, claims)
        return None if item is None else item._replace(metadata="")

    Plans.plan = plan  # type: ignore[method-assign]  # mutant of the engine


def commit_what_was_seen() -> None:
    """Commit the end of what was fetched, done or not (the Java library's issue 826)."""

    def snapshot(self: Partition, claims: Any = None) -> Snapshot:
        position = self.offsets.position
        return Snapshot(position, position - 1, [])

    Partition.snapshot = snapshot  # type: ignore[method-assign]  # mutant of the engine


def trust_yourself() -> None:
    """Never doubt the membership after standing still."""
    door.SUSPENDED_S = FOREVER_S


def given_up(record: perkey.Record, _error: object) -> perkey.Park | perkey.DeadLetter:
    """What becomes of a record that used its attempts."""
    return perkey.DeadLetter("{topic}.dlq") if b"dead" in (record.key or b"") else perkey.Park()


MUTANTS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "no map": forget_the_map,
    "seen": commit_what_was_seen,
    "trusting": trust_yourself,
}


def make(plan: Plan) -> perkey.App:
    """The app of this plan."""
    MUTANTS[plan.mutant]()
    app = perkey.App(
        plan.group,
        {"bootstrap.servers": plan.bootstrap, **plan.kafka},
        revoke_timeout_s=plan.revoke_timeout_s,
        drain_timeout_s=plan.drain_timeout_s,
        control=plan.control or None,
    )
    handlers = Handlers(plan, app)
    if plan.mode:
        from tests.support.delivery_app import consume

        consume(app, plan, handlers)
        return app
    app.consume(
        plan.topic,
        ordering=plan.ordering,
        concurrency=plan.concurrency,
        commit=perkey.Commit() if plan.commit_by_default else perkey.Commit(plan.commit_s),
        retry=perkey.Retry(attempts=plan.attempts, delay_s=0.05),
        on_exhausted=given_up if plan.dead_letters else perkey.Park(),
    )(handlers.wait if plan.kind == "async" else handlers.block)
    return app


if VARIABLE in os.environ:
    app = make(Plan(**json.loads(os.environ[VARIABLE])))
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)

if __name__ == "__main__":
    log_level_info()
    app.main()
