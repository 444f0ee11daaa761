"""One plain broker for all workers of a run: an idle one takes a fortieth of a core.

pytest's own process starts it for the first worker that asks, and ends it. A test that kills or
suspends its broker takes `mortal_broker`.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Client, Listener

import pytest

from perkey.broker import LocalBroker
from perkey.broker.topics import wait_for_groups

PATH = "PERKEY_TEST_BROKER"
#: No stand-still of a busy machine has it fenced, and its topics refused.
PATIENCE = {
    "broker.session.timeout.ms": 30_000,
    # A group may notice a dead member soon; each has its own session, see Chaos.
    "group.consumer.max.session.timeout.ms": 300_000,
    "group.consumer.heartbeat.interval.ms": 300,
}


def started() -> LocalBroker:
    """A broker that has groups."""
    broker = LocalBroker(config=PATIENCE).start()
    wait_for_groups(broker.bootstrap)
    return broker


class Lent(LocalBroker):
    """The broker of all workers, as one of them knows it."""

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return self._address

    def __init__(self, path: str) -> None:
        super().__init__()
        with Client(path) as lender:
            self._address: str = lender.recv()
        if not self._address:
            pytest.fail("the run's broker did not start; pytest's own process has the reason")


class Lender:
    """In pytest's own process: answers workers that ask for the address."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._broker: LocalBroker | None = None
        self._listener = Listener(path)
        os.environ[PATH] = path
        config.add_cleanup(self.close)
        threading.Thread(target=self._serve, daemon=True, name="lender").start()

    def _serve(self) -> None:
        while True:
            try:
                worker = self._listener.accept()
            except OSError:
                return  # closed
            with worker:
                worker.send(self._address())

    def _address(self) -> str:
        if self._broker is None:
            try:
                self._broker = started()
            except Exception as error:
                print(f"\nthe run's broker did not start: {error}")
                return ""
        return self._broker.bootstrap

    def close(self) -> None:
        """End it."""
        self._listener.close()
        if self._broker is not None:
            self._broker.stop()
