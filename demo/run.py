"""`python -m demo`: run the steps one after another, and stop everything afterwards."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from demo import checks, stage, witness
from demo.children import Children, DemoError, kill, left_after
from demo.facts import Found, summary
from demo.runs import MEMBER_CONCURRENCY, Kill, Runs
from demo.screen import Screen, show_checks
from demo.stage import ALERTS, LOCAL, PLAIN, SPARK, group_of
from demo.tracks import VEHICLES, Fleet, fleet
from perkey.broker import LocalBroker
from perkey.broker.cluster import Cluster
from perkey.broker.java import find_java
from perkey.errors import ConfigError
from perkey.spark.fleet.settings import check_java
from perkey.spark.requirements import check_spark_packages

NEEDED = ("aiohttp", "matplotlib", "pandas", "pyarrow", "pyspark")
STEPS, FAST_STEPS = 150, 15
PLAIN_S, FAST_PLAIN_S = 6.0, 3.0
_GONE_S = 10.0
#: What the demo writes into its folder, and clears there before it begins.
REPORT, TIMELINE, SUMMARY, SERVICE_LOG = (
    "report.html",
    "timeline.png",
    "summary.json",
    "service.csv",
)
_FILES = (REPORT, TIMELINE, SUMMARY, SERVICE_LOG)
_FOLDERS = ("alerts", "alerts-checkpoint", "logs")
BROKER_FOLDER = "broker"
TITLES = (
    "A real broker, a geofence service, a topic full of positions",
    "A plain loop: one call after the other",
    "Perkey in one process",
    "Perkey on Spark, a member killed with -9 on the way",
    "Alerts into a Parquet table",
    "The proof, from outside",
    "The report",
)


@dataclass(frozen=True, slots=True)
class Options:
    """`fast`: a tenth of the records. `keep`: leave the broker up. `out`: where results go."""

    out: Path
    fast: bool = False
    keep: bool = False


def run(options: Options, console: Console) -> None:
    """The whole demo. Raises ConfigError for what is missing, DemoError when a check fails."""
    check_needs()
    prepare(options)
    with _one_interrupt(), _work_folder() as work:
        with Screen(console, TITLES) as screen:
            found = _Play(options, screen, work).all()
        address = _broker_again(options) if options.keep else None
    show_checks(console, found.checks)
    _show_end(console, options, found, address)
    if not found.ok:
        wrong = [str(check) for check in found.checks if not check.ok]
        raise DemoError(f"{len(wrong)} checks failed: {'; '.join(wrong)}")


def check_needs() -> None:
    """Raise ConfigError, in one line, for what is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the demo needs {', '.join(missing)}, not installed here: run `make setup`"
        )
    check_spark_packages()
    check_java()
    find_java()


def prepare(options: Options) -> None:
    """Make the folder, without what an earlier demo left there."""
    out = options.out
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: give a folder")
    if options.keep and Cluster(out / BROKER_FOLDER).pids():
        raise ConfigError(
            f"an earlier demo's broker runs in {out / BROKER_FOLDER}: take it down with "
            f"`perkey broker down --data {out / BROKER_FOLDER}`, or choose another --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (out / name).unlink(missing_ok=True)
        for name in (*_FOLDERS, *([BROKER_FOLDER] if options.keep else [])):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "logs").mkdir()
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from error


