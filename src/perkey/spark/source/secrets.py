"""Secrets in options: by reference, so that no plan and no event log shows them.

Spark writes the options of a source into plans and event logs (`createOrReplaceTempView` does). It
masks those whose name or value looks like a secret to `spark.redaction.regex` and
`spark.sql.redaction.options.regex`: passwords, tokens, client secrets. Other secrets are refused
here if they are given in clear.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from perkey.errors import ConfigError

REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
#: Properties with a secret that Spark's default redaction does not detect.
NOT_REDACTED = frozenset(
    {
        "ssl.key.pem",
        "ssl.keystore.key",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    }
)


def resolved(kafka: Mapping[str, str]) -> dict[str, str]:
    """The properties with their references replaced. Runs on the driver.

    Raises ConfigError for a secret in clear where Spark would show it, and for a reference that
    cannot be resolved; no value appears in an error.
    """
    for name in sorted(NOT_REDACTED.intersection(kafka)):
        if not REFERENCE.fullmatch(kafka[name].strip()):
            raise ConfigError(
                f"option kafka.{name} holds a secret in clear, which Spark writes into plans and"
                " event logs: write ${file:/path/on/the/driver} or ${env:NAME} instead"
            )
    values: dict[str, str] = {}
    for name, text in kafka.items():
        whole = text.strip() if REFERENCE.fullmatch(text.strip()) else text
        values[name] = REFERENCE.sub(partial(_looked_up, name), whole)
    return values


def _looked_up(name: str, found: re.Match[str]) -> str:
    kind, place = found.groups()
    if kind == "env":
        value = os.environ.get(place)
        if value is None:
            raise ConfigError(
                f"option kafka.{name}: the environment of the driver has no {place or 'name'}:"
                " set it before Spark starts"
            )
        return value
    try:
        return Path(place).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"option kafka.{name}: the driver cannot read {place or 'the file'}: {why}:"
            " correct the path, or its rights"
        ) from None


# -- oauth -----------------------------------------------------------------------------------------
# `kafka.oauth_cb`: the source of tokens, named by text, as an option can only be text.
#
# The name is of a factory without arguments that returns confluent-kafka's callback, which gets
# `sasl.oauthbearer.config` and returns `(token, expiry in UNIX seconds)`. It is called once per
# client, on the driver and in tasks, so it must be importable in both.


OAUTH_CB = "oauth_cb"
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def with_oauth(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the callback instead of its factory's name.

    Raises ConfigError if the name is no factory, or the factory returns no callback.
    """
    name = config.get(OAUTH_CB)
    if not isinstance(name, str):
        return config
    name = name.strip()
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
    return {**config, OAUTH_CB: callback}
