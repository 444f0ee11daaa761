"""librdkafka's log lines as records of Python's logging."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from weft.kafka.secrets import scrub
from weft.sparse import Sparse

NAME = "weft.kafka.librdkafka"
_CHANGES = re.compile(r"\d+")


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
            more = f" ({left_out} similar lines omitted)" if left_out else ""
            self.logger.log(level, "%s%s", scrub(text, self._config), more)


def with_client_log(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client with its log routed, unless the user routes it."""
    return {"logger": ClientLog(config), **config}
