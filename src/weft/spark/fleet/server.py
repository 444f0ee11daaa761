"""The driver's end of the control channel: it listens, and admits who proves to be of the run."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from typing import Protocol

from weft.errors import ConfigError
from weft.spark.fleet.limits import STRANGERS_MAX
from weft.spark.fleet.wire import Message, Wire, WireError, admit

_log = logging.getLogger("weft")


class Audience(Protocol):
    """Who hears what members say. Called on one thread a member."""

    def joined(self, hello: Message, wire: Wire) -> int | None:
        """Somebody proved to be a member: welcome it; its index, None to hang up."""

    def told(self, index: int, wire: Wire, message: Message) -> None:
        """A member says something."""

    def left(self, index: int, wire: Wire) -> None:
        """A member's line has ended."""


class Server:
    """Listens until closed."""

    def __init__(self, bind: str, port: int, secret: bytes, audience: Audience) -> None:
        try:
            self._listener = socket.create_server((bind, port), backlog=128)
        except OSError as error:
            raise ConfigError(
                f"the control channel cannot listen at {bind}:{port} ({error}): choose another "
                "with conf weft.control.host and weft.control.port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._secret, self._audience = secret, audience
        self._strangers = threading.Semaphore(STRANGERS_MAX)
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._closed = False
        threading.Thread(target=self._accept, name="weft-fleet", daemon=True).start()

    def close(self) -> None:
        """Hang up on everybody and stop listening."""
        self._closed = True
        with suppress(OSError):  # not every platform wakes accept() like this
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                peer.close()  # members dial again; who only holds connections gets no more
                continue
            threading.Thread(
                target=self._serve, args=(Wire(peer),), name="weft-fleet-member", daemon=True
            ).start()

    def _serve(self, wire: Wire) -> None:
        with self._lock:
            self._wires.add(wire)
        try:
            try:
                hello = admit(wire, self._secret)
            finally:
                self._strangers.release()
            self._converse(hello, wire)
        except WireError as error:
            if not self._closed:
                _log.debug("control channel: %s", error)
        finally:
            wire.close()
            with self._lock:
                self._wires.discard(wire)

    def _converse(self, hello: Message, wire: Wire) -> None:
        index = self._audience.joined(hello, wire)
        if index is None:
            return
        try:
            while (message := wire.receive()) is not None:
                self._audience.told(index, wire, message)
        finally:
            self._audience.left(index, wire)
