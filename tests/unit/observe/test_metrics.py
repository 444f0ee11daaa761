"""A snapshot as metrics: conventions, bounded labels, and every place and cause."""

from __future__ import annotations

import re

import pytest

import perkey
from perkey.observe import metrics
from perkey.observe.metrics import exposed, names
from perkey.reasons import HALTS, PLACES
from perkey.runtime.histogram import Histogram
from perkey.testing import run


@pytest.fixture(scope="module")
def text():
    """What a run with a failing, a skipped and a slow record exposes."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    shots = []

    # One call at a time: the last snapshot is taken after the first record has failed.
    @app.consume("t", concurrency=1, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    def handler(record):
        shots.append(app.snapshot())
        if record.value == b"bad":
            raise ValueError("\x1b<script>")

    run(app, [(b"<script>", b"bad"), (b"b", b"good"), (b"b", b"good")])
    return exposed(lambda: shots[-1]).decode()


def test_each_name_is_exposed_with_help_and_type(text):
    """Names as `names()` has them, which the dashboards and alerts are checked against."""
    bare = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names()}
    for name in bare:
        assert re.search(rf"^# HELP {name}(_total)? \S", text, re.MULTILINE), name
    for kind in ("counter", "gauge", "histogram"):
        assert re.search(rf"^# TYPE perkey_\w+ {kind}$", text, re.MULTILINE)


def test_names_follow_the_conventions():
    """Prefix, base units in full, _total for counters alone."""
    for name in names():
        assert re.fullmatch(r"perkey_[a-z_]+", name)
        assert not re.search(r"_(ms|s|millis|kb|percent)$", name)


def test_every_place_and_cause_is_a_label(text):
    """Also those that hold nothing now: a missing series is not a zero."""
    for place in PLACES:
        assert f'place="{place.name}"' in text
    for cause in HALTS:
        assert f'perkey_halted{{cause="{cause.name}",group="g"}}' in text


def test_no_label_comes_from_a_record(text):
    """Neither key nor error: they would make endless series, and are the user's data."""
    assert "script" not in text
    found = {label for labels in re.findall(r"\{([^}]*)\}", text) for label in
             re.findall(r'(\w+)="', labels)}  # fmt: skip
    assert found == {"group", "topic", "partition", "handler", "place", "outcome", "cause", "state",
                     "le"}  # fmt: skip


def test_outcomes_and_failures_are_counted(text):
    """By what became of the records."""
    assert (
        'perkey_records_finished_total{group="g",handler="handler",outcome="skipped"} 1.0' in text
    )
    assert 'perkey_failed_attempts_total{group="g",handler="handler"} 1.0' in text


def test_histograms_are_cumulative():
    """Each bucket has what is below it; the last one is all."""
    one = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        one.observe(seconds)
    row = {"latency_buckets": one.row()}
    shot = {"state": "running", "partitions": [], "handlers": {"h": row}}
    text = exposed(lambda: shot).decode()
    for le, count in (("0.1", 2), ("1.0", 3), ("+Inf", 4)):
        assert f'perkey_handler_seconds_bucket{{group="",handler="h",le="{le}"}} {count}.0' in text
    assert 'perkey_handler_seconds_sum{group="",handler="h"} 7.65' in text
    assert metrics.TIMED.keys() == {
        "perkey_handler_seconds", "perkey_lane_wait_seconds", "perkey_completion_age_seconds",
    }  # fmt: skip
