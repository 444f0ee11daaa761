"""No secret of a Kafka configuration is ever seen: reprs, errors, logs, tracebacks."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import traceback

import pytest
from tests.support.cases import each
from tests.unit.kafka.test_settings import made

from perkey.errors import ConfigError
from perkey.kafka.properties import properties
from perkey.kafka.secrets import MASK, SHOWN, connecting, is_shown, redacted, scrub

#: What librdkafka marks as sensitive, and what of Perkey's own list it does not.
SENSITIVE = (
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.ca.pem",
    "https.ca.pem",
    "ssl.certificate.pem",
    "ssl.keystore.password",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
)
CANARY = "canary7f3a9"


@pytest.mark.parametrize("name", SENSITIVE)
def test_a_sensitive_property_is_masked(name) -> None:
    """Whatever its value, also a short one."""
    assert redacted({name: CANARY, "client.id": "x"}) == {name: MASK, "client.id": "x"}
    assert scrub("as k in kafka", {name: "k"}) == "as *** in kafka"


def test_what_is_shown_is_a_list_not_the_rest() -> None:
    """A property nobody has decided on is hidden; numbers and fixed words are not."""
    assert not is_shown("some.property.of.tomorrow")
    assert not is_shown("sasl.oauthbearer.token.endpoint.url")
    assert is_shown("session.timeout.ms")
    assert is_shown("security.protocol")
    assert not set(SENSITIVE) & SHOWN
    assert set(properties()) >= SHOWN


def test_every_text_property_with_a_telling_name_is_hidden() -> None:
    """Also those that librdkafka adds later."""
    telling = ("password", "secret", "token", "pem", "passphrase", "private.key", "credential")
    for name, known in properties().items():
        if known.kind == "string" and any(word in name for word in telling):
            assert not is_shown(name), name


def test_callbacks_are_shown_as_a_word() -> None:
    """A partial's repr would show its arguments."""
    callback = functools.partial(print, CANARY)
    assert redacted({"oauth_cb": callback}) == {"oauth_cb": "<set>"}
    assert redacted({"unknown": callback}) == {"unknown": "<set>"}


@pytest.mark.parametrize(
    "written",
    [
        lambda secret: secret,
        repr,
        json.dumps,
        lambda secret: f"https://x/?p={secret.replace('/', '%2F').replace(' ', '%20')}",
    ],
)
def test_a_secret_is_found_however_it_was_written(written) -> None:
    """Plain, as Python's repr, as JSON, in a URL."""
    secret = "canary/with space"
    assert "canary" not in scrub(written(secret), {"sasl.password": secret})


def test_lines_and_parts_of_a_secret_are_found() -> None:
    """A PEM comes line by line, an OAuth configuration in pieces."""
    pem = (
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}{CANARY}\nabcdef{CANARY}\n-----END PRIVATE KEY-----"
    )
    assert "canary" not in scrub(f"bad line abcdef{CANARY}", {"ssl.key.pem": pem})
    oauth = {"sasl.oauthbearer.config": f"principal={CANARY} scope=read"}
    assert scrub(f"no principal {CANARY} may read", oauth) == "no principal *** may read"


def test_a_longer_secret_is_taken_out_before_a_shorter_one_in_it() -> None:
    """Otherwise its rest would stay."""
    config = {"sasl.username": "abc", "sasl.password": "abcdef"}
    assert scrub("abcdef abc", config) == "*** ***"


def test_numbers_may_be_secrets() -> None:
    """A password of digits, given as an int."""
    assert scrub("password 123456", {"sasl.password": 123456}) == "password ***"


def test_shown_values_stay_in_texts() -> None:
    """The address and the group are what a message is about."""
    config = {"bootstrap.servers": "kafka:9092", "group.id": "g"}
    assert scrub("g at kafka:9092", config) == "g at kafka:9092"


