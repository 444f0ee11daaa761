"""`perkey …` in this process: what a command prints and its exit code, without a Python of its own.

A start costs half a second of processor time; that the command starts at all is shown where
the README's lines run as printed (tests/integration/test_newcomer.py).
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from perkey.cli import main


def perkey(*arguments: str, stdin: str = "") -> CompletedProcess[str]:
    """Run `perkey …`; its exit code, its output and its errors."""
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors), patch("sys.stdin", given):
        code = main.run(arguments)
    return CompletedProcess(["perkey", *arguments], code, out.getvalue(), errors.getvalue())
