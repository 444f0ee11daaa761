"""What functions of the user return for records that come in."""

from __future__ import annotations

import logging

from weft.core.spec import HandlerSpec
from weft.core.work import Tags
from weft.policies import Hold
from weft.runtime.tagging import tags_of
from weft.types import Record


def record(key):
    """A record with this key."""
    return Record("t", 0, 7, 0, key, b"v")


def spec(by):
    """A handler that holds by this function."""
    return HandlerSpec("h", hold=Hold(on=OSError, by=by))


def test_a_handler_without_such_functions_has_no_values():
    """Nothing is called for each record then."""
    assert tags_of(HandlerSpec("h"), [record(b"a")]) == []
    assert tags_of(spec(None), [record(b"a")]) == []


def test_each_record_has_its_value():
    """From its bytes."""
    by = spec(lambda record: record.key[:1])
    assert tags_of(by, [record(b"ab"), record(b"c")]) == [Tags(b"a"), Tags(b"c")]


def test_what_fails_is_the_value_none_and_a_line(caplog):
    """A null key has no first byte; a list cannot be compared. No record is lost by it."""
    with caplog.at_level(logging.ERROR, "weft"):
        assert tags_of(spec(lambda record: record.key[:1]), [record(None)]) == [Tags(None)]
    assert "Hold(by=) failed" in caplog.text
    assert tags_of(spec(lambda record: [1]), [record(b"a")]) == [Tags(None)]
