"""A member's end of the control channel: it dials the driver, and again when the line breaks.

A line that breaks may lose what was sent last. Who waits for an answer asks again at `welcome
again`; what has no answer goes through `deliver`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from weft import guard
from weft.runtime.logs import event
from weft.spark.fleet.limits import DRIVER_GONE_S, DRIVER_REFUSES_S, HANDSHAKE_S
from weft.spark.fleet.wire import Message, Wire, WireError, introduce

_DIAL_S = 2.0
_DIAL_EVERY_S = 0.2
_FIRST_DIAL_S = 15.0
#: reports to callbacks that wait for a broken line; all else that waits is a few lines
_KEPT_MAX = 1_000


class Link:
    """Messages to and from the driver. `gone` is set when it does not answer any more."""

    def __init__(self, address: tuple[str, int], secret: bytes, place: str) -> None:
        self.gone = threading.Event()
        self._address, self._secret, self._place = address, secret, place
        self._facts: Mapping[str, Any] = {}
        self._wire: Wire | None = None
        self._closed = False
        self._delivering = threading.Lock()
        self._kept: deque[Mapping[str, Any]] = deque()
        #: of these, reports to callbacks; and how many were dropped since the line broke
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
        guard.thread("weft-link", self._listen, guard.log_death, on_message).start()

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
        """Send what the driver must know: now, or when the line is back."""
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
        # A listener that reads sees the driver's end of the line; without one we read it here:
        # closing with something unread would cut off what we sent last.
        if self._listening:
            self.gone.wait(HANDSHAKE_S)
            return
        wire.timeout(HANDSHAKE_S)
        with suppress(WireError):
            while wire.receive() is not None:
                pass

    def close(self) -> None:
        """Give the socket back."""
        self._closed = True
        wire = self._wire  # the listener takes it away where it breaks
        if wire is not None:
            wire.close()

    # -- inside ------------------------------------------------------------------------------------

    _listening = False

    def _listen(self, on_message: Callable[[Message], None]) -> None:
        try:
            while self._wire is not None:
                with suppress(WireError):  # treated like a broken line: dial again
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
        """The line broke: the driver's host may have blinked, or the driver is dead."""
        try:
            wire, welcome = self._dial_for(DRIVER_GONE_S, refused_s=DRIVER_REFUSES_S)
        except WireError:
            return
        # First: the answer to "welcome again" is what is sent again, over this line.
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
        """For so long; for `refused_s` where the port refuses."""
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
            # A pause between two tries, ended early by nothing: nothing wakes this thread.
            time.sleep(_DIAL_EVERY_S)


def _is_report(message: Mapping[str, Any]) -> bool:
    """What a callback of the user's is called with: nothing of Weft depends on it."""
    return bool(message["type"] == "event")
