"""The `perkey` command: start and error handling. Imports as little as possible."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from perkey._version import __version__
from perkey.errors import did_you_mean
from perkey.runtime.run.exits import EXIT_BAD_INPUT, refused

EXIT_INTERRUPTED = 130
EXIT_GRACE_S = 2.0  # for other threads, such as a handler's own one that hangs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad input; errors are one line."""
    code = run(arguments)
    # Exit with the code even if a thread of a handler hangs

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(EXIT_GRACE_S, end)
    timer.daemon = True
    timer.start()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None, command: Any = None, name: str = "perkey") -> int:
    """Run the command line, or another program's; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if command is None and list(words) == ["--version"]:  # without Typer: 20 ms, not 100
        sys.stdout.write(f"perkey {__version__}\n")
        return 0
    for number, word in enumerate(words, 1):
        if any("\udc80" <= letter <= "\udcff" for letter in word):  # bytes of another encoding
            return _fail(f"argument {number} is not UTF-8 text: {word!r:.80}", EXIT_BAD_INPUT)
    from perkey.cli.commands import app

    try:
        result = (command or app)(arguments, prog_name=name, standalone_mode=False)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        import typer

        if isinstance(error, typer.Abort):
            return _fail("interrupted", EXIT_INTERRUPTED)
        if (known := refused(error)) is not None:
            code, line = known
            return _fail(line, code)
        # Typer's usage errors have no public base class in all versions; they have this method.
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        context: Any = getattr(error, "ctx", None)
        command = context.command_path if context else "perkey"
        message = usage().replace(": Value error, ", ": ")  # Typer's prefix
        if message.startswith("No such command"):
            from perkey.observe.orders import RETIRED

            names, word = context.command.list_commands(context), message.split("'")[1]
            like = RETIRED.get(word) or did_you_mean(
                word, names, f"choose one of {', '.join(names)}", alike=0.75
            )
            message = f"{message.partition('.')[0]}: {like}"
        if message.startswith("Usage:"):  # No arguments at all: the message is the help text.
            sys.stderr.write(f"{message}\n")
            return EXIT_BAD_INPUT
        return _fail(f"{message.rstrip('.')}; see `{command} --help`", EXIT_BAD_INPUT)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"perkey: {' '.join(message.split())}\n")
    return code


if __name__ == "__main__":
    main()
