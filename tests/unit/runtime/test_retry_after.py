"""What an error says of how long the service wants its callers to wait."""

from __future__ import annotations

import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest

import perkey
from perkey.runtime.calls.invoke import asked_wait_s


class HttpError(Exception):
    """As httpx, requests, openai: with a response."""

    def __init__(self, status: int, headers: object) -> None:
        self.response = SimpleNamespace(status_code=status, headers=headers)


class OfAiohttp(Exception):
    """With both itself."""

    def __init__(self, status: int, headers: object) -> None:
        self.status, self.headers = status, headers


def test_retry_after_says_it():
    """As the handler raised it."""
    assert asked_wait_s(perkey.RetryAfter(3)) == 3.0


@pytest.mark.parametrize("kind", [HttpError, OfAiohttp])
@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (429, {"Retry-After": "0.5"}, 0.5),
        (429, {"Retry-After": "-3"}, 0.0),
        (429, {}, None),
        (429, {"Retry-After": "soon"}, None),
        (429, {"Retry-After": "inf"}, None),
        (429, {"Retry-After": "nan"}, None),
        (429, None, None),
        (503, {"Retry-After": "7"}, None),
    ],
)
def test_an_answer_of_http(kind, status, headers, seconds):
    """Only 429, with a header that can be read."""
    assert asked_wait_s(kind(status, headers)) == seconds


def test_a_date():
    """In an hour; one that has passed is now."""
    later, before = (formatdate(time.time() + s, usegmt=True) for s in (3_600, -3_600))
    assert asked_wait_s(HttpError(429, {"Retry-After": later})) == pytest.approx(3_600, abs=60)
    assert asked_wait_s(HttpError(429, {"Retry-After": before})) == 0.0


def test_an_error_that_was_raised_from_one():
    """What the client raised is its cause."""
    error = ValueError("no answer")
    error.__cause__ = HttpError(429, {"Retry-After": "7"})
    assert asked_wait_s(error) == 7.0


def test_an_error_whose_attributes_fail():
    """It is the user's own: it says nothing."""

    class Broken(Exception):
        @property
        def response(self):
            raise RuntimeError

    assert asked_wait_s(Broken()) is None
    assert asked_wait_s(ValueError("x")) is None
