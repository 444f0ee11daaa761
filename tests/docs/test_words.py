"""The words of CONTRIBUTING.md, counted: the uses that remain may only become fewer."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: word or rate -> the uses that remain in src and docs, names included. Legitimate ones among them:
#: "at once" for "at the same time", "stands for", `file.tell()`, `perkey why` on what a line says.
ALLOWED = {
    r"told|untold": 2,
    r"said": 1,
    r"says?": 3,
    r"tells?": 5,
    r"heard": 0,
    r"somebody|somebody's": 0,
    r"nobody|nobody's": 0,
    r"whoever": 0,
    r"who comes back": 0,
    r"stands?": 0,
    r"stood": 0,
    r"goes on": 0,
    r"go on": 0,
    r"made again": 0,
    r"anew": 0,
    r"dear": 0,
    r"had better": 0,
    r"hand(?:s|ed)? over": 2,
    r"at once": 5,
    r"of (?:its|their|your|his) own": 6,
    r"not to be had": 0,
    r"taken? back|gives? back|given back": 10,
    r"what is left": 0,
    r"\d an? (?:second|minute|record|call|turn)": 1,
}


def pages() -> tuple[str, ...]:
    """Every text that a user or developer of Perkey reads: source, docs, README."""
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return tuple(plain(path.read_text()) for path in paths)


def plain(text: str) -> str:
    """In one line and small letters, names as words."""
    return re.sub(r"[\s#_]+", " ", text).lower()


def count(pattern: str, texts: Iterable[str]) -> int:
    """The uses of a word, in prose and in names."""
    word = re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])")
    return sum(len(word.findall(text)) for text in texts)


def test_the_words_of_the_old_dialect_only_become_fewer() -> None:
    """No more uses than the table allows; after removing some, lower its number."""
    texts = pages()
    used = {pattern: count(pattern, texts) for pattern in ALLOWED}
    more = {pattern: count for pattern, count in used.items() if count > ALLOWED[pattern]}
    assert more == {}, "see Words in CONTRIBUTING.md"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def test_the_old_name_is_in_one_line_of_the_changelog() -> None:
    """Every other mention would name a project of other people."""
    old = "we" + "ft"
    assert _git("grep", "-Iinc", old) == "CHANGELOG.md:1\n"
    assert old not in _git("ls-files").lower()


def test_one_more_use_is_counted() -> None:
    """The mutants: across a line break, within a name, as a rate; longer words are other words."""
    assert count("goes on", map(plain, ["it\n    # Goes\n    # on", "goes_on", "goes one"])) == 2
    assert count("told|untold", map(plain, ["_told = untold", "TOLD_MAX", "toldest"])) == 3
    assert count(r"\d an? (?:second|record)", ["1,000 a second, a record", "5 per second"]) == 1
