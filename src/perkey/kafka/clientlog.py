"""librdkafka's log lines as records of Python's logging, and the limit on lines of a kind."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from perkey.kafka.secrets import scrub

NAME = "perkey.kafka.librdkafka"
_CHANGES = re.compile(r"\d+")
#: without a broker, librdkafka logs one line twenty times per second
ALIKE_EVERY_S = 10.0
KINDS_MAX = 100


class Sparse:
    """Lets one line of a kind pass per interval and counts the others."""

    def __init__(
        self, every_s: float = ALIKE_EVERY_S, clock: Callable[[], float] | None = None
    ) -> None:
        self._every_s, self._clock = every_s, clock
        #: kind of line -> when one last passed, and how many were omitted since
        self._alike: dict[Hashable, tuple[float, int]] = {}

    def left_out(self, kind: Hashable = None) -> int | None:
        """How many of this kind were omitted before; None if this one must be omitted, too."""
        now = time.monotonic() if self._clock is None else self._clock()
        at, count = self._alike.get(kind, (float("-inf"), 0))
        if now - at < self._every_s:
            self._alike[kind] = at, count + 1
            return None
        if len(self._alike) >= KINDS_MAX:
            self._alike.clear()
        self._alike[kind] = now, 0
        return count


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """The `logger` of a client; removes the secrets of its configuration from each line.

    Lines that differ only in numbers are logged once per ten seconds, then with their count.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(logging.getLogger(NAME), {})
        self._config = config
        self._sparse = Sparse()
        #: set when its client is abandoned
        self.muted = False

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Called by librdkafka with a level of Python's logging and %-arguments."""
        if self.muted or not self.isEnabledFor(level):
            return
        text = str(msg) % args if args else str(msg)
        if level <= logging.DEBUG:
            self.logger.log(level, "%s", scrub(text, self._config))
            return
        left_out = self._sparse.left_out(_CHANGES.sub("", text))
        if left_out is not None:
            omitted = f" ({left_out} similar lines omitted)" if left_out else ""
            self.logger.log(level, "%s%s", scrub(text, self._config), omitted)


def with_client_log(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client with its log routed, unless the user routes it."""
    return {"logger": ClientLog(config), **config}
