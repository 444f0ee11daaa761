"""The last events before the engine failed."""

from __future__ import annotations

from functools import partial

import pytest

from perkey.core import states
from perkey.core.engine import Engine
from perkey.core.events import Assignment, HandlerSpec
from perkey.core.states import InternalError
from perkey.core.work import Work
from perkey.runtime.door import EVENTS_MAX, Door, Recent
from perkey.types import Record


def test_an_internal_error_carries_the_story() -> None:
    """What went through the door before an error stands behind its message, in order."""
    door = Door(Engine([HandlerSpec("h")]), lambda effects: None, lambda: 7.0)
    places = [Assignment("t", 0, 0, 0)]
    (partition,) = door.call(lambda engine, now: engine.assigned(now, places))
    stray = Work.one(Record("t", 0, 5, 0, None, b"secret"), 1, partition)
    with pytest.raises(InternalError) as caught:
        door.call(lambda _engine, _now: stray.move(states.QUEUED))
    story = "\n".join(caught.value.__cause__.__notes__)
    assert "7.000 assigned: places=list[1]" in story
    assert story.endswith("7.000 move: stray=…")
    assert "secret" not in story


@pytest.mark.parametrize(("events", "kept"), [(199, 199), (200, 200), (201, 200)])
def test_it_keeps_the_last_200(events: int, kept: int) -> None:
    """Older events are forgotten."""
    recent = Recent()
    for number in range(events):
        recent.ended((float(number), 1, 0))
    assert (len(recent.lines()), EVENTS_MAX) == (kept, 200)
    assert recent.lines()[-1] == f"  {events - 1:.3f} calls_ended: 1 done, 0 otherwise"


def test_a_partial_is_named_by_its_function() -> None:
    """Events need not be lambdas."""

    def polled(batches: list[int], engine: Engine, now: float) -> None:
        """An event."""

    recent = Recent()
    recent.add(1.0, partial(polled, [1, 2, 3]))
    assert recent.lines() == ["  1.000 polled: list[3]"]
