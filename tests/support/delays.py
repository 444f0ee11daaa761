"""Races between threads, made likely: chosen lines of Perkey and of its tests are slow.

    PERKEY_DELAYS=back:7 python -m pytest -p tests.support.delays tests/unit

A thread rests before some lines and returns, which a hash of the seed chooses: each line is slow in
some seed. `back`: threads other than the main one, whose test sees an effect before what its cause
does next. `log`: these threads, and each of their log lines comes late. `main`: the main thread
alone, for which the others are too quick. A failure shows where its test has rested. What a test
rests in all is limited: a time limit that counts is not what this looks for.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from zlib import crc32

import pytest
from tests.support import waiting

REST_S = 0.05
#: of a test, and of one line in it: a loop leaves something for the others
RESTS_MAX, RESTS_OF_LINE_MAX = 40, 4
#: of all lines
SHARE = 0.05
MODES = ("back", "log", "main")
ROOT = Path(__file__).parents[2]
PLACES = tuple(f"{ROOT / name}/" for name in ("src/perkey", "tests"))
#: the line number of a return
RETURN = 0

_sleep = time.sleep  # tests patch it
_LOGGED = logging.Logger.handle.__code__


class Delays:
    """Which lines are slow, and where the present test has rested."""

    def __init__(self, drawn: str) -> None:
        """`drawn`: MODE:SEED."""
        self.drawn = drawn
        self._mode, _, self._seed = drawn.partition(":")
        if self._mode not in MODES or not self._seed.isdigit():
            raise pytest.UsageError(f"PERKEY_DELAYS={drawn!r}: MODE:SEED, a mode of {MODES}")
        self._slow: dict[CodeType, frozenset[int]] = {}
        self._rests: Counter[str] = Counter()
        # Where a test looks seldom, it sees the effect only after the rest.
        waiting.LOOK_MAX_S = waiting.LOOK_MIN_S
        if self._mode != "main":
            threading.settrace(self._enter)
        if self._mode == "log":
            self._slow[_LOGGED] = frozenset({_first(_LOGGED)})

    # -- of each thread ----------------------------------------------------------------------------

    def _enter(self, frame: FrameType, what: str, value: object) -> Any:
        """A function is called: follow it if a line of it is slow."""
        code = frame.f_code
        slow = self._slow.get(code)
        if slow is None:
            slow = self._slow[code] = frozenset(self._choose(code))
        return self._line if slow else None

    def _choose(self, code: CodeType) -> Iterator[int]:
        path = code.co_filename
        if not path.startswith(PLACES) or path in {__file__, waiting.__file__}:
            return
        if not code.co_flags & CO_OPTIMIZED:  # of a module or class: it runs once, at its import
            return
        for line in {RETURN, *(line for *_, line in code.co_lines() if line)}:
            # Counted from the first line: a change above moves nothing.
            place = line and line - code.co_firstlineno
            name = f"{self._seed} {path[len(str(ROOT)) :]} {code.co_qualname} {place}"
            if crc32(name.encode()) % 1000 < SHARE * 1000:
                yield line

    def _line(self, frame: FrameType, what: str, value: object) -> Any:
        line = RETURN if what == "return" else frame.f_lineno
        if what in {"line", "return"} and line in self._slow[frame.f_code]:
            code, me = frame.f_code, threading.current_thread()
            at = f"{code.co_filename}:{frame.f_lineno} {what} of {code.co_qualname} in {me.name}"
            if code is _LOGGED:  # each kind of line is one
                at += f": {frame.f_locals['record'].msg}"
            if self._rests[at] < RESTS_OF_LINE_MAX and self._rests.total() < RESTS_MAX:
                self._rests[at] += 1
                _sleep(REST_S)
        return self._line

    # -- of pytest ---------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Each test may rest anew."""
        self._rests.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Any:
        """The main thread, where it is the slow one."""
        if self._mode == "main":
            sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        """Where it has rested, beside the failure."""
        report = yield
        if report.failed:
            rests = "\n".join(f"{count} × {at}" for at, count in self._rests.items())
            report.sections.append((f"PERKEY_DELAYS={self.drawn}", rests))
        return report

    def pytest_report_header(self) -> str:
        """What replays it."""
        return f"PERKEY_DELAYS={self.drawn}"


def _first(code: CodeType) -> int:
    """The first line of its body."""
    return min(line for *_, line in code.co_lines() if line and line > code.co_firstlineno)


def pytest_configure(config: pytest.Config) -> None:
    """Before a thread is started."""
    config.pluginmanager.register(
        Delays(os.environ.get("PERKEY_DELAYS", f"back:{int(time.time())}"))
    )
