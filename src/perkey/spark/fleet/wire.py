"""The control channel's messages, and how both ends prove that they belong to the same run.

One JSON object per line. The driver sends a challenge, and the member answers with an HMAC over
both sides' nonces, its place in the fleet and its description: the secret is created for the run
and is inside the task. Every later line of either side starts with an HMAC over its number and
text, under a key of this connection and direction: anything that a third party adds, drops, alters
or repeats ends the connection. Lines have a maximum size.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from perkey.spark.fleet.limits import HANDSHAKE_S, HELLO_BYTES_MAX, LINE_BYTES_MAX

Message = dict[str, Any]
_TCP = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 3,
    #: after this many milliseconds Linux gives up on a peer that acknowledges nothing
    "TCP_USER_TIMEOUT": 15_000,
}


class WireError(Exception):
    """The other end is gone, or sent an invalid line."""


class Seal:
    """Signs, or checks, the lines of one direction of one connection, in order."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def sign(self, line: bytes) -> bytes:
        """The line with its signature in front."""
        return self._signature(line) + b" " + line

    def opened(self, line: bytes) -> bytes:
        """The line without its signature; raises WireError unless it is the next one."""
        if not hmac.compare_digest(line[:_SIGNATURE_BYTES], self._signature(line[_SEALED_BYTES:])):
            raise WireError("a line that the other end has not sent")
        return line[_SEALED_BYTES:]

    def _signature(self, line: bytes) -> bytes:
        self._number += 1
        text = self._number.to_bytes(8, "big") + line
        return hmac.digest(self._key, text, "sha256").hex().encode()


#: an HMAC in hexadecimal, and a space
_SIGNATURE_BYTES = 64
_SEALED_BYTES = _SIGNATURE_BYTES + 1


class Wire:
    """One connection for whole messages; `send` is thread-safe."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._reader = peer.makefile("rb")
        self._sending = threading.Lock()
        self._ours: Seal | None = None
        self._theirs: Seal | None = None
        # Detect a host that vanished silently, if the platform supports it.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP.items():
            option = getattr(socket, name, None)
            if option is not None:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)

    def seal(self, key: bytes, *, driver: bool) -> None:
        """Sign and check every line from now on; `key` is that of this connection."""
        ours, theirs = ("driver", "member") if driver else ("member", "driver")
        self._ours = Seal(hmac.digest(key, ours.encode(), "sha256"))
        self._theirs = Seal(hmac.digest(key, theirs.encode(), "sha256"))

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; raises WireError if the other end is gone."""
        line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line if self._ours is None else self._ours.sign(line))
        except OSError as error:
            raise WireError(f"cannot send: {error}") from error

    def receive(
        self, size_max: int = LINE_BYTES_MAX, *, deadline: float | None = None
    ) -> Message | None:
        """The next message; None at the end. Raises WireError for an invalid one.

        `deadline` (of time.monotonic) is for the whole line, however it arrives.
        """
        sealed = 0 if self._theirs is None else _SEALED_BYTES
        try:
            line = self._line(size_max + sealed + 1, deadline)
        except TimeoutError:
            raise WireError("no message in time") from None
        except (OSError, ValueError):
            return None
        if len(line) > size_max + sealed:
            raise WireError(f"a line of more than {size_max} bytes")
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line if self._theirs is None else self._theirs.opened(line))
        except (ValueError, RecursionError) as error:
            raise WireError("a line that is not JSON") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise WireError("a line without a type")
        return cast("Message", message)

    def _line(self, size_max: int, deadline: float | None) -> bytes:
        if deadline is None:
            return self._reader.readline(size_max)
        line = b""
        while len(line) < size_max:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            there = self._reader.peek()  # reads once at most
            end = there.find(b"\n") + 1
            line += self._reader.read(min(end or len(there), size_max - len(line)))
            if end or not there:
                break
        return line

    def timeout(self, seconds: float | None) -> None:
        """Limit how long the next calls may block; None for no limit."""
        self._socket.settimeout(seconds)

    def finish(self) -> None:
        """Announce the end; what was sent still arrives."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection; the reading thread gets the end, and closes it."""
        with suppress(OSError):  # it may be closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and close the socket."""
        self.hang_up()
        with suppress(OSError, ValueError):
            self._reader.close()  # a thread inside it has just got the end
        self._socket.close()


def proof(secret: bytes, theirs: str, hello: Mapping[str, Any]) -> bytes:
    """The proof of a hello, made with the secret; `theirs` is the driver's nonce."""
    given_fields = {name: value for name, value in hello.items() if name != "proof"}
    text = json.dumps(["perkey-fleet", theirs, given_fields], sort_keys=True)
    return hmac.digest(secret, text.encode(), "sha256")


def admit(wire: Wire, secret: bytes, run: str) -> Message:
    """The driver's side: challenge a client; returns its hello once it is authenticated.

    All of it within HANDSHAKE_S. Later lines are signed.
    """
    challenge, deadline = secrets.token_hex(16), time.monotonic() + HANDSHAKE_S
    wire.timeout(HANDSHAKE_S)
    wire.send({"type": "challenge", "nonce": challenge, "run": run})
    hello = wire.receive(HELLO_BYTES_MAX, deadline=deadline)
    if hello is None or hello["type"] != "hello":
        raise WireError("no hello")
    expected = proof(secret, challenge, hello)
    # As bytes: compare_digest, and encode(), raise for text that is not ASCII.
    given = str(hello.get("proof")).encode("utf-8", "replace")
    if not hmac.compare_digest(expected.hex().encode(), given):
        raise WireError("a hello without the run's secret")
    wire.seal(_connection_key(secret, expected), driver=True)
    wire.timeout(None)
    return hello


def _connection_key(secret: bytes, shared: bytes) -> bytes:
    """Derived from the proof, which covers both nonces; an eavesdropper cannot make it."""
    return hmac.digest(secret, b"lines " + shared, "sha256")


def introduce(wire: Wire, secret: bytes, place: str, facts: Mapping[str, Any]) -> Message:
    """The member's side: answer the challenge; returns the driver's welcome, after its check."""
    deadline = time.monotonic() + HANDSHAKE_S
    wire.timeout(HANDSHAKE_S)
    challenge = wire.receive(HELLO_BYTES_MAX, deadline=deadline)
    if challenge is None or challenge["type"] != "challenge":
        raise WireError("no challenge")
    hello = {**facts, "type": "hello", "nonce": secrets.token_hex(16), "place": place}
    shared = proof(secret, str(challenge.get("nonce")), hello)
    wire.send({**hello, "proof": shared.hex()})
    wire.seal(_connection_key(secret, shared), driver=False)
    # The driver delays its welcome while an older attempt of this task leaves.
    try:
        welcome = wire.receive(deadline=deadline)
    except WireError as error:
        raise WireError(f"this is not the driver of the run: {error}") from error
    if welcome is None or welcome["type"] != "welcome":
        raise WireError("no welcome")
    wire.timeout(None)
    return welcome
