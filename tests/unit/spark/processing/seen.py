"""What handlers saw. They travel as bytes and come back as copies; this module is found by name."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

FACTS: list[Any] = []
SETTING = ContextVar("setting", default="unset")


def tell(fact: Any) -> None:
    """Remember it for the test."""
    FACTS.append(fact)
