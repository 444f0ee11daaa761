"""Who gets a place at the control channel's door."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.spark.fleet.test_wire import RUN, SECRET

from perkey.spark.fleet.limits import (
    UNAUTHENTICATED_MAX,
    UNAUTHENTICATED_OF_ONE_MAX,
    UNAUTHENTICATED_S,
)
from perkey.spark.fleet.server import Server, Unauthenticated
from perkey.spark.fleet.wire import Wire, introduce


class Crowd:
    """The server's audience: notes who joined."""

    def __init__(self) -> None:
        self.joined_places: list[str] = []
        self.told_types: list[str] = []

    def joined(self, hello: dict[str, Any], wire: Wire) -> int | None:
        """Welcome everybody."""
        self.joined_places.append(hello["place"])
        wire.send({"type": "welcome"})
        return 0

    def received(self, _index: int, _wire: Wire, message: dict[str, Any]) -> None:
        """Note it; fail where it is asked for."""
        self.told_types.append(message["type"])
        if message["type"] == "bad":
            raise KeyError("what a member forgot to say")

    def left(self, _index: int, _wire: Wire) -> None:
        """Nothing."""


@pytest.fixture
def crowd() -> Crowd:
    """Nobody yet."""
    return Crowd()


@pytest.fixture
def server(crowd: Crowd, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A control channel on loopback; its parameter is `young_s`."""
    young_s = getattr(request, "param", UNAUTHENTICATED_S)
    running = Server("127.0.0.1", 0, SECRET, RUN, crowd, young_s)
    yield running
    running.close()


def dial(server: Server) -> socket.socket:
    """A connection to it."""
    return socket.create_connection(("127.0.0.1", server.port), 60)


@pytest.mark.parametrize("server", [0.0], indirect=True)
def test_strangers_do_not_lock_members_out(server, crowd) -> None:
    """Connections that only hold their place give it up to a member that dials."""
    strangers = [dial(server) for _ in range(UNAUTHENTICATED_MAX + 5)]
    for one in strangers:
        one.sendall(b"x") if one.fileno() >= 0 else None
    wire = Wire(dial(server))
    assert introduce(wire, SECRET, "0.0", {})["type"] == "welcome"
    assert crowd.joined_places == ["0.0"]
    wire.close()
    for one in strangers:
        one.close()


def test_a_connection_accepted_while_the_server_closes_is_closed(server) -> None:
    """No one else would close it: its member would wait for a driver that has gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), 60)
        accepted, _ = listener.accept()
    server.close()
    server._serve(Wire(accepted))
    assert ours.recv(1) == b""
    ours.close()


def test_a_strange_proof_is_no_traceback(server, crowd, capfd, caplog) -> None:
    """A proof that is not even text of bytes: hung up on, without a word on stderr."""
    peer = dial(server)
    challenge = json.loads(peer.makefile("rb").readline())
    assert challenge["run"] == RUN
    hello = {"type": "hello", "nonce": "n", "place": "0.0", "proof": "\ud800"}
    peer.sendall(json.dumps(hello).encode() + b"\n")
    assert peer.recv(1) == b""
    peer.close()
    assert "Traceback" not in capfd.readouterr().err
    assert [one for one in caplog.records if one.levelname != "DEBUG"] == []
    assert crowd.joined_places == []


def test_a_member_that_reports_it_wrong_is_a_line_in_the_log(server, crowd, caplog) -> None:
    """What fails in hearing a member is told in one line, and its connection ends."""
    wire = Wire(dial(server))
    introduce(wire, SECRET, "0.0", {})
    wire.send({"type": "bad"})
    assert wire.receive() is None
    assert "KeyError: 'what a member forgot to say'" in caplog.text
    wire.close()


class FakeWire:
    """A connection that can be hung up on."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def hang_up(self) -> None:
        """Remember it."""
        self.gone.set()


@pytest.mark.parametrize(
    ("there", "newcomer", "young", "enters", "leaves"),
    [
        (["a"] * (UNAUTHENTICATED_OF_ONE_MAX - 1), "a", False, True, None),
        (["a"] * UNAUTHENTICATED_OF_ONE_MAX, "a", False, True, 0),
        (["a"] * UNAUTHENTICATED_OF_ONE_MAX, "a", True, False, None),
        (["a"] * UNAUTHENTICATED_OF_ONE_MAX, "b", True, True, None),
        (["b", *(["a"] * 3), *map(str, range(UNAUTHENTICATED_MAX - 4))], "c", False, True, 1),
        ([*map(str, range(UNAUTHENTICATED_MAX - 1))], "c", True, True, None),
        ([*map(str, range(UNAUTHENTICATED_MAX))], "c", True, False, None),
    ],
)
def test_who_must_go_for_a_newcomer(there, newcomer, young, enters, leaves) -> None:
    """At the limit the oldest of the address goes, or of the largest crowd; never a young one."""
    strangers = Unauthenticated(60.0 if young else 0.0)
    wires = [FakeWire() for _ in there]
    for wire, address in zip(wires, there, strict=True):
        assert strangers.enter(wire, address)
    assert strangers.enter(FakeWire(), newcomer) is enters
    assert [n for n, wire in enumerate(wires) if wire.gone.is_set()] == (
        [] if leaves is None else [leaves]
    )


def test_a_place_is_given_back() -> None:
    """Who has proved itself does not count."""
    strangers = Unauthenticated(60.0)
    wires = [FakeWire() for _ in range(UNAUTHENTICATED_OF_ONE_MAX)]
    for wire in wires:
        strangers.enter(wire, "a")
    strangers.leave(wires[3])
    assert strangers.enter(FakeWire(), "a")


def test_a_failed_accept_does_not_end_the_channel(server, crowd, monkeypatch) -> None:
    """Too many open files, once: no member could connect again until the end of the run."""
    accept, failed = server._listener.accept, threading.Event()

    class Listener:
        """The server's, with one failure."""

        def accept(self) -> Any:
            if not failed.is_set():
                failed.set()
                raise OSError(errno.EMFILE, "Too many open files")
            return accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    listener = server._listener
    monkeypatch.setattr(server, "_listener", Listener())
    for _ in range(2):  # the first is taken by the accept() that runs already
        wire = Wire(dial(server))
        assert introduce(wire, SECRET, "0.0", {})["type"] == "welcome"
        wire.close()
    assert failed.is_set()
