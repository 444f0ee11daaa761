"""Messages of a foreign client, whose header names cannot be read."""

from __future__ import annotations

import logging

import pytest

from weft.kafka import batches


class Foreign:
    """As much of a Message as the reading of headers needs."""

    def headers(self) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "not UTF-8")

    def topic(self) -> str:
        return "t-many"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


def test_many_unreadable_headers_are_reported_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """5,000 of them gave 5,000 warnings."""
    monkeypatch.setattr(batches, "Message", Foreign)
    with caplog.at_level(logging.WARNING):
        found = batches._all_headers([Foreign()] * 5000)
    assert found == [None] * 5000
    assert len(caplog.records) == 1