@pytest.mark.parametrize(
    "broken",
    [
        {"security.protocol": "ssl"},
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-256"},
        {"fetch.min.bytes": -1},
        {"nonsense": 1},
        {"group.protocol": "consumer", "session.timeout.ms": 6000},
    ],
)
def test_no_refusal_holds_a_secret(broken) -> None:
    """Neither the message nor the traceback, whatever else is wrong."""
    each(holds_no_secret, [(name, broken) for name in SENSITIVE])


def holds_no_secret(name: str, broken: dict) -> None:
    try:
        text = repr(made({name: CANARY} | broken))
    except ConfigError as error:
        text = "".join(traceback.format_exception(error)) + str(error)
    assert CANARY not in text


@pytest.mark.parametrize("value", [[CANARY], {CANARY: 1}, CANARY.encode(), None])
@pytest.mark.parametrize("name", ["sasl.password", "sasl.passwort"])
def test_a_secret_of_the_wrong_type_or_under_a_wrong_name_is_not_shown(name, value) -> None:
    """The error names the property and its type alone."""
    with pytest.raises(ConfigError) as raised:
        made({name: value})
    assert CANARY not in str(raised.value)
    assert name in str(raised.value)


PROGRAM = """
import json, logging, sys
from confluent_kafka import Consumer, Producer, KafkaException
from perkey.errors import ConfigError
from perkey.kafka.admin import KafkaAdmin
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import client_settings

logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
for kafka in json.loads(sys.stdin.read()):
    try:
        settings = client_settings(kafka, {}, group="g", buffer_records=9, buffer_bytes=9,
                                   delivery="at_least_once")
        print("MADE", settings, str(settings), f"{settings}")
        consumer = Consumer(settings.consumer)
        consumer.poll(0.02)
        consumer.close()
        Producer(settings.producer).poll(0.02)
        with KafkaAdmin(settings) as admin:
            admin.describe(["t"], 0.05)
    except (ConfigError, KafkaUnavailable) as error:
        logging.exception("refused")
        print(error)
"""


PROTOCOLS = (
    {"security.protocol": "plaintext"},
    {"security.protocol": "ssl"},
    {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
)

#: In librdkafka's own debug log: certificates, which are public, and the name of the key's file.
NOT_MASKED_BY_DEBUG = {"ssl.certificate.pem", "https.ca.pem", "ssl.key.location"}


@pytest.mark.parametrize("debug", [{}, {"debug": "all"}], ids=["plain", "debug-all"])
@pytest.mark.push
def test_nothing_is_seen_with_every_log_on(debug) -> None:
    """Settings, real clients and an admin request at DEBUG, in their own process: no canary."""
    names = [name for name in SENSITIVE if not debug or name not in NOT_MASKED_BY_DEBUG]
    base = {"bootstrap.servers": "127.0.0.1:1"} | debug
    cases = [base | protocol | {name: CANARY} for protocol in PROTOCOLS for name in names]
    cases.append(base | PROTOCOLS[2] | {"sasl.password": CANARY})
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    lines = (ran.stdout + ran.stderr).splitlines()
    assert ran.returncode == 0, [line for line in lines if not line.startswith("%")][-15:]
    assert sum("MADE" in line for line in lines) >= len(names)
    assert any("sasl.password" in line for line in lines)
    assert any("Client configuration" in line for line in lines) == bool(debug)
    leaks = [line for line in lines if CANARY in line]
    assert not leaks, leaks[:3]


def test_a_command_learns_how_its_run_connects_without_secrets():
    """Brokers and how to log in; not passwords, user names, callbacks and properties of consumers."""
    config = {
        "metadata.broker.list": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
        "sasl.username": "me", "sasl.password": "hunter2", "ssl.ca.location": "/ca.pem",
        "ssl.key.password": "x", "ssl.key.pem": "y", "oauth_cb": print, "client.id": "app",
        "group.instance.id": "m-1", "auto.offset.reset": "latest",
        "enable.ssl.certificate.verification": True,
    }  # fmt: skip
    assert connecting(config) == {
        "bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
        "ssl.ca.location": "/ca.pem", "enable.ssl.certificate.verification": "True",
    }  # fmt: skip
