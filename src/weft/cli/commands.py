"""The commands of `weft`, by name; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft._version import __version__

#: name -> where its function is, or the Typer app with its own commands
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
}


class _OnDemand(TyperGroup):
    """Knows its commands by name, and imports the one that is called."""

    def list_commands(self, _context: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(module), attribute)
        holder = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name)
        else:
            holder.command(name)(found)
        return typer.main.get_group(holder).commands[name]


def command_line(function: Any) -> typer.Typer:
    """A program that is this one command."""
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
    """One Python handler, many calls at once, with every promise of a single-threaded consumer.

    Example: weft run geofence:app
    """
