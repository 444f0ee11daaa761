"""Check with librdkafka, without a network, whether it accepts a combination of settings.

Some rules concern combinations (`session.timeout.ms` under the new group protocol, a key that does
not fit its certificate), and librdkafka applies them only when it creates a client. So one is
created, without an address to connect to and without callbacks, and closed: under a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from perkey.errors import ConfigError
from perkey.kafka.properties import CALLBACKS, canonical
from perkey.kafka.secrets import scrub

Config = dict[str, Any]

#: Left out of the probe: what would connect, write, or run something.
_LEFT_OUT = frozenset({"bootstrap.servers", "metadata.broker.list", "debug", *CALLBACKS})

#: Mechanisms that librdkafka checks itself: the others query a token server or run kinit.
_OFFLINE_SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

#: message of librdkafka or OpenSSL -> the fix, if they do not name it
_CURES = {
    "OpenSSL engine": "does ssl.engine.location name an OpenSSL engine?",
    "OpenSSL provider": "set ssl.providers to providers of OpenSSL, such as default,legacy",
    "(plugin ": "does plugin.library.paths name librdkafka plugins?",
    "ssl.cipher.suites": "give OpenSSL's names (`openssl ciphers` lists them), with colons between",
    "ssl.curves.list": "give OpenSSL's names, such as X25519:P-256",
    "ssl.sigalgs.list": "give OpenSSL's names, such as RSA-PSS+SHA256:ECDSA+SHA256",
    "parse pattern": "topic.blacklist takes regular expressions, separated by commas",
    "Unsupported partition.assignment.strategy": (
        "set it to range, roundrobin or cooperative-sticky"
    ),
    "property partitioner": "librdkafka's CONFIGURATION.md lists them under partitioner",
    "defined broker side": "omit it",
    "when enable.idempotence is true": "Perkey needs idempotence: omit the other property",
}

_NAME = re.compile(r'"([\w.]+)"|`([\w.]+)`')


def check_combination(consumer: Config, producer: Config) -> None:
    """Raise ConfigError if librdkafka would not create a client with these settings."""
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
    """The configuration without a login that would use the network; TLS stays."""
    mechanism = next((config[n] for n in config if canonical(n) == "sasl.mechanisms"), "GSSAPI")
    if str(mechanism).strip().upper() in _OFFLINE_SASL:
        return config
    trial = {name: value for name, value in config.items() if not name.startswith("sasl.")}
    protocol = str(config.get("security.protocol", "")).strip().lower()
    if protocol.startswith("sasl_"):
        trial["security.protocol"] = protocol.removeprefix("sasl_")
    return trial


def refusal(reason: str, config: Config) -> str:
    """Librdkafka's reason in one line: with the user's own spelling, without secrets."""
    reason = reason.replace("`must", "` must")  # As librdkafka spells one of them.
    reason = re.sub(r"^Failed to create [\w ]+: ", "", " ".join(scrub(reason, config).split()))
    reason = _NAME.sub(lambda match: _as_given(match[1] or match[2], config), reason)
    cure = _cure(reason, config)
    return f"kafka: librdkafka refuses: {reason}{': ' if cure else ''}{cure}"


def _cure(reason: str, config: Config) -> str:
    """The fix for errors of OpenSSL or a missing library that do not name one."""
    for name, value in config.items():
        if name in reason and name.endswith(".location"):
            # What is wrong with a file of keys or certificates.
            try:
                with open(str(value), "rb"):  # noqa: PTH123  # the question is whether it can be read
                    pass
            except OSError as error:
                return f"the file that {name} names cannot be read: {error.strerror}"
            if "key" not in name:
                return f"is the file that {name} names a PEM file?"
            stored = "keystore" in name
            kind, password = (
                ("PKCS#12", "ssl.keystore.password") if stored else ("PEM", "ssl.key.password")
            )
            return f"is the file that {name} names a {kind} file, and is {password} right?"
        if name in reason and name.endswith(".pem"):
            return f"give {name} the whole text, with its BEGIN and END lines"
    if reason.startswith("Unsupported SASL mechanism"):
        name = _as_given("sasl.mechanisms", config)
        return f"set {name} to {', '.join(_OFFLINE_SASL)} or OAUTHBEARER"
    if reason.startswith("No provider for SASL mechanism"):
        name = _as_given("sasl.mechanisms", config)
        return f"set {name} to another one, or build confluent-kafka against such a librdkafka"
    return next((cure for text, cure in _CURES.items() if text in reason), "")


def _as_given(name: str, config: Config) -> str:
    """The name that the user wrote for this property."""
    return next((n for n in config if canonical(n) == canonical(name)), name)
