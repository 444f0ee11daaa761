"""What shows that the process or its machine was suspended; worker processes load it alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

SUSPENDED_S = 1.0  # a polling thread runs ten rounds in that time

#: Seconds that also pass while the machine is suspended. time.monotonic stops then, and would hide
#: that the session has ended meanwhile. One clock for all processes.
since_boot: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
