"""What counts as a number in an option."""

from __future__ import annotations

import math
import sys

import pytest

from perkey.numeric import is_between, is_number, is_positive, is_seconds, is_whole

MOST = sys.float_info.max


@pytest.mark.parametrize("value", [0, -1, 0.5, MOST, -MOST, int(MOST)])
def test_finite_numbers_are_numbers(value):
    """Whole or not, up to the largest float."""
    assert is_number(value)


@pytest.mark.parametrize(
    "value", [True, False, None, "1", math.nan, math.inf, -math.inf, 10**400, -(10**400), 1j]
)
def test_what_is_no_number_is_refused_and_raises_nothing(value):
    """Bools, text, NaN, infinities, and whole numbers that no float can hold."""
    assert not is_number(value)
    assert not is_seconds(value)
    assert not is_positive(value)


def test_seconds_begin_at_zero_and_positive_numbers_above_it():
    """Zero is what tells them apart."""
    assert is_seconds(0)
    assert is_seconds(0.0)
    assert not is_seconds(-1e-9)
    assert not is_positive(0)
    assert is_positive(1e-9)


@pytest.mark.parametrize(
    ("value", "fits"), [(0, False), (1, True), (5, True), (6, False), (2.0, False), (True, False)]
)
def test_whole_numbers_have_both_bounds(value, fits):
    """The limits themselves are in; 2.0 and True are not whole numbers."""
    assert is_whole(value, 1, 5) is fits


def test_whole_numbers_without_an_upper_bound():
    """As large as one likes."""
    assert is_whole(10**400, 1)
    assert not is_whole(0, 1)


@pytest.mark.parametrize(
    ("value", "fits"), [(-0.1, False), (0, True), (1, True), (1.1, False), (math.nan, False)]
)
def test_a_share_has_both_bounds(value, fits):
    """The limits themselves are in."""
    assert is_between(value, 0, 1) is fits


def test_a_share_may_be_switched_off():
    """`Retry(jitter=False)` says 0."""
    assert is_between(value=False, least=0, most=1)
