"""The last 200 events, attached to internal errors.

Only names, counts and short values are kept: no record lives longer because of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any

from weft.core.partition import Partition

EVENTS_MAX = 200
TEXT_MAX = 60


class Recent:
    """A ring of the last events, each with its time and what it was about."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, Any, Any]] = deque(maxlen=EVENTS_MAX)
        #: (time, done, otherwise): calls ended. The ring's own, for it is by far the most frequent
        self.ended: Callable[[tuple[float, int, int]], None] = self._events.append

    def add(self, now: float, event: Callable[..., object]) -> None:
        """Any other event."""
        self._events.append((now, _name(event), tuple(_about(event))))

    def lines(self) -> list[str]:
        """The events, oldest first."""
        return [_line(*event) for event in self._events]

    def as_text(self) -> str:
        """All of it in one text, to be added to an error."""
        events = self.lines()
        return "\n".join([f"The last {len(events)} events, oldest first:", *events])


def _line(now: float, what: Any, about: Any) -> str:
    if isinstance(what, int):
        return f"  {now:.3f} calls_ended: {what} done, {about} otherwise"
    return f"  {now:.3f} {what}: {', '.join(about)}" if about else f"  {now:.3f} {what}"


def _name(event: Callable[..., object]) -> str:
    """The method of the engine that the event calls first."""
    function = event.func if isinstance(event, partial) else event
    code = getattr(function, "__code__", None)
    if code is None:
        return type(event).__name__
    inner = code.co_name == "<lambda>" and code.co_names
    return str(code.co_names[0] if inner else code.co_name)


def _about(event: Callable[..., object]) -> Iterator[str]:
    """What it holds: the values that a lambda closes over, or a partial's arguments."""
    if isinstance(event, partial):
        yield from (_short(value) for value in event.args)
        return
    names = getattr(getattr(event, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(event, "__closure__", None) or (), strict=False):
        try:
            yield f"{name}={_short(cell.cell_contents)}"
        except ValueError:  # not assigned yet
            continue


def _short(value: object) -> str:
    """A value in few characters; of what holds records only how many."""
    if value is None or isinstance(value, bool | int | float | str | Partition):
        return repr(value)[:TEXT_MAX]
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Partition):
        return repr(value[0])
    return f"{type(value).__name__}[{len(value)}]" if isinstance(value, Sized) else "…"
