"""Planted secrets of an app are looked for in everything that Spark writes down or shows."""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.fleet_kit import (
    START_S,
    Fleet,
    answers,
    fill,
    free_port,
    running,
    write_app,
)
from tests.integration.spark.test_fleet_connect import end, start_server
from tests.support.waiting import wait_for

import perkey

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Kafka takes these without using them: the brokers of the tests have no log-in.
SECRETS = {
    "sasl.password": "planted-sasl-1f2e3d",
    "ssl.key.password": "planted-key-4c5b6a",
    "sasl.oauthbearer.client.secret": "planted-oauth-7a8b9c",
}
PAGES = ("environment", "jobs", "stages", "sql", "executors", "allexecutors", "streaming")
HTML = ("jobs/", "stages/", "environment/", "executors/", "SQL/")


def traces(secret: str) -> set[bytes]:
    """A secret as text, and inside base64 at any of its three places."""
    found = {secret.encode()}
    for pad in range(3):
        encoded = base64.b64encode(b"\0" * pad + secret.encode())
        found.add(encoded[4 * (pad > 0) : -4])
    return found


def planted_in(everything: dict[str, bytes]) -> list[tuple[str, str]]:
    """(place, property) of every secret that stands somewhere."""
    return [
        (where, key)
        for where, text in everything.items()
        for key, secret in SECRETS.items()
        if any(trace in text for trace in traces(secret))
    ]


def get(url: str) -> bytes:
    """A page of the UI; nothing where there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def shown(address: str) -> dict[str, bytes]:
    """Everything that Spark's UI says of the application, as JSON and as pages."""
    api = f"{address}/api/v1/applications"
    (one,) = json.loads(get(api))
    base = f"{api}/{one['id']}"
    pages = {name: get(f"{base}/{name}") for name in PAGES}
    pages |= {name: get(f"{address}/{name}") for name in HTML}
    for stage in json.loads(pages["stages"]):
        where = f"{base}/stages/{stage['stageId']}/{stage['attemptId']}"
        pages[where] = get(f"{where}?details=true")
    return {name: page for name, page in pages.items() if page}


def with_stages(address: str, count: int) -> dict[str, bytes]:
    """All that the UI says once it has the stages of so many members; it lags behind them."""

    def now() -> dict[str, bytes] | None:
        pages = shown(address)
        return pages if len([one for one in pages if "/stages/" in one]) == count else None

    return wait_for(now, START_S, f"{count} stages")


def ui_of(fleet: Fleet) -> str:
    """The address of its UI, as the log tells it."""
    found: Any = wait_for(
        lambda: re.search(r" ui=(http://\S+)", fleet.text), START_S, "the UI's address"
    )
    return str(found[1])


def test_the_event_log_has_no_secret(spark, topic, kafka_broker) -> None:
    """Of a fleet in a session that is given; the marker shows that the place is looked at."""
    name = topic(2, "secrets")
    fill(kafka_broker.bootstrap, name, 200, 2)
    app = perkey.App(f"g-{name}", {"bootstrap.servers": kafka_broker.bootstrap, **SECRETS})

    @app.consume(name)
    async def handle(record: perkey.Record) -> None:
        """Nothing to do."""

    run = app.start(engine="spark", spark=spark, members=1, until="drained")
    assert run.wait(START_S).done == 200
    folder = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    written = {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    assert any(b"planted-marker" in text for text in written.values())
    assert planted_in(written) == []


@pytest.mark.long
def test_secrets_stand_nowhere(tmp_path: Path, topic, kafka_broker) -> None:
    """Event log, UI (JSON and pages), the fleet's log: Kafka's secrets are in none of them.

    The marker beside them shows that the places are really looked at.
    """
    name = topic(2, "secrets")
    fill(kafka_broker.bootstrap, name, 200, 2)
    write_app(tmp_path, kafka_broker.bootstrap, name, kafka=SECRETS)
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.logStageExecutorMetrics": "true",
        "spark.eventLog.compress": "false",
        "spark.log.level": "DEBUG",
        "spark.marker": "planted-marker",
    }
    more = [word for one in conf.items() for word in ("--conf", "=".join(one))]
    with running(tmp_path, "--members", "2", *more) as fleet:
        address = ui_of(fleet)
        wait_for(lambda: len(fleet.done()) == 200, START_S, "all records")
        pages = with_stages(address, 2)
        fleet.ctrl_c()
        assert fleet.wait() == 0, fleet.text[-2000:]
    written = {str(one): one.read_bytes() for one in events.rglob("*") if one.is_file()}
    assert any(b"planted-marker" in text for text in written.values())
    assert b"planted-marker" in pages["environment"]
    everything = {**pages, **written, "log": fleet.text.encode()}
    assert planted_in(everything) == []


@pytest.mark.long
def test_secrets_stand_nowhere_on_a_connect_server(tmp_path: Path, topic, kafka_broker) -> None:
    """The server's event log and UI, and its log at its most talkative, know none of them either.

    Members travel to it inside the plans of queries.
    """
    name = topic(2, "secrets")
    fill(kafka_broker.bootstrap, name, 200, 2)
    write_app(tmp_path, kafka_broker.bootstrap, name, kafka=SECRETS)
    events = tmp_path / "events"
    events.mkdir()
    port, ui = free_port(), free_port()
    server = start_server(
        tmp_path,
        port,
        "spark.ui.enabled=true",
        f"spark.ui.port={ui}",
        "spark.eventLog.enabled=true",
        f"spark.eventLog.dir={events.as_uri()}",
        "spark.eventLog.compress=false",
        "spark.marker=planted-marker",
    )
    try:
        wait_for(lambda: answers(port), START_S, "the Connect server")
        address = f"sc://127.0.0.1:{port}"
        with running(tmp_path, "--members", "2", "--master", address) as fleet:
            wait_for(lambda: len(fleet.done()) == 200, START_S, "all records")
            pages = shown(f"http://127.0.0.1:{ui}")
            pages["connect"] = get(f"http://127.0.0.1:{ui}/connect/")
            fleet.ctrl_c()
            assert fleet.wait() == 0, fleet.text[-2000:]
    finally:
        end(server)
    written = {str(one): one.read_bytes() for one in events.rglob("*") if one.is_file()}
    assert any(b"planted-marker" in text for text in written.values())
    assert pages["connect"]
    everything = {**pages, **written, "server": (tmp_path / "server").read_bytes()}
    assert planted_in(everything) == []


def test_traces_are_found() -> None:
    """The search finds a secret in a base64 text at whatever place it stands."""
    for before in range(4):
        text = base64.b64encode(b"x" * before + b"planted-sasl-1f2e3d" + b"y" * 5)
        assert any(trace in text for trace in traces("planted-sasl-1f2e3d"))
