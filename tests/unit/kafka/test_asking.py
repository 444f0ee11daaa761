"""A consumer's queries to the brokers, by several threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perkey.kafka.consumer import _Asking
from perkey.kafka.ports import KafkaUnavailable

SLOW = ("t", 0)


class Desk(_Asking):
    """The coordinator answers; the leader of one partition never does."""

    def __init__(self) -> None:
        super().__init__(None, {})  # no query reaches a client
        self.asked = threading.Event()
        self.answered = threading.Event()

    def _held(self, partitions: Any, timeout_s: float) -> list[Any]:
        if SLOW in partitions:
            self.asked.set()
            self.answered.wait(30.0)
        raise KafkaUnavailable("no coordinator")


def test_a_bounded_look_up_does_not_wait_for_one_in_the_background() -> None:
    """It runs inside a rebalance callback, which blocks all partitions."""
    desk, ended = Desk(), threading.Event()

    def slow() -> None:
        with pytest.raises(KafkaUnavailable):
            desk.find([SLOW], 30.0)

    def bounded() -> None:
        with pytest.raises(KafkaUnavailable):
            desk.find([("t", 1)], 0.05)
        ended.set()

    threads = [threading.Thread(target=one, daemon=True) for one in (slow, bounded)]
    try:
        threads[0].start()
        assert desk.asked.wait(10.0)
        threads[1].start()
        assert ended.wait(5.0)
    finally:
        desk.answered.set()
        for thread in threads:
            thread.join(10.0)
