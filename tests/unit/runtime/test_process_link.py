"""The parent's end of a worker's pipe: what it reads, and when it waits for more."""

from __future__ import annotations

import os
import pickle
import struct
import time
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.runtime.calls.processes import link as module
from perkey.runtime.calls.processes.link import (
    GATHER_S,
    KEPT,
    SLOW_S,
    WINDOW_MAX,
    Link,
    messages_in,
)
from perkey.runtime.calls.processes.protocol import IDLE

MESSAGES = ["a", b"b" * 7_000, {"c": 3}]


def written() -> bytes:
    """The messages as a connection of multiprocessing writes them."""
    ours, theirs = Pipe(duplex=True)
    with ours, theirs:
        for message in MESSAGES:
            theirs.send_bytes(pickle.dumps(message))
        theirs.close()
        return b"".join(iter(lambda: os.read(ours.fileno(), 1 << 20), b""))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000, 1 << 20])
def test_messages_are_read_however_they_are_cut(size: int) -> None:
    """A read may end inside a header, inside a message, or bring many."""
    unread, messages = bytearray(), []
    for start in range(0, len(data := written()), size):
        unread += data[start : start + size]
        messages += messages_in(unread)
    assert messages == MESSAGES
    assert unread == b""


def test_a_message_with_a_long_header_is_read() -> None:
    """Its length is in eight bytes where it is above 2 GiB; multiprocessing writes -1 before it."""
    data = pickle.dumps("long")
    unread = bytearray(struct.pack("!iQ", -1, len(data)) + data)
    half = bytearray(unread[:9])
    assert list(messages_in(half)) == []
    assert list(messages_in(unread)) == ["long"]


@pytest.mark.parametrize(
    ("given", "latency_s", "waited_s"),
    [
        (0, 0.001, []),
        (KEPT, 0.001, []),
        (KEPT + 1, 0.0005, [0.0005]),
        (KEPT + 60, 0.0005, [GATHER_S]),
    ],
)
def test_answers_gather_only_while_the_worker_has_more_to_do(
    monkeypatch: Any, given: int, latency_s: float, waited_s: list[float]
) -> None:
    """A worker that would run dry, or whose calls are long, is answered immediately."""
    sleeps: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleeps.append))
    link = Link.__new__(Link)
    link.given, link._latency_s = dict.fromkeys(range(given)), latency_s  # type: ignore[assignment]  # of no items
    link._gather()
    assert sleeps == waited_s


@pytest.mark.parametrize(
    ("latency_s", "share", "room"),
    [
        (0.001, 1, 1 + 4),
        (0.001, 10, 10),
        (0.001, 1_000, 1 + 20),
        (0.000_01, 1_000, 1 + WINDOW_MAX),
        (0.005, 1_000, 1),
    ],
)
def test_a_worker_has_as_much_to_do_as_the_others(latency_s: float, share: int, room: int) -> None:
    """20 ms of short calls where that is its equal part of all, 4 ms in any case."""
    assert opened_link(latency_s).room(share) == room


def test_a_worker_whose_call_takes_long_gets_no_more() -> None:
    """What waits behind it is for others; and nothing is behind a call of at_most_once."""
    slow, single = opened_link(0.001), opened_link(0.001)
    slow._running.value, slow._began.value = 1, time.monotonic() - 2 * SLOW_S
    single._one_at_a_time = True
    assert (slow.room(100), single.room(100)) == (1, 1)


def opened_link(latency_s: float) -> Link:
    """A link without a child, which has been given nothing."""
    link = Link.__new__(Link)
    link.opened, link._rests, link.given, link._latency_s = True, 0, {}, latency_s
    link._one_at_a_time = False
    link._running, link._began = SimpleNamespace(value=IDLE), SimpleNamespace(value=0.0)
    return link
