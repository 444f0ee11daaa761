"""The event loop Perkey would use here: uvloop's when it is installed, else asyncio's."""

import asyncio
import importlib.util


def loop_name() -> str:
    """What the async runs of this machine use."""
    return "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the same kind as Perkey's, so that the bare baseline is the same kind too."""
    if loop_name() == "asyncio":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
