"""The current stack of a call, read from another thread at no cost to the call.

For a thread it comes from the interpreter; for a waiting coroutine it is the chain of awaits down
to the innermost one. A worker process is queried through its pipe and answers from a separate
thread.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from perkey import guard
from perkey.account.shown import shown_text
from perkey.core.work import Work

#: topic, partition and offset of a record
Where = tuple[str, int, int]

#: lines at the outermost end, which is the handler's own, and at the innermost, where it waits
LINES_MAX = 12
LINE_CHARS_MAX = 160
_PERKEY = str(Path(__file__).parents[2])
_LEDGER = str(Path(__file__).parents[2] / "ledger")


def is_of(works: Work | Sequence[Work] | None, where: Where) -> bool:
    """Whether the record at this place is this one, or one of these."""
    if works is None:
        return False
    several = [works] if isinstance(works, Work) else works
    return any(work.record[:3] == where for work in several)


def of_silent_process(pid: int | None) -> str:
    """Why a worker process does not answer, as far as the system knows."""
    try:
        state = guard.state_of(Path(f"/proc/{pid}"))
    except (OSError, IndexError):  # another system, or it has just ended
        state = ""
    if state == "T":
        return f"worker process {pid} is suspended: resume it with kill -CONT {pid}"
    return f"worker process {pid} does not answer: its call runs outside Python"


def of_coroutine(call: Any) -> list[str]:
    """The stack of a waiting coroutine, outermost line first."""
    frames = []
    while call is not None:
        frame = _own(call, "frame")
        if frame is not None:
            frames.append(frame)
        call = _own(call, "await") or _own(call, "yieldfrom")
    return lines_of(frames)


def _own(call: Any, what: str) -> Any:
    """Coroutines, generators and async generators have different names for the same attribute."""
    names = (f"{kind}_{what}" for kind in ("cr", "gi", "ag"))
    return next((found for name in names if (found := getattr(call, name, None))), None)


def of_thread(thread: int | None, *, inside: CodeType | None = None) -> list[str]:
    """The stack of a thread, outermost first; only the part called by `inside`, one of Perkey's."""
    frames = _frames(sys._current_frames().get(thread or 0))  # noqa: SLF001  # documented so
    if inside is not None:
        at = next((n for n, frame in enumerate(frames) if frame.f_code is inside), len(frames))
        frames = frames[at + 1 :]
    return lines_of(frames)


def of_call(threads: Sequence[int | None], entry: CodeType, where: Where) -> list[str]:
    """The stack of the thread that runs this record: `entry` has it as argument, or its batch."""
    running = sys._current_frames()  # noqa: SLF001  # documented so
    name = entry.co_varnames[1]
    for thread in threads:
        frames = _frames(running.get(thread or 0))
        for at, frame in enumerate(frames):
            if frame.f_code is entry and is_of(frame.f_locals.get(name), where):
                return lines_of(frames[at + 1 :])
    return []


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The frames, outermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def lines_of(frames: Sequence[FrameType]) -> list[str]:
    """The frames as text, without those of Perkey around the handler."""
    at, paths = 0, [frame.f_code.co_filename for frame in frames]
    while at < len(paths) and paths[at].startswith(_PERKEY):
        at += 1
    if 0 < at < len(paths) and paths[at - 1].startswith(_LEDGER):
        # It waits for its database: that line, not the first one of contextlib or SQLAlchemy
        at -= paths[at] == contextlib.__file__ or f"{os.sep}sqlalchemy{os.sep}" in paths[at]
    inner = max(at + 1, len(frames) - LINES_MAX + 1)
    lines = []
    for frame in [*frames[at : at + 1], *frames[inner:]]:
        code, number = frame.f_code, frame.f_lineno or 0
        path = "/".join(Path(code.co_filename).parts[-2:])
        source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
        text = f"{path}:{number} {code.co_name}" + (f": {source}" if source else "")
        lines.append(shown_text(text, LINE_CHARS_MAX))
    return lines
