"""Checks for numbers in options."""

from __future__ import annotations

import sys
from typing import TypeGuard

_FLOAT_MAX = sys.float_info.max


# The checks take `object`: at run time a user's value may be of any type, whatever its annotation.
def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number; True and False are not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -_FLOAT_MAX <= value <= _FLOAT_MAX  # math.isfinite raises for an int too large for it


def is_seconds(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, 0 or more."""
    return is_number(value) and value >= 0


def is_positive(value: object) -> TypeGuard[float]:
    """Whether it is a finite number above 0."""
    return is_number(value) and value > 0


def is_between(value: object, least: float, most: float) -> TypeGuard[float]:
    """Whether it is a number from `least` to `most`; False counts as 0, as in `jitter=False`."""
    return isinstance(value, int | float) and least <= value <= most


def is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    """Whether it is a whole number from `least` to `most`; 1.0, True and False are not."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= least and (most is None or value <= most)
