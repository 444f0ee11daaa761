"""What the log says of failures: the first of each kind at once, the others counted."""

from __future__ import annotations

import logging

import pytest

import perkey
from perkey.cli import logs
from perkey.core.effects import Troubled
from perkey.core.work import last_frame
from perkey.runtime.member import run_log
from perkey.runtime.member.run_log import ALIKE_EVERY_S, KINDS_MAX, SUMMARY_EVERY_S, RunLog
from perkey.testing import run
from perkey.types import ErrorInfo, Record

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    boom()\nE: bad\n'


class Handler:
    """A stand-in with a name."""

    def __init__(self, name="h"):
        self.name, self.done = name, 0


class Work:
    """A record somewhere."""

    def __init__(self, offset=0, handler="h"):
        self.partition = type("P", (), {"topic": "t", "number": 1, "handler": Handler(handler)})
        self.record = Record("t", 1, offset, 0, b"k", b"v")


@pytest.fixture
def told(caplog):
    """A run_log at a time that the test sets, and what it wrote."""
    caplog.set_level(logging.INFO, logger="perkey")
    clock = [0.0]

    class Told:
        run_log = RunLog(lambda: clock[0])

        def fail(self, offset=0, kind="E", at=3, outcome="failed", handler="h", work=None):
            trace = TRACE.replace("line 3", f"line {at}")
            error = ErrorInfo(kind, "bad", trace)
            work = work or Work(offset, handler)
            self.run_log.trouble(Troubled(work, outcome, 1, error, work.record))
            return work

        def at(self, seconds):
            clock[0] = seconds

        def lines(self, *, last=False):
            caplog.clear()
            self.run_log.write(last=last)
            return [record.perkey for record in caplog.records]

    return Told()


def test_the_first_failure_is_reported_with_its_traceback(told, caplog):
    """Where, which attempt, what error; the traceback stands below the line."""
    told.fail(7)
    assert told.lines() == [
        {
            "event": "attempt failed", "handler": "h", "topic": "t", "partition": 1, "offset": 7,
            "attempt": 1, "error": "E: bad",
        }
    ]  # fmt: skip
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert logs.TextLines().format(record).endswith("\n" + TRACE.rstrip())
    assert logging.Formatter().format(record).endswith(TRACE.rstrip())


def test_failures_alike_are_counted_in_the_next_line(told):
    """One in ten seconds; the next says how many were left out."""
    for offset in range(5):
        told.fail(offset)
    told.at(ALIKE_EVERY_S - 0.1)
    told.fail(5)
    assert len(told.lines()) == 1
    told.at(ALIKE_EVERY_S)
    told.fail(6)
    (line,) = told.lines()
    assert (line["offset"], line["left_out"]) == (6, 5)


def test_what_was_left_out_is_reported_at_the_end(told):
    """Never dropped unsaid."""
    for offset in range(4):
        told.fail(offset)
    told.lines()
    assert told.lines(last=True) == [
        {"event": "more attempts failed", "handler": "h", "error_type": "E", "left_out": 3}
    ]
    assert told.lines(last=True) == []


@pytest.mark.parametrize("other", [{"kind": "F"}, {"at": 4}, {"handler": "g"}])
def test_another_type_place_or_handler_is_another_kind(told, other):
    """Each is told at once."""
    told.fail()
    told.fail(**other)
    assert len(told.lines()) == 2


def test_endless_kinds_become_one(told):
    """A handler whose errors are all different does not fill the memory, nor the log."""
    for number in range(KINDS_MAX + 50):
        told.fail(kind=f"E{number}")
    assert len(told.run_log._failures) == KINDS_MAX + 1
    lines = [one for one in told.lines() if one["event"] == "attempt failed"]
    assert len(lines) == KINDS_MAX + 1
    assert sum(line["left_out"] for line in told.lines(last=True)) == 49


@pytest.mark.parametrize(("done", "expected"), [(0, 1), (3, 0)])
def test_a_handler_that_never_succeeds_is_reported_early(told, done, expected):
    """Once, with its tenth failure in a row; not if a record has succeeded before."""
    lines = []
    for number in range(3 * run_log.FAILING_MIN):
        work = Work(number, "h")
        work.partition.handler.done = done
        told.fail(number, work=work)
        lines += [one for one in told.lines() if one["event"].startswith("every attempt")]
    assert len(lines) == expected
    if expected:
        assert (lines[0]["handler"], lines[0]["attempts"]) == ("h", run_log.FAILING_MIN)
        assert "`perkey pause --handler h --reason TEXT`" in lines[0]["next"]


