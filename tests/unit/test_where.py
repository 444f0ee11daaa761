"""The grammar of --where: what it means, where it points when it is wrong, what it refuses."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perkey.where import (
    DEPTH_MAX,
    FIELDS,
    LENGTH_MAX,
    PATTERN_CHARS_MAX,
    TERMS_MAX,
    WhereError,
    parse,
)

RECORD = {
    "topic": "orders",
    "partition": 3,
    "offset": 991,
    "time": 1_772_359_200_000,  # 2026-03-01T10:00Z
    "key": "car-7",
    "error.type": "Timeout",
    "error.message": "after 5 s: payments",
    "attempts": 5,
    "replays": 0,
    "header.tenant": "acme",
    "header.n": "12",
}


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('error.type == "Timeout" and header.tenant == "acme"', True),
        ("error.type == 'Timeout' and header.tenant != 'acme'", False),
        ('key in ("car-1", "car-7")', True),
        ('key not in ("car-1", "car-7")', False),
        ("partition == 3 or offset == 1 and offset == 2", True),
        ("(partition == 3 or offset == 1) and offset == 2", False),
        ("not partition == 3 or attempts >= 5", True),
        ("not (partition == 3 or attempts >= 5)", False),
        ("time >= 2026-03-01T10:00 and time < 2026-03-01T12:00+01:00", True),
        ('time > "2026-03-01T10:00:00Z"', False),
        ("time == 1772359200000", True),
        ('error.message =~ "after \\d+ s"', True),
        ('error.message =~ "^payments"', False),
        ('error.message =~ "^x|payments$"', True),
        ("header.n > 9", True),
        ("header.tenant > 9", False),
        ('header.n > "9"', False),
        ("handler == null and header.gone == null", True),
        ('handler != "check"', True),
        ('handler == "check" or handler < "z" or handler =~ "c"', False),
        ("offset != null", True),
        ("offset > 990.5", True),
        ('key == "car-\\7"', False),
    ],
)
def test_a_condition_means_what_it_says(text: str, held: bool):
    """Comparisons, and before or, not before and, times in UTC, numbers in headers, null."""
    assert parse(text).matches(RECORD.get) is held


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('error.type = "Timeout"', 11, "write =="),
        ('error.typ == "Timeout"', 0, "did you mean error.type?"),
        ("attempts >= ", 12, "expected a value"),
        ('attempts >= "5"', 12, "a number"),
        ('key == "open', 7, "close the quote"),
        ('key == "a" key', 11, "expected and, or, or the end"),
        ('key == "a" && key == "b"', 11, "write and"),
        ('(key == "a"', 11, "or )"),
        ('key in "a"', 7, "expected ("),
        ('key in ("a" "b")', 12, "expected , or )"),
        ("", 0, "expected a field"),
        ("key", 3, "expected == != <"),
        ("key < null", 6, "null is not <"),
        ("time > yesterday", 7, "expected a value"),
        ('time > "yesterday"', 7, "no time"),
        ("time > 2026-13-01", 7, "no time"),
        ("partition =~ '3'", 10, "for text"),
        ('key =~ "(a+)+"', 7, "no groups"),
        ('key =~ "[a"', 7, "no pattern"),
        ('key =~ "a\\1"', 7, "no references"),
        ("header. == 'x'", 6, "means nothing"),
        ("partition == 3x", 13, "means nothing"),
        ("__import__('os')", 0, "no field"),
        ("key == 123456789012345678901", 7, "at most 20"),
    ],
)
def test_an_error_points_at_its_place(text: str, place: int, reason: str):
    """One line with the reason, and ^ in front of the character that is wrong."""
    with pytest.raises(WhereError) as failed:
        parse(text)
    assert reason in str(failed.value)
    assert failed.value.position == place
    assert f"{text[:place]}^{text[place:]}" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_field_that_a_command_does_not_have_is_refused():
    """Each command says which fields its records have."""
    with pytest.raises(WhereError, match=r"the fields are topic, header\.NAME"):
        parse("attempts == 1", {"topic": FIELDS["topic"]})


def nested(depth: int) -> str:
    return f"{'(' * depth}offset == 1{')' * depth}"


@pytest.mark.parametrize(
    ("of", "most"),
    [
        ("offset == 1".ljust, LENGTH_MAX),
        (nested, DEPTH_MAX),
        (lambda n: f"{'not ' * n}offset == 1", DEPTH_MAX),
        (lambda n: f"offset in ({','.join('1' * n)})", TERMS_MAX),
        (lambda n: f'key =~ "{"a" * n}"', PATTERN_CHARS_MAX),
        (lambda n: f'key =~ "{"a*" * n}"', 2),
        (lambda n: f'key =~ "{"a?" * n}|b*"', 3),
    ],
    ids=["length", "parentheses", "not", "terms", "pattern", "repeats", "optional"],
)
def test_limits_hold_at_their_edge(of, most: int):
    """One below and the limit itself are taken, one more is refused."""
    parse(of(most - 1))
    parse(of(most))
    with pytest.raises(WhereError):
        parse(of(most + 1))


@pytest.mark.parametrize("pattern", ["a*a*b", "a{0,99}a{0,99}b", "a?a?a?a*a*b|a*a*c"])
def test_no_pattern_holds_up_who_evaluates_it(pattern: str):
    """The slowest that the grammar takes end within a fraction of a second."""
    began = time.process_time()
    assert not parse(f'key =~ "{pattern}"').matches(lambda _: "a" * 100_000)
    assert time.process_time() - began < 5


VALUES = st.one_of(
    st.integers(-(10**9), 10**9), st.text(max_size=8).filter(lambda t: "\0" not in t)
)


def quoted(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


@st.composite
def conditions(draw, depth: int = 3):
    """A text and what it means, as a function of Python's own."""
    kind = draw(st.sampled_from(["==", "!=", "<", "in"] + ["and", "or", "not"] * (depth > 0)))
    if kind == "not":
        text, means = draw(conditions(depth - 1))
        return f"not ({text})", lambda f: not means(f)
    if kind in ("and", "or"):
        (a, left), (b, right) = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        both = (
            (lambda f: left(f) and right(f)) if kind == "and" else (lambda f: left(f) or right(f))
        )
        return f"({a}) {kind} ({b})", both
    value, other = draw(VALUES), draw(VALUES)
    name = "key" if isinstance(value, str) else "offset"
    if kind == "in":
        other = other if isinstance(other, type(value)) else value
        return f"{name} in ({quoted(value)}, {quoted(other)})", lambda f: f[name] in (value, other)
    compare = {
        "==": lambda f: f[name] == value,
        "!=": lambda f: f[name] != value,
        "<": lambda f: f[name] < value,
    }[kind]
    return f"{name} {kind} {quoted(value)}", compare


@given(conditions(), st.text(max_size=8), st.integers(-(10**9), 10**9))
def test_any_condition_means_the_same_as_in_python(made, key: str, offset: int):
    """Whatever is drawn, with any text in quotes."""
    text, means = made
    fields = {"key": key, "offset": offset}
    assert parse(text).matches(fields.get) == means(fields)


PIECES = [
    "key",
    "offset",
    "==",
    "=~",
    "in",
    "(",
    ")",
    "and",
    "or",
    "not",
    '"a"',
    "'",
    '"',
    "3",
    ",",
]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES)).map(" ".join)))
def test_any_text_is_a_condition_or_an_error_with_a_place(text: str):
    """No text raises anything else, and the place is in it."""
    place = 0
    try:
        parse(text).matches(lambda _: None)
    except WhereError as error:
        place = error.position
    assert 0 <= place <= len(text)
