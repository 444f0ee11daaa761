"""The driver's end of the control channel: it listens, and admits members of the run."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from perkey import guard
from perkey.errors import ConfigError
from perkey.spark.fleet.limits import (
    UNAUTHENTICATED_MAX,
    UNAUTHENTICATED_OF_ONE_MAX,
    UNAUTHENTICATED_S,
)
from perkey.spark.fleet.wire import Wire, WireError, admit

if TYPE_CHECKING:
    from perkey.spark.fleet.roster import Roster

_log = logging.getLogger("perkey")

#: pause after a connection could not be accepted
_REFUSED_S = 0.1


class Unauthenticated:
    """Unauthenticated connections: few in total, and fewer from one address.

    If there is no room, the oldest one is closed: members need milliseconds, and clients that only
    hold connections must not lock them out.
    """

    def __init__(self, young_s: float = UNAUTHENTICATED_S) -> None:
        """`young_s`: seconds in which a connection keeps its place."""
        self._lock, self._young_s = threading.Lock(), young_s
        #: (address, since when), oldest first
        self._waiting: dict[Wire, tuple[str, float]] = {}

    def enter(self, wire: Wire, address: str) -> bool:
        """Whether there is room for it."""
        with self._lock:
            oldest = self._in_the_way(address)
            if oldest is not None:
                if time.monotonic() - self._waiting[oldest][1] < self._young_s:
                    return False
                del self._waiting[oldest]
            self._waiting[wire] = (address, time.monotonic())
        if oldest is not None:
            oldest.hang_up()
        return True

    def leave(self, wire: Wire) -> None:
        """It is authenticated, or closed."""
        with self._lock:
            self._waiting.pop(wire, None)

    def _in_the_way(self, address: str) -> Wire | None:
        """The connection to close for a new one from this address; None if there is room."""
        counts = Counter(known for known, _ in self._waiting.values())
        if counts[address] >= UNAUTHENTICATED_OF_ONE_MAX:
            crowd = address
        elif len(self._waiting) >= UNAUTHENTICATED_MAX:
            crowd = counts.most_common(1)[0][0]
        else:
            return None
        return next(wire for wire, (known, _) in self._waiting.items() if known == crowd)


class Server:
    """Listens until closed."""

    def __init__(
        self,
        bind: str,
        port: int,
        secret: bytes,
        run: str,
        audience: Roster,
        young_s: float = UNAUTHENTICATED_S,
    ) -> None:
        """`run` is sent to every client: it names the owner of the port; it is no secret.

        `young_s`: seconds in which a connection without proof keeps its place.
        """
        try:
            self._listener = socket.create_server((bind, port), backlog=128)
        except OSError as error:
            raise ConfigError(
                f"the control channel cannot listen at {bind}:{port} ({error}): choose another "
                "with conf perkey.control.host and perkey.control.port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._secret, self._run, self._audience = secret, run, audience
        self._unauthenticated = Unauthenticated(young_s)
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._over = threading.Event()
        guard.thread("perkey-fleet", self._accept).start()

    def close(self) -> None:
        """Close all connections and stop listening."""
        with self._lock:
            self._over.set()
        with suppress(OSError):  # not every platform wakes accept() like this
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                peer, address = self._listener.accept()
            except OSError as error:
                # Unless it was closed: too many open files, or the client is gone. Both pass.
                _log.debug("control channel: cannot accept now: %s", error)
                self._over.wait(_REFUSED_S)
                continue
            wire = Wire(peer)
            if not self._unauthenticated.enter(wire, str(address[0])):
                wire.close()  # members connect again
                continue
            guard.thread("perkey-fleet-member", self._serve, guard.log_death, wire).start()

    def _serve(self, wire: Wire) -> None:
        with self._lock:
            self._wires.add(wire)
            over = self._over.is_set()
        try:
            if over:
                return
            try:
                hello = admit(wire, self._secret, self._run)
            except Exception as error:
                # Any client may connect and send anything: its errors must not get out.
                if not self._over.is_set():
                    _log.debug("control channel: %s: %s", type(error).__name__, error)
                return
            finally:
                self._unauthenticated.leave(wire)
            index = self._audience.joined(hello, wire)
            if index is None:
                return
            try:
                while (message := wire.receive()) is not None:
                    self._audience.received(index, wire, message)
            finally:
                self._audience.left(index, wire)
        except WireError as error:
            if not self._over.is_set():
                _log.debug("control channel: %s", error)
        except Exception as error:
            _log.warning("control channel: %s: %s", type(error).__name__, error)
        finally:
            wire.close()
            with self._lock:
                self._wires.discard(wire)
