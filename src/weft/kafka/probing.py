"""Does librdkafka take these settings together? Asked of librdkafka, without a network.

Some rules stand between properties (`session.timeout.ms` under the new group protocol, a key that
does not fit its certificate), and only making a client applies them. So one is made, without an
address to connect to and without callbacks, and is closed again: under a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from weft.errors import ConfigError
from weft.kafka.properties import CALLBACKS, canonical
from weft.kafka.secrets import scrub

Config = dict[str, Any]

#: Not for the probe: what would connect, write, or run something.
_LEFT_OUT = frozenset({"bootstrap.servers", "metadata.broker.list", "debug", *CALLBACKS})

#: Mechanisms whose check stays in librdkafka: the others ask a token server or run kinit.
_OFFLINE_SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_NAME = re.compile(r'"([\w.]+)"|`([\w.]+)`')


def check_combination(consumer: Config, producer: Config) -> None:
    """Raise ConfigError where librdkafka would not make a client with these settings."""
    _probe(consumer, lambda config: Consumer(config).close())
    _probe(producer, Producer)


def _probe(config: Config, make: Callable[[Config], object]) -> None:
    trial = {name: value for name, value in _offline(config).items() if name not in _LEFT_OUT}
    try:
        make(trial | {"log_level": 0})
    except KafkaException as error:
        raise ConfigError(refusal(error.args[0].str(), config)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(refusal(str(error), config)) from None


def _offline(config: Config) -> Config:
    """The configuration without a log-in that would leave this process; TLS stays."""
    mechanism = next((config[n] for n in config if canonical(n) == "sasl.mechanisms"), "GSSAPI")
    if str(mechanism).strip().upper() in _OFFLINE_SASL:
        return config
    trial = {name: value for name, value in config.items() if not name.startswith("sasl.")}
    protocol = str(config.get("security.protocol", "")).strip().lower()
    if protocol.startswith("sasl_"):
        trial["security.protocol"] = protocol.removeprefix("sasl_")
    return trial


def refusal(reason: str, config: Config) -> str:
    """Librdkafka's reason as one line: with the user's own spelling, without secrets."""
    reason = reason.replace("`must", "` must")  # As librdkafka spells one of them.
    reason = re.sub(r"^Failed to create \w+: ", "", " ".join(scrub(reason, config).split()))
    reason = _NAME.sub(lambda match: _as_given(match[1] or match[2], config), reason)
    return f"kafka: librdkafka refuses: {reason}"


def _as_given(name: str, config: Config) -> str:
    """The name that the user wrote for this property."""
    return next((n for n in config if canonical(n) == canonical(name)), name)
