"""The control channel's lines, and how both ends prove that they belong to the same run.

JSON objects, one a line. The driver challenges, the member answers with an HMAC over both sides'
nonces and its place in the fleet, and the driver proves itself in turn: the secret is made for
the run and travels inside the task. Nothing is read beyond a cap.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from weft.spark.fleet.limits import HANDSHAKE_S, HELLO_BYTES_MAX, LINE_BYTES_MAX

Message = dict[str, Any]
#: Linux gives up on a peer that acknowledges nothing for so long, in milliseconds.
_UNANSWERED_MS = 15_000


class WireError(Exception):
    """The other end is gone, or says what it may not say."""


class Wire:
    """One connection: whole messages in, whole messages out; `send` from any thread."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._reader = peer.makefile("rb")
        self._sending = threading.Lock()
        _keep_alive(peer)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; raises WireError when the other end is gone."""
        line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError as error:
            raise WireError(f"cannot send: {error}") from error

    def receive(self, size_max: int = LINE_BYTES_MAX) -> Message | None:
        """The next message; None at the end. Raises WireError for what is no message."""
        try:
            line = self._reader.readline(size_max + 1)
        except (OSError, ValueError):
            return None
        if len(line) > size_max:
            raise WireError(f"a line of more than {size_max} bytes")
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WireError("a line that is not JSON") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise WireError("a line without a type")
        return cast("Message", message)

    def timeout(self, seconds: float | None) -> None:
        """Limit how long the next calls may block; None for no limit."""
        self._socket.settimeout(seconds)

    def finish(self) -> None:
        """Say that nothing more comes; what was sent still arrives."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        """End the connection; a thread that reads it gets the end."""
        with suppress(OSError):  # it may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError, ValueError):
            self._reader.close()  # a thread inside it has just got the end
        self._socket.close()


def _keep_alive(peer: socket.socket) -> None:
    """A host that vanished without a word is noticed too; where the platform can."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPINTVL": 3,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": _UNANSWERED_MS,
    }
    for name, value in wanted.items():
        option = getattr(socket, name, None)
        if option is not None:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


def proof(secret: bytes, role: str, theirs: str, ours: str, place: str) -> str:
    """What only a holder of the secret can say: `theirs` is the other side's nonce."""
    text = f"weft-fleet {role} {theirs} {ours} {place}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def nonce() -> str:
    """A number used once."""
    return secrets.token_hex(16)


def admit(wire: Wire, secret: bytes) -> Message:
    """The driver's side: challenge a stranger; its hello, once it has proved who it is."""
    challenge = nonce()
    wire.timeout(HANDSHAKE_S)
    wire.send({"type": "challenge", "nonce": challenge})
    hello = wire.receive(HELLO_BYTES_MAX)
    if hello is None or hello["type"] != "hello":
        raise WireError("no hello")
    place, given = str(hello.get("place")), str(hello.get("nonce"))
    expected = proof(secret, "member", challenge, given, place)
    if not hmac.compare_digest(expected.encode(), str(hello.get("proof")).encode()):
        raise WireError("a hello without the run's secret")
    wire.timeout(None)
    return {**hello, "answer": proof(secret, "driver", given, challenge, place)}


def introduce(wire: Wire, secret: bytes, place: str, facts: Mapping[str, Any]) -> Message:
    """The member's side: answer the challenge; the driver's welcome, once it is proved."""
    wire.timeout(HANDSHAKE_S)
    challenge = wire.receive(HELLO_BYTES_MAX)
    if challenge is None or challenge["type"] != "challenge":
        raise WireError("no challenge")
    theirs, ours = str(challenge.get("nonce")), nonce()
    said = proof(secret, "member", theirs, ours, place)
    wire.send({**facts, "type": "hello", "nonce": ours, "proof": said, "place": place})
    # The driver holds its welcome back while an older attempt of this task leaves.
    welcome = wire.receive()
    if welcome is None or welcome["type"] != "welcome":
        raise WireError("no welcome")
    expected = proof(secret, "driver", ours, theirs, place)
    if not hmac.compare_digest(expected.encode(), str(welcome.get("proof")).encode()):
        raise WireError("this is not the driver of the run")
    wire.timeout(None)
    return welcome
