"""`weft …` in this process: what a command prints and its exit code, without a Python of its own.

A start costs half a second of processor time; that the command starts at all is shown where an
operator's commands run as printed (tests/integration/test_newcomer.py, test_lag_cli.py).
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from weft.cli import main


def weft(*arguments: str) -> CompletedProcess[str]:
    """Run `weft …`; its exit code, its output and its errors."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        code = main.run(arguments)
    return CompletedProcess(["weft", *arguments], code, out.getvalue(), errors.getvalue())
