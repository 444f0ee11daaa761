"""The recipes for Sentry, structlog and loguru work as they stand in docs/observability.md."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perkey
from perkey.testing import run

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"


def recipe(name: str) -> str:
    """The code behind this name in bold."""
    (code,) = re.findall(rf"(?ms)^\*\*{name}\*\*.*?```python\n(.*?)```", PAGE.read_text())
    return str(code)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger; handlers that a recipe adds are removed again."""
    logger = logging.getLogger()
    before = list(logger.handlers)
    yield logger
    for one in set(logger.handlers) - set(before):
        logger.removeHandler(one)


def skip_one() -> None:
    """One record fails and is skipped: a warning and an error, both with the exception."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})

    @app.consume("orders", retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    def handler(record: perkey.Record) -> None:
        raise ValueError("no customer {17}")

    run(app, [(b"k", b"v")])


def test_structlog_has_the_fields(root, capsys):
    """A JSON line with the event, its fields, the level and the traceback."""
    exec(compile(recipe("structlog"), PAGE.name, "exec", dont_inherit=True), {})
    skip_one()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [one for one in lines if one["event"] == "record skipped"]
    assert (line["level"], line["topic"], line["offset"]) == ("error", "orders", 0)
    assert "ValueError: no customer {17}" in line["exception"]
    assert "in handler" in line["exception"]


def test_loguru_has_the_fields(root):
    """The message, the fields as `extra` and the exception; braces in data are no template."""
    import loguru

    records: list[Any] = []
    loguru.logger.remove()
    sink = loguru.logger.add(lambda message: records.append(message.record))
    try:
        exec(compile(recipe("loguru"), PAGE.name, "exec", dont_inherit=True), {})
        skip_one()
    finally:
        loguru.logger.remove(sink)
    (one,) = [one for one in records if one["extra"].get("event") == "record skipped"]
    assert (one["level"].name, one["extra"]["offset"]) == ("ERROR", 0)
    assert "no customer {17}" in one["message"]
    assert one["exception"].type is ValueError


SENTRY = """
import json, os, sentry_sdk
from sentry_sdk.transport import Transport
from perkey.testing import run

class Kept(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            errors = [one["type"] for one in event["exception"]["values"]]
            line = json.dumps([event["level"], errors, event.get("tags", {})])
            os.write(1, f"{line}\\n".encode())  # whole: two threads send

sentry_sdk.init("https://key@localhost/1", transport=Kept)
"""
SKIP = """
app.consume("orders", retry=perkey.Retry(attempts=2, delay_s=0), on_exhausted=perkey.Skip())(lambda record: {}["k"])
run(app, [(b"k", b"v")])
"""


@pytest.mark.push  # a process: it patches logging, threads and sockets for good
def test_sentry_has_the_failures():
    """What was given up comes by the log, and each attempt by the recipe, with its tags.

    Sentry drops an exception that it has just seen, so the recipe reports none of them twice.
    """
    code = SENTRY + recipe("Sentry") + SKIP
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=100
    )
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {(level, *errors) for level, errors, _ in events} == {("error", "KeyError")}, ran.stderr
    tags = [{}, *({"topic": "orders", "attempt": attempt} for attempt in (1, 2))]
    assert sorted((one for *_, one in events), key=lambda one: one.get("attempt", 0)) == tags
