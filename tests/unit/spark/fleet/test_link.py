"""A member's line to its driver, broken and dialled again: what is sent meanwhile arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.spark.fleet.test_wire import RUN, SECRET

from perkey.broker.process import wait_until
from perkey.spark.fleet import link as links
from perkey.spark.fleet.hosting import Host
from perkey.spark.fleet.link import DriverLink
from perkey.spark.fleet.server import Server
from perkey.spark.fleet.wire import Wire

WAIT_S = 60.0


class Driver:
    """The server's audience: notes what comes, and holds back its welcome while it is busy."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.wires: list[Wire] = []
        self.received_messages: list[dict[str, Any]] = []

    def joined(self, _hello: dict[str, Any], wire: Wire) -> int | None:
        """Welcome it, as soon as that is allowed."""
        self.free.wait(WAIT_S)
        self.wires.append(wire)
        wire.send({"type": "welcome"})
        return 0

    def received(self, _index: int, _wire: Wire, message: dict[str, Any]) -> None:
        """Note it."""
        self.received_messages.append(message)

    def left(self, _index: int, _wire: Wire) -> None:
        """Nothing."""

    def numbers(self) -> list[int]:
        """What was sent, by number."""
        return [int(one["sequence"]) for one in self.received_messages]


@pytest.fixture
def driver() -> Driver:
    """Without members."""
    return Driver()


@pytest.fixture
def link(driver: Driver) -> Iterator[DriverLink]:
    """A member's line to it."""
    server = Server("127.0.0.1", 0, SECRET, RUN, driver)
    link = DriverLink(("127.0.0.1", server.port), SECRET, "0.0")
    link.open({})
    yield link
    link.close()
    server.close()


def cut(driver: Driver, link: DriverLink) -> None:
    """The line breaks; the member cannot get another one yet."""
    driver.free.clear()
    driver.wires[-1].hang_up()
    assert wait_until(lambda: not link.send({"type": "try"}), WAIT_S)
    driver.received_messages.clear()


def test_what_is_asked_again_arrives(driver, link) -> None:
    """What a member sends on "welcome again" goes over the new line: no one would ask once more."""
    link.listen(lambda message: link.send({"type": "again", "of": message["type"]}))
    cut(driver, link)
    driver.free.set()
    assert wait_until(
        lambda: {"type": "again", "of": "welcome again"} in driver.received_messages, WAIT_S
    )


def test_what_the_driver_must_know_waits_for_the_line(driver, link) -> None:
    """In its order, and before what comes later."""
    back = threading.Event()
    link.listen(lambda _: back.set())
    cut(driver, link)
    for number in (1, 2):
        link.deliver({"type": "told", "sequence": number})
    driver.free.set()
    assert back.wait(WAIT_S)
    link.deliver({"type": "told", "sequence": 3})
    assert wait_until(lambda: driver.numbers() == [1, 2, 3], WAIT_S), driver.received_messages


def test_reports_to_callbacks_are_dropped_first_and_that_is_logged(
    driver, link, caplog, monkeypatch
) -> None:
    """What the driver must know is never dropped."""
    monkeypatch.setattr(links, "_KEPT_MAX", 2)
    back = threading.Event()
    link.listen(lambda _: back.set())
    cut(driver, link)
    link.deliver({"type": "died", "sequence": 0})
    for number in range(1, 5):
        link.deliver({"type": "event", "sequence": number})
        link.deliver({"type": "ask", "sequence": 10 * number})
    driver.free.set()
    assert back.wait(WAIT_S)
    assert wait_until(lambda: driver.numbers() == [0, 10, 20, 3, 30, 4, 40], WAIT_S)
    assert "left_out=2" in caplog.text
    assert (link._reports, link._dropped) == (0, 0)


def test_a_line_that_breaks_while_it_is_closed_is_closed() -> None:
    """The listener takes the wire away between two looks at it."""

    class Breaking(DriverLink):
        looks = 0

        @property
        def _wire(self) -> Any:
            self.looks += 1
            return SimpleNamespace(close=lambda: None) if self.looks == 1 else None

        @_wire.setter
        def _wire(self, _wire: Any) -> None:
            return

    link = Breaking(("127.0.0.1", 1), SECRET, "0.0")
    link.close()
    assert link.looks == 1


@pytest.mark.threads_may_die
def test_a_listener_that_fails_ends_the_member(driver, link, caplog) -> None:
    """No order would reach it any more: it leaves as without a driver."""

    def fails(_: dict[str, Any]) -> None:
        raise KeyError("what a driver forgot")

    link.listen(fails)
    driver.wires[-1].send({"type": "any"})
    assert link.gone.wait(WAIT_S)
    assert wait_until(lambda: "perkey-link died" in caplog.text, WAIT_S)


class Run:
    """The member's run: notes what it is ordered to do."""

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []
        self.over = False

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.orders.append((name, *given))


def host_of(run: Run, *, paused: set[str | None]) -> Host:
    """A host of this run."""
    host = Host.__new__(Host)
    host._run, host._paused, host._table = run, paused, None  # type: ignore[assignment]  # what it uses
    host._stop_mode = None
    host._woken, host._ordering, host._ordered = threading.Event(), threading.Lock(), host._run
    line: Any = SimpleNamespace(send=lambda message: run.orders.append((message["type"],)))
    host._link = line
    return host


WELCOME = {
    "type": "welcome again", "paused": [], "stop": None, "leave": False,
    "again": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "welcome", "ordered"),
    [
        (set(), {"paused": ["t", None]}, [("pause", None), ("pause", "t")]),
        ({"t", None}, {"paused": ["t", None]}, []),
        ({"t", "u"}, {"paused": ["u"]}, [("resume", "t")]),
        ({None}, {"paused": ["u"]}, [("pause", "u"), ("resume", None)]),
        (set(), {"stop": "now"}, [("stop", "now")]),
        (set(), {"leave": True}, [("hurry", 3.0), ("stop", "in_flight")]),
        (set(), {"again": False}, [("up",)]),
    ],
)
def test_orders_given_while_the_line_was_broken_are_obeyed(before, welcome, ordered) -> None:
    """Pause, resume, stop; and that another member has its place."""
    run = Run()
    host_of(run, paused=before)._on_message({**WELCOME, **welcome})
    assert sorted(run.orders, key=str) == sorted(ordered, key=str)
