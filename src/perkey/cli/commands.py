"""The commands of `perkey`, by name; each is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from perkey._version import __version__

#: name -> module and function, or the Typer app that holds subcommands
COMMANDS = {
    "run": "perkey.cli.run:run",
    "broker": "perkey.cli.broker:app",
    "offsets": "perkey.cli.offsets:app",
    "topics": "perkey.cli.topics:app",
    "produce": "perkey.cli.produce:produce",
    "status": "perkey.cli.seen:status",
    "why": "perkey.cli.seen:why",
    "top": "perkey.cli.top:top",
    "lag": "perkey.cli.lag:lag",
    "replay": "perkey.cli.replay:replay",
    "dlq": "perkey.cli.dlq:app",
    "parked": "perkey.cli.parked:app",
    "pause": "perkey.cli.control:pause",
    "resume": "perkey.cli.control:resume",
    "set": "perkey.cli.control:set_",
    "stop": "perkey.cli.control:stop",
    "key": "perkey.cli.records:key_app",
    "record": "perkey.cli.records:record_app",
    "control": "perkey.cli.control:log_app",
    "doctor": "perkey.cli.doctor:doctor",
    "asyncapi": "perkey.cli.asyncapi:asyncapi",
}


class _OnDemand(TyperGroup):
    """Imports only the command that is called."""

    def list_commands(self, _context: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        if name == "parked":
            import_module("perkey.cli.records")  # which adds to it
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
    name="perkey",
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
        typer.echo(f"perkey {__version__}")
        raise typer.Exit


@app.callback()
def _perkey(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Run one Python handler over Kafka records concurrently, in key order, without loss.

    Example: perkey run geofence:app
    """
