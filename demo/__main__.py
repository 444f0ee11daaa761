"""`python -m demo`: the main job from end to end, with its proof."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perkey.cli.commands import command_line
from perkey.cli.main import run as run_program


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="A tenth of the records.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the broker up at the end.")] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the report and the table.")
    ] = Path("demo-out"),
) -> None:
    """Show the whole job on this machine: real Kafka, real Spark, a real HTTP service.

    400 vehicles send GPS positions; each is checked by a service that takes 50 ms, in order. It
    measures a plain loop, Perkey in one process, and Perkey on Spark with a member killed on the
    way, writes the alerts into a Parquet table, and proves from outside that nothing is lost.
    It leaves report.html, timeline.png and summary.json, and exits 1 when a check fails.

    Example: python -m demo --fast
    """
    from demo.run import Options, run

    run(Options(out.expanduser(), fast=fast, keep=keep), Console(stderr=True))


if __name__ == "__main__":
    sys.exit(run_program(None, command_line(demo), "python -m demo"))
