"""How a test waits: for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: for what takes a moment on a quiet machine
LIMIT_S = 90.0
LOOK_MIN_S, LOOK_MAX_S = 0.002, 0.1
#: of the time that it waits, what lies between two looks: looking costs little, however long it takes
LOOK_SHARE = 0.05


def wait_for(condition: Callable[[], Any], timeout_s: float = LIMIT_S, what: object = "") -> Any:
    """What the condition returned when it was first true; `what` is for the message of a failure.

    A function as `what` is called then.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            shown = what() if callable(what) else what
            raise AssertionError(f"not within {timeout_s} s: {shown or condition}")
        time.sleep(min(LOOK_MAX_S, max(LOOK_MIN_S, LOOK_SHARE * waited_s)))  # between two looks
    return found
