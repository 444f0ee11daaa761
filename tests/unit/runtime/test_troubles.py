"""Failures by handler and type, with an example of each."""

from __future__ import annotations

import pytest

import perkey
from perkey.runtime.member import run_log
from perkey.testing import run


def failures(errors, **options):
    """The rows after a run whose records failed with these, one each."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    rows = []

    @app.consume("t", concurrency=1, ordering="partition", **options)
    def handler(record):
        if record.offset < len(errors):
            raise errors[record.offset]
        rows.extend(app.snapshot()["failures"])

    run(app, [(b"k\x1b[31m", b"")] * (len(errors) + 1))
    return rows


def test_each_type_has_its_counts_and_its_last_example():
    """Attempts and outcomes are counted apart; the example is escaped."""
    once = perkey.Retry(attempts=2, delay_s=0)
    rows = failures(
        [ValueError("a\x1b[2J"), KeyError("b"), ValueError("c\nd")],
        retry=once,
        on_exhausted=perkey.Skip(),
    )
    assert [(r["type"], r["attempts"], r["skipped"]) for r in rows] == [
        ("ValueError", 4, 2),
        ("KeyError", 2, 1),
    ]
    example = rows[0]["example"]
    assert (example["offset"], example["message"], example["attempt"]) == (2, "c\\nd", 2)
    assert example["key"] == "k\\x1b[31m"
    assert "\x1b" not in example["traceback"]
    assert "ValueError" in example["traceback"]


@pytest.mark.parametrize(("kinds", "others"), [(49, 0), (50, 0), (51, 1)])
def test_kinds_are_bounded(kinds, others):
    """Beyond the limit they are counted as one, not forgotten."""
    errors = [type(f"E{n}", (Exception,), {})("x") for n in range(kinds)]
    rows = failures(errors, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    told = {row["type"]: row["attempts"] for row in rows}
    assert told.get(run_log.OTHERS, 0) == others
    assert sum(told.values()) == kinds
