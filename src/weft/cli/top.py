"""`weft top`: a live view on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from weft.cli import cluster
from weft.cli.sources import REPORTS, Group, Reports, Servers, Shown, TokenFile, Url, Where
from weft.errors import ConfigError, FatalError, WeftError


def top(
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    every: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between looks.")] = 2.0,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Watch runs live: handlers, partitions, the lanes that stand, failures. `?` tells the keys.

    Every run of yours on this machine that `weft run` started is found by itself.

    Example: weft top --url http://127.0.0.1:8080
    """
    try:
        from weft.cli.top_screen import Top
    except ImportError as error:
        raise ConfigError(f"weft top needs {error.name}: pip install 'weft[top]'") from None
    properties = cluster.properties_of(x, config)
    ask = asking(Where(url, token_file, group, bootstrap_servers, reports, properties).runs)
    ask()  # nobody there, or a wrong token: said before the screen is taken
    Top(ask, every).run()


def asking(runs: Callable[[], list[Shown]]) -> Callable[[], list[dict[str, Any]]]:
    """The snapshots of all runs that answer; raises where none does."""

    def ask() -> list[dict[str, Any]]:
        found, failed = [], FatalError("no run answers")
        for one in runs():
            try:
                found.append(one.ask({"ask": "snapshot"}))
            except WeftError as error:
                failed = FatalError(str(error))  # which names the run
        if not found:
            raise failed
        return found

    return ask
