"""`perkey replay module:app`: process a time range of a topic again, here or on Spark."""

from __future__ import annotations

import datetime as dt
import json
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console

from perkey.cli.load import Target, load_app
from perkey.cli.logs import set_up
from perkey.cli.run import properties_of
from perkey.errors import ConfigError, FatalError, PerkeyError
from perkey.runtime.run.progress_line import ProgressLine
from perkey.runtime.run.replay_run import ReplayRun, Stretch
from perkey.runtime.run.run_snapshot import STOPPED

EXIT_FAILURES_REMAIN = 3
FATES = {
    "dead_lettered": "dead-lettered", "skipped": "skipped", "parked": "parked", "failed": "failed",
}  # fmt: skip
TIME_MS_MAX = 2**53


def replay(
    target: Target,
    topic: Annotated[str, typer.Option(help="The topic; its handler in the app processes it.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start time: 2026-03-01T10:00 (UTC without a zone) or UNIX milliseconds.",
        ),
    ],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="End time, exclusive.")],
    key: Annotated[str | None, typer.Option(help="Only records of this key.")] = None,
    engine: Annotated[
        str, typer.Option(help="Where it runs: local (this process) or spark.")
    ] = "local",
    output: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="local: in place of the handler's output= topic."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="spark: master, such as spark://HOST:PORT. Default: all cores here."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="spark: a Spark property; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Disable the progress bar.")
    ] = False,
) -> int:
    """Process the records of a time range again.

    In this process, or on Spark. Outputs go to their topics. No group is joined and committed
    offsets do not change. Side effects of the handler happen again. Here retries and dead letters
    are those of the app; on Spark a record is handled by its retry policy and then counted as
    failed.

    Exit codes: 0 all records are finished, or a clean stop; 1 it failed; 2 bad input; 3 parked
    records remain, on Spark: some records failed; 130 or 143 after a second signal.

    Example: perkey replay geofence:app --topic gps.positions --from 2026-03-01T10:00
    --to 2026-03-01T11:00
    """
    from_ms, to_ms = time_ms("--from", start), time_ms("--to", end)
    if from_ms >= to_ms:
        raise ConfigError(f"--from {start} is not before --to {end}: swap them")
    if engine not in ("local", "spark"):
        raise ConfigError(f"--engine {engine!r:.40} is not known: choose local or spark")
    if engine == "local" and (master is not None or conf):
        raise ConfigError("--master and --conf require --engine spark: omit them")
    if engine == "spark" and output is not None:
        raise ConfigError("--output requires --engine local: omit it")
    app = load_app(target)
    if engine == "local":
        stretch = Stretch(topic, from_ms, to_ms, None if key is None else key.encode(), output)
        return _here(app, stretch, as_json, progress=not no_progress)
    bar = str(sys.stderr.isatty() and not no_progress).lower()
    properties = {"spark.ui.showConsoleProgress": bar, **(properties_of(conf) or {})}
    return _replay(app, (topic, from_ms, to_ms, key), master, properties, as_json)


def _here(app: Any, stretch: Stretch, as_json: bool, *, progress: bool) -> int:
    """In this process: the exit code of the run."""
    console = Console(stderr=True)
    set_up(console, "text", "warning")
    run = ReplayRun(app, stretch)
    app.adopt(run, app.options)
    run.install_signals()
    try:
        run.start()
        with ProgressLine(run.snapshot, console) if progress else nullcontext():
            report = run.wait()
    finally:
        run.restore_signals()
    counts = run.outcomes
    done, records = counts["done"], counts.total() - counts["superseded"]
    complete = report.reason != STOPPED
    if as_json:
        facts = {
            "records": records, "done": done, "failed": records - done, "outputs": run.outputs,
            "failures": run.failures, "complete": complete,
            **{name: counts[name] for name in ("dead_lettered", "skipped", "parked")},
        }  # fmt: skip
        typer.echo(json.dumps(facts))
    else:
        others = [f"{counts[name]} {word}" for name, word in FATES.items() if counts[name]]
        what = ", ".join([f"{done} done", *others])
        typer.echo(f"{records} records: {what}; {run.outputs} outputs")
        for line in run.failures:
            typer.echo(f"failed: {line}", err=True)
    if report.exit_code:
        typer.echo(f"perkey: {' '.join(report.reason.split())}", err=True)
    elif not complete:
        typer.echo("perkey: stopped before the end of the range: start it again", err=True)
    return report.exit_code


def _replay(
    app: Any,
    stretch: tuple[str, int, int, str | None],
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> int:
    from perkey.spark.requirements import check_spark_packages, use_this_python

    check_spark_packages()
    use_this_python()
    from perkey.spark import replaying
    from perkey.spark.fleet.session import one_line

    topic, from_ms, to_ms, key = stretch
    replaying.handler_for(app, topic)
    # Before Spark's Java starts, which takes the environment as it is then.
    kafka = replaying.source_properties(app.options.kafka)
    spark = replaying.session(master, conf, topic)
    try:
        found = replaying.replay_stretch(
            spark,
            app,
            replaying.Stretch(topic, from_ms, to_ms, None if key is None else key.encode()),
            kafka,
        )
    except PerkeyError:
        raise
    except Exception as error:
        raise FatalError(f"the replay failed: {one_line(error)}") from error
    finally:
        spark.stop()
    if as_json:
        facts = {
            "records": found.records, "done": found.records - found.failed,
            "failed": found.failed, "outputs": found.outputs, "failures": list(found.failures),
        }  # fmt: skip
        typer.echo(json.dumps(facts))
    else:
        done = found.records - found.failed
        typer.echo(
            f"{found.records} records: {done} done, {found.failed} failed; {found.outputs} outputs"
        )
        for line in found.failures:
            typer.echo(f"failed: {line}", err=True)
    return EXIT_FAILURES_REMAIN if found.failed else 0


def time_ms(option: str, text: str) -> int:
    """A time of the command line as milliseconds."""
    if text.isascii() and text.isdigit():
        if int(text) > TIME_MS_MAX:
            raise ConfigError(
                f"{option} {text}: not a time in milliseconds: write one such as 1772359200000"
            )
        return int(text)
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text!r}: write a time such as 2026-03-01T10:00, or milliseconds"
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return round(when.timestamp() * 1000)
