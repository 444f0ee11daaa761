"""Keys, numbers and error texts for display: short, and without control characters."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from perkey.types import ErrorInfo

KEY_CHARS_MAX = 64
TEXT_CHARS_MAX = 300


def shown_text(text: str, limit: int = TEXT_CHARS_MAX) -> str:
    """The text in one line, cut at `limit` characters; unprintable characters are escaped."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(letter if letter.isprintable() else _escaped(letter) for letter in cut)
    if len(text) > limit or len(cut) > limit:
        cut = cut[: limit - 1] + "…"
    return cut


def counted(number: int, noun: str) -> str:
    """`1 letter`, `40,000 letters`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def runs(numbers: Iterable[int]) -> list[str]:
    """Ascending numbers as runs: `0-2`, `5`."""
    fields = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        fields.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0]))
    return fields


def shown_lines(text: str) -> str:
    """The text with its line breaks, uncut; other unprintable characters are escaped."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else _escaped(letter) for letter in text
    )


def shown_key(key: bytes | None) -> str | None:
    """A key as text; None for a null key."""
    if key is None:
        return None
    # At most four bytes per character, and one more to detect that something was cut.
    return shown_text(
        key[: 4 * KEY_CHARS_MAX + 4].decode("utf-8", "backslashreplace"), KEY_CHARS_MAX
    )


def error_row(error: ErrorInfo | None) -> dict[str, str] | None:
    """The type and message of an error, without its traceback."""
    if error is None:
        return None
    return {"type": shown_text(error.type, 100), "message": shown_text(error.message)}


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