def test_the_traceback_of_the_last_attempt_is_written_once(told, caplog):
    """Given up right after it failed: the line refers to the one above. Another error has its own."""
    work = told.fail(7)
    told.fail(7, outcome="skipped", work=work)
    told.lines()
    failed, skipped = [logs.TextLines().format(record) for record in caplog.records]
    assert TRACE.rstrip() in failed
    assert "Traceback" not in skipped
    assert skipped.endswith(run_log.ABOVE)
    work = told.fail(8, kind="F")
    told.fail(8, kind="G", at=9, outcome="parked", work=work)
    told.lines()
    assert [logs.TextLines().format(one).count("Traceback") for one in caplog.records] == [1, 1]


def test_a_record_given_up_without_a_line_of_its_attempt_has_its_traceback(told, caplog):
    """Its attempt was one of many alike, which were counted only."""
    told.fail(6)
    work = told.fail(7)
    told.fail(7, outcome="skipped", work=work)
    told.lines()
    assert [logs.TextLines().format(one).count("Traceback") for one in caplog.records] == [1, 1]


def test_given_up_records_are_summed_up(told):
    """The first dead letter of a kind at once, then one line a minute, and at the end."""
    for offset in range(3):
        told.fail(offset, outcome="dead_lettered")
    (line,) = told.lines()
    assert (line["event"], line["offset"], line["attempts"]) == ("record dead-lettered", 0, 1)
    told.at(SUMMARY_EVERY_S)
    (line,) = told.lines()
    assert (line["event"], line["outcome"], line["count"]) == (
        "more records given up", "dead_lettered", 2,
    )  # fmt: skip
    told.fail(9, outcome="dead_lettered")
    assert told.lines() == []
    assert [line["count"] for line in told.lines(last=True)] == [1]


def test_the_place_is_the_innermost_line():
    """Of a traceback; nothing where there is none."""
    assert last_frame(TRACE) == '  File "a.py", line 3, in f'
    assert last_frame("") == ""


def test_a_run_reports_what_failed(caplog, monkeypatch):
    """80 records whose handler raises: the log has the traceback, each outcome, and all counts."""
    caplog.set_level(logging.INFO, logger="perkey")
    monkeypatch.setattr(run_log, "ALIKE_EVERY_S", 60.0)
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})

    @app.consume("t", retry=perkey.Retry(attempts=2, delay_s=0.01), on_exhausted=perkey.Skip())
    def handler(record):
        raise ValueError("no such customer")

    run(app, [(b"%d" % n, b"x") for n in range(80)])
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    events = [record.perkey["event"] for record in lines]
    assert events.count("attempt failed") == 1
    assert events.count("record skipped") == 1
    failed = lines[events.index("attempt failed")]
    assert 'in handler\n    raise ValueError("no such customer")' in failed.exc_text
    sums = {record.perkey["event"]: record.perkey for record in lines}
    assert sums["more attempts failed"]["left_out"] == 159
    assert sums["more records given up"]["count"] == 79


@pytest.mark.parametrize(("count", "left_out"), [(9, 0), (10, 0), (11, 1)])
def test_lines_without_room_are_counted(told, monkeypatch, count, left_out):
    """The limit of lines that wait: what comes beyond it is one line with a count."""
    monkeypatch.setattr(run_log, "LINES_MAX", 10)
    for number in range(count):
        told.run_log.line("info", f"line {number}")
    assert len(told.lines()) == count - left_out
    assert [line["count"] for line in told.lines()] == [left_out] * bool(left_out)


def limited(timeout_s, *, began=0.0):
    """A running call of a handler with this time-out."""
    work = Work(7)
    work.partition.handler.index, work.partition.handler.timeout_s = 0, timeout_s
    work.since = began
    return work


@pytest.mark.parametrize(
    ("left", "kind", "after"),
    [
        ([limited(None)], "async", "raise drain_timeout_s, or set timeout_s on the handler"),
        ([limited(None)], "threads", "a call on a thread cannot be cancelled"),
        ([limited(3.0)], "threads", "a call on a thread cannot be cancelled"),
        ([limited(3.0)], "async", "run past timeout_s=3 and has not ended when cancelled"),
        ([limited(3.0, began=5.0)], "async", "raise drain_timeout_s above timeout_s=3"),
        ([limited(30.0)], "processes", "raise drain_timeout_s above timeout_s=30"),
        ([], "async", "not acknowledged"),
    ],
)
def test_a_drain_that_timed_out_names_what_it_waited_for(told, left, kind, after):
    """The advice fits: no time-out is asked for where there is one, or where none can help."""
    told.run_log.drain_timed_out(5.0, left, 6.0, [kind])
    (line,) = told.lines()
    assert line["running"] == len(left)
    assert after in line["next"]
