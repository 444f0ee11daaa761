"""librdkafka's log lines as records of Python's logging."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any

from weft.kafka.secrets import scrub

NAME = "weft.kafka.librdkafka"
#: Without a broker, librdkafka logs this twenty times per second.
ALIKE_EVERY_S = 10.0
_KINDS_MAX = 100
_CHANGES = re.compile(r"\d+")


class Sparse:
    """Lets one line of a kind pass in ten seconds and counts the others."""

    def __init__(self) -> None:
        #: kind of line -> when one passed last, and how many were left out since
        self._alike: dict[str, tuple[float, int]] = {}

    def left_out(self, kind: str) -> int | None:
        """How many like this were left out before it; None when it is to be left out, too."""
        now = time.monotonic()
        at, count = self._alike.get(kind, (0.0, 0))
        if kind in self._alike and now - at < ALIKE_EVERY_S:
            self._alike[kind] = at, count + 1
            return None
        if len(self._alike) >= _KINDS_MAX:
            self._alike.clear()
        self._alike[kind] = now, 0
        return count


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """What a client is given as its `logger`; no secret of its configuration passes.

    Lines that differ in numbers alone come once in ten seconds, then with their count.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(logging.getLogger(NAME), {})
        self._config = config
        self._sparse = Sparse()
        #: set when its client was left behind
        self.muted = False

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Called by librdkafka with a level of Python's and %-arguments."""
        if self.muted or not self.isEnabledFor(level):
            return
        text = str(msg) % args if args else str(msg)
        if level <= logging.DEBUG:
            self.logger.log(level, "%s", scrub(text, self._config))
            return
        left_out = self._sparse.left_out(_CHANGES.sub("", text))
        if left_out is not None:
            more = f" ({left_out} similar lines omitted)" if left_out else ""
            self.logger.log(level, "%s%s", scrub(text, self._config), more)


def with_client_log(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client with its log routed, unless the user routes it."""
    return {"logger": ClientLog(config), **config}
