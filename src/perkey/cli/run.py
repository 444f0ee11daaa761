"""`perkey run module:app`: run one app until it is stopped or drained."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from perkey.cli.load import Target, load_app
from perkey.cli.logs import check, set_up
from perkey.errors import ConfigError
from perkey.numeric import is_positive
from perkey.runtime.run.outside import SOCKET_VARIABLE
from perkey.runtime.run.progress_line import ProgressLine

if TYPE_CHECKING:
    from perkey.spark.table.sink import TableSink

EXAMPLE = '--sink delta:s3://bucket/checked --sink-schema "inside boolean, zone string"'

HttpTokenFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Token for --http beyond loopback.")
]
ControlTopic = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Topic with commands to the group, App(control=…)."),
]
AllowControl = Annotated[
    bool, typer.Option("--allow-control", help="Accept commands by HTTP; needs --http-token-file.")
]


def run(
    target: Target,
    engine: Annotated[
        str, typer.Option(help="Where it runs: local (this process) or spark (a fleet).")
    ] = "local",
    until: Annotated[
        str | None,
        typer.Option(help="drained: stop when all records present at the start are finished."),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="spark: number of members; each takes one task slot.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="spark: master, such as spark://HOST:PORT. Default: local slots."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="spark: a Spark property; repeatable."),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="spark: results to delta:URI, iceberg:CATALOG:NAME."),
    ] = None,
    sink_schema: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help='spark: a new table: "inside boolean, zone string".'),
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json; one line per event.")] = "text",
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. Default: info.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the web page, probes and metrics here."),
    ] = None,
    http_token_file: HttpTokenFile = None,
    allow_control: AllowControl = False,
    control: ControlTopic = None,
    start_timeout: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="How long to wait for brokers; none: no limit."),
    ] = None,
    no_progress: Annotated[
        bool,
        typer.Option("--no-progress", help="Disable progress output, also in logs."),
    ] = False,
) -> int:
    """Run an app in this process or as a fleet on Spark. The current folder is importable.

    SIGINT or SIGTERM stops it: running calls are finished and committed.

    Exit codes: 0 done, or a clean stop; 1 stopped by perkey.Stop, a fatal Kafka error, or fenced;
    2 bad input; 3 drained, but parked records remain; 130 or 143 after a second signal.

    Example: perkey run geofence:app --until drained
    """
    given = {"http": http, "http_token_file": http_token_file, "allow_control": allow_control}
    served: dict[str, Any] = {name: one for name, one in given.items() if one}
    if control is not None:
        served["control"] = control
    if start_timeout is not None:
        served["start_timeout_s"] = patience_of(start_timeout)
    how: dict[str, Any] = {"engine": engine, "until": until, "members": members, "master": master}
    return run_app(
        target,
        log_format,
        log_level,
        served,
        progress=not no_progress,
        **how,
        conf=properties_of(conf),
        sink=table_of(sink, sink_schema),
    )


def patience_of(given: str) -> float | None:
    """`--start-timeout`: seconds, or None for "none"."""
    if given == "none":
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not is_positive(seconds):
        raise ConfigError(f"--start-timeout {given!r:.40}: give seconds above 0, or none")
    return seconds


def properties_of(given: list[str] | None) -> dict[str, str] | None:
    """`--conf key=value` as a dict; raises ConfigError for anything else."""
    if not given:
        return None
    pairs = [one.partition("=") for one in given]
    for (name, sign, _), one in zip(pairs, given, strict=True):
        if not name or not sign:
            raise ConfigError(
                f"--conf {one!r} is not KEY=VALUE: write --conf spark.ui.enabled=false"
            )
    return {name: value for name, _, value in pairs}


def table_of(sink: str | None, schema: str | None) -> TableSink | None:
    """The table that `--sink` and `--sink-schema` name; ConfigError for anything else."""
    if sink is None:
        if schema is not None:
            raise ConfigError(f"--sink-schema requires --sink: write {EXAMPLE}")
        return None
    kind, _, where = sink.partition(":")
    if kind == "parquet":
        raise ConfigError(f"--sink {sink}: plain Parquet tables are gone: write {EXAMPLE}")
    if kind == "iceberg" and all(where.partition(":")):
        from perkey.spark.table import IcebergTable

        catalog, _, name = where.partition(":")
        return IcebergTable(catalog, name, schema)
    if kind != "delta" or not where:
        raise ConfigError(f"--sink {sink!r} is not a table: write {EXAMPLE}")
    from perkey.spark.table import DeltaTable

    return DeltaTable(where, schema)


def run_app(
    target: str,
    log_format: str,
    log_level: str | None,
    served: dict[str, Any],
    *,
    progress: bool = True,
    **how: Any,
) -> int:
    """Load the app and call `app.run(**how)` on it; the exit code."""
    console = Console(stderr=True)
    check(log_format, log_level)
    # The app first: logging that it configures is kept.
    application = load_app(target)
    set_up(console, log_format, log_level)
    os.environ.setdefault(SOCKET_VARIABLE, "1")
    application.serve_at(**served)
    shown = ProgressLine(application.snapshot, console) if log_format == "text" else None
    with shown if shown is not None and progress else nullcontext():
        report = application.run(**how)
    if report.exit_code:
        typer.echo(f"perkey: {' '.join(report.reason.split())}", err=True)
    return report.exit_code
