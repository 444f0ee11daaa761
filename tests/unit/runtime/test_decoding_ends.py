"""Decoders that end the program instead of raising: their record fails, nothing else ends."""

from __future__ import annotations

import sys

import pytest

import weft
from weft.runtime.calls.invoke import Undecodable, decoded
from weft.testing import run
from weft.types import ErrorInfo, Record

RECORD = Record("orders", 0, 0, 0, b"k", b"stop")


def leave(data: bytes) -> str:
    """What a careless decoder does."""
    if data == b"stop":
        sys.exit(3)
    return data.decode()


def test_a_decoder_that_exits_is_a_decoder_that_failed():
    """SystemExit is no Exception: it went past, to the executor's thread and to the reader."""
    with pytest.raises(Undecodable, match="value cannot be decoded: SystemExit: 3"):
        decoded(RECORD, leave)


def test_ctrl_c_in_a_decoder_is_ctrl_c():
    """The reader of results decodes on its own thread, which may be the main one."""

    def interrupted(_data: bytes) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(RECORD, interrupted)


@pytest.mark.parametrize("is_async", [True, False])
def test_its_record_fails_and_the_reader_goes_on(is_async):
    """The record is parked at its first attempt and read as bytes; the next one is handled."""
    app = weft.App(group="g", kafka={"bootstrap.servers": "x"})

    if is_async:

        @app.consume("orders", value=leave)
        async def handle(record):
            """Nothing."""
    else:

        @app.consume("orders", value=leave)
        def handle(record):
            """Nothing."""

    results = run(app, [(b"a", b"stop"), (b"b", b"go")])
    found = {one.record.value: (one.outcome, one.attempts) for one in results}
    assert found == {b"stop": ("parked", 1), "go": ("done", 1)}


@pytest.mark.parametrize(
    ("error", "line"), [(ErrorInfo("ValueError", ""), "ValueError"), (ErrorInfo("E", "m"), "E: m")]
)
def test_an_error_without_a_message_is_its_type(error, line):
    """`raise ValueError` read as 'ValueError: '."""
    assert error.line == line
