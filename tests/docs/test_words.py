"""House words, counted: CONTRIBUTING.md names each with its replacement; the counts may only shrink."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: pattern -> the uses that remain in src and docs. Legitimate: `sums tell`, "at once" for "at the
#: same time", "a record" and "a second" where they are no rates, "stands" for abbreviations.
ALLOWED = {
    r"told|untold": 0,
}
#: words that are wrong only as a rate: a number before them, or "how many"
RATES = r"\d[\d,.]*(?: \w+)? an? (?:second|minute|hour|day|record|call|partition|member)\b"


def pages() -> list[str]:
    """Every text that a user or developer of Weft reads: source, docs, README."""
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    return [path.read_text() for path in sorted(paths)]


def count(pattern: str, texts: Iterable[str]) -> int:
    """The uses of a word, in prose and in names."""
    word = re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])", re.IGNORECASE)
    return sum(len(word.findall(" ".join(text.split()))) for text in texts)


@pytest.mark.parametrize("pattern", [*ALLOWED])
def test_the_words_of_the_old_dialect_only_become_fewer(pattern: str) -> None:
    """No more uses than the table allows; after removing some, lower its number."""
    assert count(pattern, pages()) <= ALLOWED[pattern], f"see Words in CONTRIBUTING.md: {pattern}"


@pytest.mark.parametrize("pattern", [*ALLOWED])
def test_one_more_use_is_counted(pattern: str) -> None:
    """The mutant: a text with the word, across a line break and within a name, is found."""
    word = (
        pattern.split("|", maxsplit=1)[0].replace("(?:es)?", "").replace("?", "").replace("\\b", "")
    )
    assert count(pattern, [f"x\n{word.replace(' ', chr(10))} y", f"_{word}", "x"]) == 2
