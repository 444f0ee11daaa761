"""The commands of `weft`, by name; each is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft._version import __version__

#: name -> module and function, or the Typer app that holds subcommands
COMMANDS = {
    "run": "weft.cli.run:run",
    "broker": "weft.cli.broker:app",
    "offsets": "weft.cli.offsets:app",
    "topics": "weft.cli.topics:app",
    "produce": "weft.cli.produce:produce",
    "status": "weft.cli.seen:status",
    "why": "weft.cli.seen:why",
    "top": "weft.cli.top:top",
    "lag": "weft.cli.lag:lag",
    "replay": "weft.cli.replay:replay",
    "dlq": "weft.cli.dlq:app",
    "parked": "weft.cli.parked:app",
    "pause": "weft.cli.control:pause",
    "resume": "weft.cli.control:resume",
    "set": "weft.cli.control:set_",
    "stop": "weft.cli.control:stop",
    "key": "weft.cli.records:key_app",
    "record": "weft.cli.records:record_app",
    "redo": "weft.cli.redo:redo",
    "control": "weft.cli.control:log_app",
    "doctor": "weft.cli.doctor:doctor",
    "asyncapi": "weft.cli.asyncapi:asyncapi",
}


class _OnDemand(TyperGroup):
    """Imports only the command that is called."""

    def list_commands(self, _context: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        if name == "parked":
            import_module("weft.cli.records")  # which adds to it
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(module), attribute)
        holder = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name)
        else:
            holder.command(name)(found)
        return typer.main.get_group(holder).commands[name]


def command_line(function: Any) -> typer.Typer:
    """A program with this single command."""
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command()(function)
    return made


app = typer.Typer(
    name="weft",
    cls=_OnDemand,
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables would print passwords.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _weft(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Run one Python handler over Kafka records concurrently, in key order, without loss.

    Example: weft run geofence:app
    """
