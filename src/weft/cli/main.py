"""The `weft` command: its sub-commands, and how their errors end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from weft._version import __version__
from weft.cli import broker, lag, offsets, produce, replay, seen, top, topics
from weft.cli.run import run as run_command
from weft.errors import ConfigError, WeftError
from weft.kafka.failures import told_by_kafka

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_GRACE_S = 2.0  # for what else holds the process: a handler's own thread that hangs

app = typer.Typer(
    name="weft",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables would print passwords.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command)
app.add_typer(broker.app, name="broker")
app.add_typer(offsets.app, name="offsets")
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("status")(seen.status)
app.command("why")(seen.why)
app.command("top")(top.top)
app.command("lag")(lag.lag)
app.command("replay")(replay.replay)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _weft(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """One Python handler, many calls at once, with every promise of a single-threaded consumer.

    Example: weft run geofence:app
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad input; errors are one line."""
    code = run(arguments)
    _end_soon(code)
    sys.exit(code)


def _end_soon(code: int) -> None:
    """End the process with its exit code even if a handler's own thread hangs.

    Python waits at its end for the threads of every pool, such as asyncio.to_thread's.
    """

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(EXIT_GRACE_S, end)
    timer.daemon = True
    timer.start()


def run(
    arguments: Sequence[str] | None = None, command: typer.Typer = app, name: str = "weft"
) -> int:
    """Run the command line, or that of another program; return its exit code."""
    try:
        result = command(arguments, prog_name=name, standalone_mode=False)
    except ConfigError as error:
        return _fail(str(error), EXIT_BAD_INPUT)
    except WeftError as error:
        return _fail(str(error), EXIT_FAILED)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        if (refused := told_by_kafka(error)) is not None:
            return _fail(refused, EXIT_FAILED)
        # Typer's usage errors have no public base class in all versions; they have this method.
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        return _fail_usage(error, usage())
    return result if isinstance(result, int) else 0


def _fail_usage(error: Exception, message: str) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "weft"
    if message.startswith("Usage:"):  # No arguments at all: the message is the help text.
        typer.echo(message, err=True)
        return EXIT_BAD_INPUT
    return _fail(f"{message.rstrip('.')}; see `{command} --help`", EXIT_BAD_INPUT)


def _fail(message: str, code: int) -> int:
    typer.echo(f"weft: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
