"""`perkey …` in this process: what a command prints and its exit code, without a Python of its own.

A start costs half a second of processor time; that the command starts at all is shown where
the README's lines run as printed (tests/integration/test_newcomer.py).
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from perkey.cli import main


def perkey(*arguments: str, stdin: str = "") -> CompletedProcess[str]:
    """Run `perkey …`; its exit code, its output and its errors."""
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    out, errors = io.StringIO(), io.StringIO()
    with log_restored(), redirect_stdout(out), redirect_stderr(errors), patch("sys.stdin", given):
        code = main.run(arguments)
    return CompletedProcess(["perkey", *arguments], code, out.getvalue(), errors.getvalue())


@contextmanager
def log_restored() -> Iterator[None]:
    """The levels and handlers that a command sets end with it, as its process would."""
    loggers = [logging.getLogger(), logging.getLogger("perkey")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    try:
        yield
    finally:
        for logger, (level, handlers) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.handlers[:] = handlers
