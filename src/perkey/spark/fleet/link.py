"""A member's end of the control channel: it connects to the driver, and again after a break.

A connection that breaks may lose the last messages. Senders that wait for an answer repeat them at
`welcome again`; messages without an answer go through `deliver`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from perkey import guard
from perkey.runtime.logs import event
from perkey.spark.fleet.limits import DRIVER_GONE_S, DRIVER_REFUSES_S, HANDSHAKE_S
from perkey.spark.fleet.wire import Message, Wire, WireError, introduce

_DIAL_S = 2.0
_DIAL_EVERY_S = 0.2
_FIRST_DIAL_S = 15.0
#: most reports to callbacks that wait for a connection; everything else is a few lines
_KEPT_MAX = 1_000


class DriverLink:
    """Messages to and from the driver. `gone` is set when it does not answer any more."""

    def __init__(self, address: tuple[str, int], secret: bytes, place: str) -> None:
        self.gone = threading.Event()
        self._address, self._secret, self._place = address, secret, place
        self._facts: Mapping[str, Any] = {}
        self._wire: Wire | None = None
        self._listening = self._closed = False
        self._delivering = threading.Lock()
        self._kept: deque[Mapping[str, Any]] = deque()
        #: of these, reports to callbacks; and how many were dropped since the break
        self._reports = self._dropped = 0

    def open(self, facts: Mapping[str, Any]) -> Message:
        """Connect; returns the driver's welcome. Raises WireError without an answer."""
        self._facts = facts
        wire, welcome = self._dial_for(_FIRST_DIAL_S, refused_s=_FIRST_DIAL_S)
        self._wire = wire
        return welcome

    def listen(self, on_message: Callable[[Message], None]) -> None:
        """Serve the driver's messages, on a separate thread."""
        self._listening = True
        guard.thread("perkey-link", self._listen, guard.log_death, on_message).start()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send to the driver; False if that is impossible now."""
        wire = self._wire
        if wire is None:
            return False
        try:
            wire.send(message)
        except WireError:
            return False
        return True

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Send what the driver must receive: now, or after a reconnect."""
        with self._delivering:
            if self._kept or not self.send(message):
                self._kept.append(message)
                self._reports += _is_report(message)
                while self._reports > _KEPT_MAX:
                    oldest = next(at for at, one in enumerate(self._kept) if _is_report(one))
                    del self._kept[oldest]
                    self._reports, self._dropped = self._reports - 1, self._dropped + 1

    def end(self, message: Mapping[str, Any]) -> None:
        """Send the last message, and wait until the driver has it."""
        self._closed = True
        wire = self._wire
        if wire is None or not self.send(message):
            return
        wire.finish()
        # A running listener reads the driver's end of the connection; without one it is read here:
        # closing a socket with unread data would cut off what was sent last.
        if self._listening:
            self.gone.wait(HANDSHAKE_S)
            return
        wire.timeout(HANDSHAKE_S)
        with suppress(WireError):
            while wire.receive() is not None:
                pass

    def close(self) -> None:
        """Close the socket."""
        self._closed = True
        wire = self._wire  # the listener sets it to None after a break
        if wire is not None:
            wire.close()

    # -- inside ------------------------------------------------------------------------------------

    def _listen(self, on_message: Callable[[Message], None]) -> None:
        try:
            while self._wire is not None:
                with suppress(WireError):  # handled like a broken connection: connect again
                    while (message := self._wire.receive()) is not None:
                        on_message(message)
                if self._closed:
                    break
                broken, self._wire = self._wire, None
                broken.close()
                self._again(on_message)
        finally:
            self.gone.set()

    def _again(self, on_message: Callable[[Message], None]) -> None:
        """The connection broke: a short network failure, or the driver is dead."""
        try:
            wire, welcome = self._dial_for(DRIVER_GONE_S, refused_s=DRIVER_REFUSES_S)
        except WireError:
            return
        # First: the answer to "welcome again" is sent over this connection.
        self._wire = wire
        with self._delivering:
            while self._kept and self.send(self._kept[0]):
                self._reports -= _is_report(self._kept.popleft())
            dropped, self._dropped = self._dropped, 0
        if dropped:
            what = "callbacks were not called while the line to the driver was broken"
            event("warning", what, left_out=dropped)
        on_message({**welcome, "type": "welcome again"})

    def _dial_for(self, seconds: float, *, refused_s: float) -> tuple[Wire, Message]:
        """Connect, for this many seconds; for `refused_s` while the port refuses connections."""
        began = time.monotonic()
        while True:
            try:
                wire = Wire(socket.create_connection(self._address, _DIAL_S))
                try:
                    return wire, introduce(wire, self._secret, self._place, self._facts)
                except BaseException:
                    wire.close()
                    raise
            except (OSError, WireError) as error:
                patience_s = refused_s if isinstance(error, ConnectionRefusedError) else seconds
                if time.monotonic() - began >= patience_s or self._closed:
                    host, port = self._address
                    raise WireError(f"no driver at {host}:{port}: {error}") from error
            # Nothing ends this pause early.
            time.sleep(_DIAL_EVERY_S)


def _is_report(message: Mapping[str, Any]) -> bool:
    """Whether it is for a user's callback: Perkey itself does not need it."""
    return bool(message["type"] == "event")
