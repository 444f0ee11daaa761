"""`kafka.oauth_cb`: where tokens come from, named by text, for an option can be nothing else.

The name is of a factory that takes nothing and returns the callback of confluent-kafka, which gets
`sasl.oauthbearer.config` and returns `(token, time at which it expires in UNIX seconds)`. It is
called once for each client, on the driver and in tasks, so it must be importable in both.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from weft.errors import ConfigError

OAUTH_CB = "oauth_cb"
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def with_oauth(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the callback in the place of its factory's name.

    Raises ConfigError where the name leads to no factory, or that to no callback.
    """
    name = config.get(OAUTH_CB)
    if not isinstance(name, str):
        return config
    return {**config, OAUTH_CB: _callback(name.strip())}


def _callback(name: str) -> Callable[..., Any]:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"option kafka.oauth_cb: {name!r:.80} is no dotted name: write package.module.factory, "
            "a function without arguments that returns the callback"
        )
    module, _, function = name.rpartition(".")
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"option kafka.oauth_cb: {name} cannot be imported here ({error}): install its package "
            "on the driver and the executors, or ship it with spark.submit.pyFiles"
        ) from error
    try:
        callback = factory()
    except Exception as error:
        raise ConfigError(
            f"option kafka.oauth_cb: {name}() failed: {type(error).__name__}: {error}"
        ) from error
    if not callable(callback):
        raise ConfigError(
            f"option kafka.oauth_cb: {name}() returned {type(callback).__name__}, not a callback: "
            "return a function that takes sasl.oauthbearer.config and returns (token, expiry)"
        )
    return callback  # type: ignore[no-any-return]  # callable, as just seen
