"""The control channel's lines and its handshake, over a real socket pair."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from perkey.spark.fleet.limits import DRIVER_GONE_S, HELLO_BYTES_MAX
from perkey.spark.fleet.link import DriverLink
from perkey.spark.fleet.wire import Wire, WireError, admit, introduce, proof

SECRET = b"s" * 32
RUN = "0a1b2c3d"


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire, socket.socket]]:
    """(driver's wire, member's wire, member's socket) of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    driver, member = Wire(theirs), Wire(ours)
    yield driver, member, ours
    driver.close()
    member.close()


def aside(function: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    """Run it on a thread; what it returned or raised comes into the list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function(*arguments))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_both_sides_prove_the_secret(ends) -> None:
    """A member with the secret is admitted with its facts, and it knows its driver."""
    driver, member, _ = ends
    thread, outcome = aside(introduce, member, SECRET, "3.0", {"pid": 7})
    hello = admit(driver, SECRET, RUN)
    assert (hello["place"], hello["pid"]) == ("3.0", 7)
    driver.send({"type": "welcome", "leave": False})
    thread.join(60)
    assert outcome[0]["leave"] is False


def test_a_stranger_is_not_admitted(ends) -> None:
    """Without the secret there is no admittance."""
    driver, member, _ = ends
    thread, _ = aside(introduce, member, b"another", "0.0", {})
    with pytest.raises(WireError, match="without the run's secret"):
        admit(driver, SECRET, RUN)
    driver.close()
    thread.join(60)


def answer(raw: socket.socket, **other: Any) -> None:
    """Answer the challenge as member 0.0 does, but for what is other than its proof says."""
    challenge = json.loads(raw.makefile("rb").readline())
    hello = {"type": "hello", "nonce": "n", "place": "0.0", "pid": 7}
    said = proof(SECRET, challenge["nonce"], hello).hex()
    raw.sendall(json.dumps({**hello, "proof": said, **other}).encode() + b"\n")


@pytest.mark.parametrize(
    ("other", "good"),
    [
        ({}, True),
        ({"place": "1.0"}, False),
        ({"pid": 8}, False),
        ({"nonce": "m"}, False),
        ({"more": 1}, False),
        ({"proof": "\ud800"}, False),
        ({"proof": None}, False),
        ({"proof": ["x"]}, False),
    ],
)
def test_the_proof_is_for_what_is_reported(ends, other, good) -> None:
    """It covers the place and the facts; one that is no proof is a refusal, not an exception."""
    driver, _, raw = ends
    thread, outcome = aside(admit, driver, SECRET, RUN)
    answer(raw, **other)
    thread.join(60)
    assert isinstance(outcome[0], dict if good else WireError)


def test_a_handshake_has_one_deadline(ends, monkeypatch) -> None:
    """Who says a byte now and then is hung up on when the whole time is over."""
    monkeypatch.setattr("perkey.spark.fleet.wire.HANDSHAKE_S", 0.6)
    driver, _, raw = ends
    thread, outcome = aside(admit, driver, SECRET, RUN)
    limit = time.monotonic() + 60  # with a deadline for each byte it would go on for ever
    while thread.is_alive() and time.monotonic() < limit:
        with suppress(OSError):
            raw.sendall(b"x")
        thread.join(0.1)
    assert not thread.is_alive()
    assert "in time" in str(outcome[0])


def test_lines_are_signed_in_their_order(ends) -> None:
    """After the handshake messages come through both ways, one after another."""
    driver, member, _ = ends
    thread, _ = aside(introduce, member, SECRET, "0.0", {})
    admit(driver, SECRET, RUN)
    driver.send({"type": "welcome"})
    thread.join(60)
    for number in range(3):
        member.send({"type": "x", "n": number})
        driver.send({"type": "y", "n": number})
    assert [driver.receive() for _ in range(3)] == [{"type": "x", "n": n} for n in range(3)]
    assert [member.receive() for _ in range(3)] == [{"type": "y", "n": n} for n in range(3)]


class Relay:
    """Somebody on the path: sees the lines of both, and may do with them what they like."""

    def __init__(self) -> None:
        self.driver, self.to_driver = connected()
        self.member, self.to_member = connected()
        self.from_driver = self.to_driver.makefile("rb")
        self.from_member = self.to_member.makefile("rb")

    def handshake(self) -> None:
        """Let the two prove themselves through us."""
        thread, _ = aside(introduce, self.member, SECRET, "0.0", {})
        admitted, _ = aside(admit, self.driver, SECRET, RUN)
        self.to_member.sendall(self.from_driver.readline())
        self.to_driver.sendall(self.from_member.readline())
        admitted.join(60)
        self.driver.send({"type": "welcome"})
        self.to_member.sendall(self.from_driver.readline())
        thread.join(60)

    def close(self) -> None:
        """Everything."""
        self.driver.close()
        self.member.close()
        for one in (self.from_driver, self.from_member, self.to_driver, self.to_member):
            one.close()


def connected() -> tuple[Wire, socket.socket]:
    """The two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        raw = socket.create_connection(server.getsockname())
        return Wire(server.accept()[0]), raw


@pytest.mark.parametrize("deed", ["add", "alter", "again", "leave out", "turn round"])
def test_a_relay_cannot_speak(deed) -> None:
    """What somebody on the path adds, alters, repeats, leaves out or turns round ends the line."""
    relay = Relay()
    relay.handshake()
    relay.member.send({"type": "progress", "done": 1})
    relay.member.send({"type": "progress", "done": 2})
    relay.driver.send({"type": "stop"})
    first, second = relay.from_member.readline(), relay.from_member.readline()
    stop = relay.from_driver.readline()
    deeds = {
        "add": [b'{"type":"results","sequence":1,"data":"gASV"}\n'],
        "alter": [first.replace(b"1}", b"9}")],
        "again": [first, first],
        "leave out": [second],
        "turn round": [stop],
    }
    relay.to_driver.sendall(b"".join(deeds[deed]))
    if deed == "again":
        assert relay.driver.receive() == {"type": "progress", "done": 1}
    with pytest.raises(WireError, match="has not sent"):
        relay.driver.receive()
    relay.close()


def test_a_false_driver_is_found_out(ends) -> None:
    """A member obeys nobody who does not know the secret either."""
    driver, member, _ = ends
    thread, outcome = aside(introduce, member, SECRET, "0.0", {})
    driver.send({"type": "challenge", "nonce": "n"})
    driver.receive()
    driver.send({"type": "welcome", "proof": "0" * 64})
    thread.join(60)
    assert "not the driver" in str(outcome[0])


@pytest.mark.parametrize(("size", "good"), [(-1, True), (0, True), (1, False)])
def test_lines_have_a_limit(ends, size, good) -> None:
    """A line of the limit is read, one byte more is refused before it is held."""
    driver, _, raw = ends
    frame = len(json.dumps({"type": "x", "pad": ""}))
    text = json.dumps({"type": "x", "pad": "p" * (HELLO_BYTES_MAX + size - frame - 1)})
    raw.sendall(text.encode() + b"\n")
    if good:
        message = driver.receive(HELLO_BYTES_MAX)
        assert message is not None
        assert message["type"] == "x"
    else:
        with pytest.raises(WireError, match="more than 4096 bytes"):
            driver.receive(HELLO_BYTES_MAX)


@pytest.mark.parametrize(
    "line", [b"{]\n", b"[1]\n", b"{}\n", b'{"type": 3}\n', b"[" * 200_000 + b"\n"]
)
def test_what_is_no_message_is_refused(ends, line) -> None:
    """Neither what is not JSON, nor what has no type, comes through."""
    driver, _, raw = ends
    raw.sendall(line)
    with pytest.raises(WireError):
        driver.receive()


def test_a_cut_line_is_the_end(ends) -> None:
    """A peer that dies in the middle of a line has said nothing."""
    driver, member, raw = ends
    raw.sendall(b'{"type": "by')
    member.close()
    assert driver.receive() is None


def test_sending_to_no_one_is_an_error_of_its_own(ends) -> None:
    """A line that has ended raises WireError, whatever the platform calls it."""
    driver, member, _ = ends
    driver.close()
    member.close()
    with pytest.raises(WireError):
        member.send({"type": "x"})


def test_a_broken_line_is_dialled_again_for_a_while_only() -> None:
    """A link whose driver is gone says so after its time, and no message is pretended sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    link = DriverLink(address, SECRET, "0.0")

    def driver() -> Wire:
        peer, _ = listener.accept()
        wire = Wire(peer)
        admit(wire, SECRET, RUN)
        wire.send({"type": "welcome"})
        return wire

    thread, outcome = aside(driver)
    link.open({})
    thread.join(60)
    heard: list[Any] = []
    link.listen(heard.append)
    thread, again = aside(driver)
    outcome[0].close()
    thread.join(60)
    assert link.gone.is_set() is False
    again[0].send({"type": "x"})
    listener.close()
    again[0].close()
    assert link.gone.wait(DRIVER_GONE_S + 60)
    assert [one["type"] for one in heard] == ["welcome again", "x"]
    assert link.send({"type": "y"}) is False
    link.close()
