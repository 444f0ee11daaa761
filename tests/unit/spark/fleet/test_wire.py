"""The control channel's lines and its handshake, over a real socket pair."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from weft.spark.fleet.limits import DRIVER_GONE_S, HELLO_BYTES_MAX
from weft.spark.fleet.link import Link
from weft.spark.fleet.wire import Wire, WireError, admit, introduce, proof

SECRET = b"s" * 32


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
    hello = admit(driver, SECRET)
    assert (hello["place"], hello["pid"]) == ("3.0", 7)
    driver.send({"type": "welcome", "proof": hello["answer"], "leave": False})
    thread.join(5)
    assert outcome[0]["leave"] is False


def test_a_stranger_is_not_admitted(ends) -> None:
    """Without the secret there is no admittance."""
    driver, member, _ = ends
    thread, _ = aside(introduce, member, b"another", "0.0", {})
    with pytest.raises(WireError, match="without the run's secret"):
        admit(driver, SECRET)
    driver.close()
    thread.join(5)


def test_the_proof_is_for_one_place(ends) -> None:
    """A proof for one member's place is none for another's."""
    driver, _, raw = ends
    thread, outcome = aside(admit, driver, SECRET)
    reader = raw.makefile("rb")
    challenge = json.loads(reader.readline())

    said = proof(SECRET, "member", challenge["nonce"], "n", "0.0")
    line = {"type": "hello", "nonce": "n", "place": "1.0", "proof": said}
    raw.sendall(json.dumps(line).encode() + b"\n")
    thread.join(5)
    assert isinstance(outcome[0], WireError)


def test_a_false_driver_is_found_out(ends) -> None:
    """A member obeys nobody who does not know the secret either."""
    driver, member, _ = ends
    thread, outcome = aside(introduce, member, SECRET, "0.0", {})
    driver.send({"type": "challenge", "nonce": "n"})
    driver.receive()
    driver.send({"type": "welcome", "proof": "0" * 64})
    thread.join(5)
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


def test_sending_to_nobody_is_an_error_of_its_own(ends) -> None:
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
    link = Link(address, SECRET, "0.0")

    def driver() -> Wire:
        peer, _ = listener.accept()
        wire = Wire(peer)
        hello = admit(wire, SECRET)
        wire.send({"type": "welcome", "proof": hello["answer"]})
        return wire

    thread, outcome = aside(driver)
    link.open({})
    thread.join(5)
    heard: list[Any] = []
    link.listen(heard.append)
    thread, again = aside(driver)
    outcome[0].close()
    thread.join(5)
    assert link.gone.is_set() is False
    again[0].send({"type": "x"})
    listener.close()
    again[0].close()
    assert link.gone.wait(DRIVER_GONE_S + 5)
    assert [one["type"] for one in heard] == ["welcome again", "x"]
    assert link.send({"type": "y"}) is False
    link.close()
