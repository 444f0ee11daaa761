"""librdkafka's own log lines, as records of Python's logging instead of raw lines on stderr."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from weft.kafka.secrets import scrub

NAME = "weft.kafka.librdkafka"


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """What a client is given as its `logger`; no secret of its configuration passes."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(logging.getLogger(NAME), {})
        self._config = config
        #: set when its client was left behind
        self.muted = False

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Called by librdkafka with a level of Python's and %-arguments."""
        if self.muted or not self.isEnabledFor(level):
            return
        text = str(msg) % args if args else str(msg)
        self.logger.log(level, "%s", scrub(text, self._config))


def with_client_log(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client with its log routed, unless the user routes it."""
    return {"logger": ClientLog(config), **config}
