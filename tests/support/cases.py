"""Many small cases as one test: all that fail are named, not the first alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each(check: Callable[..., Any], cases: Iterable[Any]) -> None:
    """Check every case; a tuple is several arguments."""
    failed = []
    for case in cases:
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except Exception as error:
            failed.append(f"{case!r}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
