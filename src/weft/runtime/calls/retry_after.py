"""How long a service asks its callers to wait: `RetryAfter`, or the answer 429 of an HTTP client.

httpx, requests and those built on them (openai, anthropic) raise an error with a `response`; that
of aiohttp has `status` and `headers` itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from weft.errors import RetryAfter

TOO_MANY_REQUESTS = 429
CAUSES_MAX = 5


def asked_wait_s(error: BaseException) -> float | None:
    """Seconds that nothing else should be sent; None where the error names none."""
    if isinstance(error, RetryAfter):
        return error.delay_s
    try:
        for one in _causes(error):
            answer: Any = getattr(one, "response", None)
            both: tuple[Any, Any] = (answer, one)
            for answered in both:
                status = getattr(answered, "status_code", None) or getattr(answered, "status", None)
                if status == TOO_MANY_REQUESTS:
                    return _seconds(answered.headers.get("Retry-After"))
    except Exception:  # an error of the user's: its attributes may be anything
        return None
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    one: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _seconds(value: Any) -> float | None:
    """The header's value: a number of seconds, or an HTTP date."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        seconds = float(text)
    except ValueError:
        at = parsedate_to_datetime(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()
    return max(0.0, seconds) if seconds < float("inf") else None
