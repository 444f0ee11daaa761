"""The current stack of a call, read from another thread at no cost to the call.

A thread's comes from the interpreter; a coroutine that waits names what it awaits, down to what it
waits for. A worker process is asked through its pipe and answers from a thread of its own.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from weft.account.shown import shown_text
from weft.core.work import Work

#: topic, partition and offset of a record
Where = tuple[str, int, int]

#: the outermost, which is the handler's own, and the innermost: what it waits for is there
LINES_MAX = 12
LINE_CHARS_MAX = 160
_WEFT = str(Path(__file__).parents[2])


def is_of(works: Work | Sequence[Work] | None, where: Where) -> bool:
    """Whether the record at this place is the one, or one of these."""
    if works is None:
        return False
    several = [works] if isinstance(works, Work) else works
    return any(work.record[:3] == where for work in several)


def of_coroutine(call: Any) -> list[str]:
    """Of one that waits: the outermost first."""
    frames = []
    while call is not None:
        frame = _own(call, "frame")
        if frame is not None:
            frames.append(frame)
        call = _own(call, "await") or _own(call, "yieldfrom")
    return lines_of(frames)


def _own(call: Any, what: str) -> Any:
    """Coroutines, generators and async generators name the same things differently."""
    names = (f"{kind}_{what}" for kind in ("cr", "gi", "ag"))
    return next((found for name in names if (found := getattr(call, name, None))), None)


def of_thread(thread: int | None, *, inside: CodeType | None = None) -> list[str]:
    """Of a thread, the outermost first; of what runs `inside` a function of ours alone."""
    frames = _frames(sys._current_frames().get(thread or 0))  # noqa: SLF001  # documented so
    if inside is not None:
        at = next((n for n, frame in enumerate(frames) if frame.f_code is inside), len(frames))
        frames = frames[at + 1 :]
    return lines_of(frames)


def of_call(threads: Sequence[int | None], entry: CodeType, where: Where) -> list[str]:
    """Of the thread that is at this record: `entry` is called with it, or with a batch of it."""
    running = sys._current_frames()  # noqa: SLF001  # documented so
    name = entry.co_varnames[1]
    for thread in threads:
        frames = _frames(running.get(thread or 0))
        for at, frame in enumerate(frames):
            if frame.f_code is entry and is_of(frame.f_locals.get(name), where):
                return lines_of(frames[at + 1 :])
    return []


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The outermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def lines_of(frames: Sequence[FrameType]) -> list[str]:
    """As text, without what of Weft stands around the handler."""
    at = 0
    while at < len(frames) and frames[at].f_code.co_filename.startswith(_WEFT):
        at += 1
    inner = max(at + 1, len(frames) - LINES_MAX + 1)
    return [_line(frame) for frame in [*frames[at : at + 1], *frames[inner:]]]


def _line(frame: FrameType) -> str:
    code, number = frame.f_code, frame.f_lineno or 0
    path = "/".join(Path(code.co_filename).parts[-2:])
    source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    text = f"{path}:{number} {code.co_name}" + (f": {source}" if source else "")
    return shown_text(text, LINE_CHARS_MAX)
