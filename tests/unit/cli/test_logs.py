"""Log lines of the command line: one an event, for people or for machines."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
from rich.console import Console

from weft.cli import logs
from weft.errors import ConfigError


def record(message, *, name="weft", level=logging.INFO, fields=None, error=None):
    """A log record of the beginning of 2026."""
    made = logging.LogRecord(name, level, "file.py", 1, message, (), error)
    made.created = 1767225600.25
    if fields is not None:
        made.weft = fields
    return made


def raised():
    """What `sys.exc_info()` says of an error."""
    try:
        raise ValueError("bad")
    except ValueError:
        return sys.exc_info()


def test_text_has_time_level_and_event():
    """Weft's own lines carry no logger name; those of others do."""
    lines = logs.TextLines()
    assert lines.format(record("assigned partitions=t[0]")) == (
        "2026-01-01T00:00:00.250Z INFO assigned partitions=t[0]"
    )
    assert lines.format(record("hello", name="mine", level=logging.WARNING)) == (
        "2026-01-01T00:00:00.250Z WARNING mine: hello"
    )


def test_a_message_of_several_lines_is_one():
    """Only a traceback follows on lines of its own."""
    lines = logs.TextLines()
    assert lines.format(record("a\nb")).endswith("INFO a b")
    first, *rest = lines.format(record("failed", error=raised())).splitlines()
    assert first.endswith("INFO failed")
    assert rest[-1] == "ValueError: bad"


def test_json_has_the_fields_of_the_event():
    """Values that JSON does not know become text."""
    fields = {"event": "starting", "group": "g", "what": {1, 2}.__class__}
    line = json.loads(logs.JsonLines().format(record("x", fields=fields)))
    assert line == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "info",
        "logger": "weft",
        "event": "starting",
        "group": "g",
        "what": "<class 'set'>",
    }


def test_json_of_anybody_elses_message():
    """The message is the event; a traceback is a field."""
    line = json.loads(logs.JsonLines().format(record("a\nb", name="x", error=raised())))
    assert (line["event"], line["logger"]) == ("a\nb", "x")
    assert line["traceback"].endswith("ValueError: bad")


@pytest.mark.parametrize(
    ("style", "level", "said"),
    [
        ("xml", "info", "--log-format xml: choose one of text, json"),
        ("text", "loud", "--log-level loud"),
    ],
)
def test_unknown_words_are_refused(style, level, said):
    """Before anything is set up."""
    with pytest.raises(ConfigError, match=said):
        logs.set_up(Console(file=io.StringIO()), style, level)


def test_a_terminal_gets_its_lines_through_the_console():
    """So that they stand above the progress line, with brackets as they are."""
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.set_up(Console(file=stream, force_terminal=True, width=20), "text", "info")
        logging.getLogger("weft").info("a line that is longer than it [red]")
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    assert stream.getvalue().endswith("a line that is longer than it [red]\n")
