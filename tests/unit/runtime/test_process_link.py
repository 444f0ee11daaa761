"""The parent's end of a worker's pipe: what it reads, and when it waits for more."""

from __future__ import annotations

import os
import pickle
import struct
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.runtime.calls.processes import link as module
from perkey.runtime.calls.processes.link import GATHER_S, KEPT, Link, messages_in

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
