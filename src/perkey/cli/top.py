"""`perkey top`: a live view in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from perkey.cli import cluster
from perkey.cli.sources import REPORTS, Group, Reports, Servers, Shown, TokenFile, Url, Where
from perkey.errors import ConfigError, FatalError, PerkeyError


def top(
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    every: Annotated[
        float, typer.Option(min=0.2, max=60.0, help="Refresh interval in seconds.")
    ] = 2.0,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the state once as JSON, as perkey status --json.")
    ] = False,
) -> None:
    """Watch runs live: handlers, partitions, blocked lanes, failures. `?` lists the keys.

    Runs started with `perkey run` on this machine are discovered automatically.

    Example: perkey top --url http://127.0.0.1:8080
    """
    properties = cluster.properties_of(x, config)
    where = Where(url, token_file, group, bootstrap_servers, reports, properties, config)
    ask = Asking(where.runs)
    if as_json:
        typer.echo(json.dumps(ask()))
        return
    try:
        from perkey.cli.top_screen import Top
    except ImportError as error:
        raise ConfigError(f"perkey top needs {error.name}: pip install 'perkey[top]'") from None
    ask()  # fail before taking the screen if no run answers or the token is wrong
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("perkey top needs a terminal: use perkey status or perkey status --json")
    Top(ask, every, where.completed).run()


class Asking:
    """Returns the snapshots of all runs that answer; raises if none does."""

    def __init__(self, runs: Callable[[], list[Shown]]) -> None:
        self._runs = runs
        #: why the others did not answer
        self.missing: list[str] = []

    def __call__(self) -> list[dict[str, Any]]:
        """Query all runs."""
        found, missing = [], []
        for one in self._runs():
            try:
                found.append(one.ask({"ask": "snapshot"}))
            except PerkeyError as error:
                missing.append(str(error))  # which names the run
        self.missing = missing
        if not found:
            raise FatalError(missing[-1] if missing else "no run answers")
        return found
