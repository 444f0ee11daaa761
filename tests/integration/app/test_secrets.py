"""Canaries in every secret property: none comes out anywhere, also not at DEBUG."""

from __future__ import annotations

import io
import json
import logging
import traceback

import pytest

import perkey

pytestmark = pytest.mark.broker

CANARY = "canary-5f2e"
SECRETS = {
    "sasl.password": f"{CANARY}-password",
    "sasl.username": f"{CANARY}-username",
    "ssl.key.password": f"{CANARY}-key",
    "sasl.oauthbearer.client.secret": f"{CANARY}-oauth",
}


@pytest.fixture
def everything_logged():
    """All that is logged by anybody at DEBUG, as one text."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)


def test_no_secret_in_logs_snapshots_reprs_or_results(kafka, everything_logged):
    """A whole run with librdkafka's own debug contexts on, a failing record included."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app(
        kafka={**SECRETS, "debug": "conf,security,feature,cgrp"}, producer={"sasl.password": CANARY}
    )

    @app.consume(source, retry=perkey.Retry(attempts=2, delay_s=0), on_exhausted=perkey.Skip())
    async def handler(record):
        raise ValueError("ordinary")

    stream = app.results()
    run = kafka.start(app, until="drained")
    results = list(stream)
    report = run.wait(60)
    shown = [repr(app), repr(app.options), repr(run), repr(results), repr(report)]
    shown += [json.dumps(app.snapshot()), repr(app.handlers)]
    assert all(CANARY not in text for text in shown)
    logged = everything_logged.getvalue()
    assert "starting" in logged
    assert "rdkafka" in logged
    assert CANARY not in logged


@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl.password": CANARY, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
         "sasl.username": CANARY},
        {"sasl.password": CANARY, "socket.timeout.ms": "soon"},
        {"sasl.passwort": CANARY},
        {"security.protocol": "SSL", "ssl.key.pem": f"-----BEGIN {CANARY}-----"},
    ],
    ids=["refused by the broker", "a wrong value beside it", "a misspelt name", "a broken key"],
)  # fmt: skip
def test_no_secret_in_errors(kafka, everything_logged, wrong):
    """The message, its causes and the log name the property and not its value."""
    source = kafka.topic()
    with pytest.raises(perkey.PerkeyError) as caught:
        app = kafka.app(kafka=wrong)
        app.consume(source)(print)
        app.run(until="drained")
    text = "".join(traceback.format_exception(caught.value))
    said = "".join(line for line in text.splitlines() if "kafka.app(" not in line)
    assert CANARY not in said
    assert CANARY not in everything_logged.getvalue()
