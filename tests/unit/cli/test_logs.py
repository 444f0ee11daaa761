"""Log lines of the command line: one an event, for people or for machines."""

from __future__ import annotations

import io
import json
import logging
import sys
from contextlib import contextmanager

import pytest
from rich.console import Console

from perkey.cli import logs
from perkey.errors import ConfigError


def record(message, *, name="perkey", level=logging.INFO, fields=None, error=None):
    """A log record of the beginning of 2026."""
    made = logging.LogRecord(name, level, "file.py", 1, message, (), error)
    made.created = 1767225600.25
    if fields is not None:
        made.perkey = fields
    return made


def raised():
    """What `sys.exc_info()` says of an error."""
    try:
        raise ValueError("bad")
    except ValueError:
        return sys.exc_info()


def test_text_has_time_level_and_event():
    """Perkey's own lines carry no logger name; those of others do."""
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
        "logger": "perkey",
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


@contextmanager
def bare_root():
    """A root logger that nobody has set up; put back afterwards."""
    root, perkey = logging.getLogger(), logging.getLogger("perkey")
    before = root.handlers[:], root.level, perkey.handlers[:], perkey.level
    root.handlers[:] = perkey.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:], level, perkey.handlers[:], perkey_level = before
        root.setLevel(level)
        perkey.setLevel(perkey_level)


def test_a_terminal_gets_its_lines_through_the_console():
    """So that they stand above the progress line, with brackets as they are."""
    with bare_root():
        stream = io.StringIO()
        assert logs.set_up(Console(file=stream, force_terminal=True, width=20), "text", None)
        logging.getLogger("perkey").info("a line that is longer than it [red]")
        assert stream.getvalue().endswith("a line that is longer than it [red]\n")


def test_json_has_no_terminal_codes():
    """On a terminal, too: it is for machines."""
    with bare_root() as root:
        logs.set_up(Console(file=io.StringIO(), force_terminal=True), "json", None)
        (handler,) = root.handlers
        assert type(handler) is logging.StreamHandler


def test_the_users_own_set_up_is_left_alone():
    """His handlers and levels stay; a level on the command line is Perkey's logger's alone."""
    with bare_root() as root:
        mine = logging.NullHandler()
        root.addHandler(mine)
        root.setLevel(logging.ERROR)
        assert not logs.set_up(Console(file=io.StringIO()), "text", None)
        assert (root.handlers, root.level) == ([mine], logging.ERROR)
        logs.set_up(Console(file=io.StringIO()), "text", "debug")
        assert logging.getLogger("perkey").level == logging.DEBUG
        assert (root.handlers, root.level) == ([mine], logging.ERROR)


def test_json_keeps_extra_fields():
    """What the user gives as extra= is in the line, beside the event."""
    made = record("paid", name="shop")
    made.customer, made.cents = "c-17", 990
    line = json.loads(logs.JsonLines().format(made))
    assert (line["event"], line["customer"], line["cents"]) == ("paid", "c-17", 990)


def test_json_has_perkeys_own_tracebacks():
    """Text of a traceback, as an ErrorInfo carries it, is a field."""
    made = record("attempt failed", fields={"event": "attempt failed", "offset": 7})
    made.exc_text = "Traceback\nE: bad"
    line = json.loads(logs.JsonLines().format(made))
    assert line["traceback"] == "Traceback\nE: bad"


def test_what_does_not_print_is_escaped_in_text():
    """A terminal does not obey what came with a record, in the line or in the traceback."""
    made = record("attempt failed error=\x1b[2J")
    made.exc_text = "Traceback\n\tE: \x1b]0;owned\x07 \u202e bad"
    _, line, *trace = logs.TextLines().format(made).partition("attempt failed ")
    assert line + "".join(trace) == (
        "attempt failed error=\\x1b[2J\nTraceback\n\tE: \\x1b]0;owned\\x07 \\u202e bad"
    )
