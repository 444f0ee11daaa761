"""`weft run module:app`: one app in this process, until it is stopped or drained."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from weft.cli.load import load_app
from weft.cli.logs import set_up
from weft.errors import ConfigError
from weft.runtime.progress import ProgressLine


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", help="The app, such as geofence:app for app in geofence.py."
        ),
    ],
    engine: Annotated[
        str, typer.Option(help="Where it runs: local, this process; spark, its executors.")
    ] = "local",
    until: Annotated[
        str | None,
        typer.Option(help="drained: end when all that is there at the start is finished with."),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="spark: how many members, a task slot each.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="spark: such as spark://HOST:PORT; without it, local with a slot each."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="spark: a Spark property; may be repeated."),
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json, one line an event.")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> int:
    """Run an app, here or as a fleet on Spark. The current folder is importable.

    SIGINT or SIGTERM stops it: what runs is finished and committed.

    Exit codes: 0 done, or a clean stop; 1 stopped by weft.Stop, a fatal Kafka error, or fenced;
    2 bad input; 3 drained, but parked records remain; 130 or 143 after a second signal.

    Example: weft run geofence:app --until drained
    """
    how: dict[str, Any] = {"engine": engine, "until": until, "members": members, "master": master}
    return run_app(target, log_format, log_level, **how, conf=properties_of(conf))


def properties_of(given: list[str] | None) -> dict[str, str] | None:
    """`--conf key=value` as a dict; raises ConfigError for what is no pair."""
    if not given:
        return None
    pairs = [one.partition("=") for one in given]
    for (name, sign, _), one in zip(pairs, given, strict=True):
        if not name or not sign:
            raise ConfigError(
                f"--conf {one!r} is no KEY=VALUE: write --conf spark.ui.enabled=false"
            )
    return {name: value for name, _, value in pairs}


def run_app(target: str, log_format: str, log_level: str, **how: Any) -> int:
    """Load the app and call `app.run(**how)` on it; the exit code."""
    console = Console(stderr=True)
    set_up(console, log_format, log_level)
    application = load_app(target)
    with ProgressLine(application.snapshot, console):
        report = application.run(**how)
    if report.exit_code:
        typer.echo(f"weft: {' '.join(report.reason.split())}", err=True)
    return report.exit_code
