"""The stream of results and the callbacks, without a broker."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from perkey.errors import ConfigError
from perkey.runtime.member.group_membership import Callbacks
from perkey.runtime.run.result_stream import RESULTS_MAX, ResultStream


@pytest.mark.parametrize(
    ("count", "full"), [(RESULTS_MAX - 1, []), (RESULTS_MAX, [True]), (RESULTS_MAX + 1, [True])]
)
def test_a_full_stream_reports_so_once_and_again_when_half_is_read(count, full):
    """At its limit it asks for a rest, at half of it for more."""
    stream, levels = ResultStream(), []
    stream.on_level = levels.append
    stream.put(list(range(count)))
    stream.put([])
    assert levels == full
    while len(levels) == len(full) and stream.take(0):
        pass
    assert levels == [*full, False] if full else levels == []


def test_the_end_comes_after_what_is_left():
    """Nothing that was put before the end is lost."""
    stream = ResultStream()
    stream.put([1, 2])
    stream.end()
    assert list(stream) == [1, 2]
    assert stream.over
    assert stream.closed


def test_leaving_the_loop_closes_the_stream():
    """The app goes on without its reader, and puts into nothing."""
    stream, closed = ResultStream(), threading.Event()
    stream.on_close = closed.set
    stream.put([1, 2, 3])
    for _ in stream:
        break
    assert closed.is_set()
    stream.put([4])
    assert stream.take(0) == []


def test_a_stream_that_was_left_is_not_read_again():
    """It waited until the app ended, and what came since was gone."""
    stream = ResultStream()
    stream.put([1, 2, 3])
    for _ in stream:
        break
    with pytest.raises(ConfigError, match=r"Call app.results\(\) again"):
        next(iter(stream))

    async def read():
        async for _ in stream:
            pass

    with pytest.raises(ConfigError, match="left before the app ended"):
        asyncio.run(read())


def test_a_stream_that_was_read_to_its_end_is_empty():
    """Reading it again finds nothing, and nothing was lost."""
    stream = ResultStream()
    stream.put([1])
    stream.end()
    assert (list(stream), list(stream)) == ([1], [])


def test_callbacks_run_in_order_and_what_they_raise_is_counted():
    """One broken call does not stop the next."""
    callbacks, seen = Callbacks(), []

    def broken(value):
        seen.append(value)
        raise RuntimeError

    callbacks.call(None, 0)
    for value in range(3):
        callbacks.call(broken, value)
    callbacks.call(sys.exit, 1)  # "a thread died, please report it" misled
    callbacks.call(broken, 3)
    callbacks.close(60)
    assert (seen, callbacks.errors) == ([0, 1, 2, 3], 5)