class _Play:
    """The steps; what each leaves for the next."""

    def __init__(self, options: Options, screen: Screen, work: Path) -> None:
        self._options, self._screen, self._work = options, screen, work
        self._out = options.out.absolute()
        self._began = time.monotonic()
        self._fleet: Fleet = fleet(VEHICLES, FAST_STEPS if options.fast else STEPS)

    def all(self) -> Found:
        """From the broker's start to the report, with nothing left running."""
        with ExitStack() as stack:
            runs, kafka = self._set_up(stack)
            kill = self._run_all(runs)
            with self._screen.step(6) as step:
                step.said = "reading topics, offsets, the service's log and the table"
                runs.service.stop()
                found = self._look(kafka.bootstrap, kill)
                step.said = "stopping everything"
                runs.children.look()
                stack.close()
                found.checks.append(_left_check(runs.children))
                good = sum(check.ok for check in found.checks)
                step.said = f"{good} of {len(found.checks)} checks hold"
        with self._screen.step(7) as step:
            found.seconds = time.monotonic() - self._began
            write(found, self._out)
            step.said = str(self._options.out / REPORT)
        return found

    def _set_up(self, stack: ExitStack) -> tuple[Runs, LocalBroker]:
        data = self._out / BROKER_FOLDER if self._options.keep else None
        records = self._fleet.records
        with self._screen.step(1, records) as step:
            kafka = stack.enter_context(stage.broker(data))
            children = stack.enter_context(Children(self._work, self._out / "logs"))
            service = stage.start_service(children, self._out / SERVICE_LOG)
            stage.fill(kafka.bootstrap, self._fleet, lambda done: step.progress(done, ""))
            step.said = f"{records:,} positions of {VEHICLES} vehicles, Kafka at {kafka.bootstrap}"
        return Runs(children, service, kafka.bootstrap, self._out, self._work), kafka

    def _run_all(self, runs: Runs) -> Kill:
        records, screen = self._fleet.records, self._screen
        with screen.step(2) as step:
            seconds = FAST_PLAIN_S if self._options.fast else PLAIN_S
            runs.plain(seconds, lambda done, _: step.progress(done, f"{done:,} records"))
            step.said = f"{step.done:,} records, {step.done / seconds:,.0f} per second"
        with screen.step(3, records) as step:
            runs.perkey_in_one_process(step.progress)
            step.said = f"{step.done:,} records, {step.rate():,.0f} per second"
        with screen.step(4, records) as step:
            kill = runs.perkey_on_spark(records, step.progress)
            step.said = f"{step.rate():,.0f} per second, process {kill.pid} killed"
        with screen.step(5) as step:
            step.said = "Spark starts, and reads the topic of alerts"
            runs.table()
            step.said = str(self._options.out / "alerts")
        return kill

    def _look(self, bootstrap: str, kill: Kill) -> Found:
        """What the witnesses saw, and what follows from it."""
        answers = witness.read_answers(self._out / SERVICE_LOG)
        letters = witness.read_topic(bootstrap, stage.DEAD_LETTERS)
        seen: dict[str, checks.RunSeen] = {}
        for run_name in (LOCAL, SPARK):
            group = group_of(run_name)
            seen[run_name] = checks.RunSeen(
                run_name,
                answers.get(run_name, []),
                witness.read_topic(bootstrap, ALERTS[run_name]),
                [one for one in letters if one.headers.get(GROUP_HEADER) == group.encode()],
                witness.lag_of(bootstrap, group, stage.POSITIONS),
                *((str(kill.pid), MEMBER_CONCURRENCY) if run_name == SPARK else ()),
            )
        rows = witness.read_table(self._out / "alerts")
        found = [
            *checks.run_checks(seen[LOCAL], self._fleet, stage.PARTITIONS),
            *checks.run_checks(seen[SPARK], self._fleet, stage.PARTITIONS),
            *checks.table_checks(rows, seen[SPARK].alerts),
        ]
        return Found(self._fleet, answers, seen, kill, rows, found, 0.0)


GROUP_HEADER = "__dlq.errors.group"


def _left_check(children: Children) -> checks.Check:
    """All is stopped: whoever still runs should not."""
    left = left_after(children.family, _GONE_S)
    kill(left)
    meaning = f"still running, of {len(children.family)} processes that were seen"
    return checks.Check("after", "processes left", len(left), 0, meaning)


def write(found: Found, out: Path) -> None:
    """timeline.png, report.html, summary.json."""
    from demo.report import write_report
    from demo.timeline import Line, draw

    lines = (
        Line("A plain loop", found.answers.get(PLAIN, []), "#8a94a3"),
        Line("Perkey in one process", found.answers.get(LOCAL, []), "#0f7b6c"),
        Line("Perkey on Spark", found.answers.get(SPARK, []), "#c2631a", found.kill.at),
    )
    draw(lines, out / TIMELINE)
    write_report(found, out / TIMELINE, out / REPORT)
    (out / SUMMARY).write_text(json.dumps(summary(found), indent=2) + "\n")


# -- around it -------------------------------------------------------------------------------------


@contextmanager
def _work_folder() -> Iterator[Path]:
    """For what Spark and the like leave where they run."""
    folder = Path(tempfile.mkdtemp(prefix="perkey-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP ends the demo; no second one disturbs the clearing up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, _frame: FrameType | None) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before: dict[int, Any] = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _broker_again(options: Options) -> str:
    """The same broker with the same records, now one that outlives us."""
    return Cluster(options.out.absolute() / BROKER_FOLDER).up().bootstrap


def _show_end(console: Console, options: Options, found: Found, address: str | None) -> None:
    told = summary(found)
    rates = (
        f"plain loop {told['vanilla_rate']:,.0f} records/s, "
        f"Perkey {told['perkey_rate']:,.0f} ({told['perkey_factor']:,.0f} ×), "
        f"Perkey on Spark {told['spark_rate']:,.0f} ({told['spark_factor']:,.0f} ×)"
    )
    console.print(rates, highlight=False, soft_wrap=True)
    console.print(f"report: {options.out / REPORT}", highlight=False, soft_wrap=True)
    if address is None:
        return
    folder = options.out / BROKER_FOLDER
    topics = ", ".join((stage.POSITIONS, *ALERTS.values(), stage.DEAD_LETTERS))
    for line in (
        f"the broker is up at {address}, with the topics {topics}",
        (
            f"look around:  perkey offsets show --group {group_of(SPARK)} "
            f"--bootstrap-servers {address}"
        ),
        f"stop it:      perkey broker down --data {folder}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
