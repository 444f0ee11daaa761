"""The site: its navigation, its pictures, and that a dead link ends `make site` red."""

from __future__ import annotations

import importlib
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from perkey.core.states import RECORD_NAMES, RECORD_TABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DIAGRAMS = sorted((DOCS / "diagrams").glob("*.svg"))
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/_site/perkey_site.py, which Sphinx loads."""
    monkeypatch.syspath_prepend(DOCS / "_site")
    return importlib.import_module("perkey_site")


def listed(page: str) -> set[str]:
    """The pages that this page and those it lists name in their tables of contents."""
    found = {page}
    for table in TOCTREE.findall((DOCS / f"{page}.md").read_text()):
        for line in table.splitlines():
            name = line.rpartition("<")[2].strip(" >")
            where = posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
            if name == "*":
                found |= {one for one in PAGES if posixpath.dirname(one) == posixpath.dirname(page)}
            elif name and not name.startswith(":") and where not in found:
                found |= listed(where)
    return found


def test_the_navigation_names_every_page() -> None:
    """A page that is in no table of contents is found by the search alone."""
    assert sorted(PAGES - listed("index")) == []


def test_a_page_asks_one_question() -> None:
    """Each new page has one title, and text before its first heading."""
    for name in sorted(PAGES):
        text = re.sub(r"\A---\n.*?\n---\n", "", (DOCS / f"{name}.md").read_text(), flags=re.DOTALL)
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1, name
        first = prose.partition("\n\n")[2].lstrip()
        assert not first.startswith(("#", "|", "- ")), f"{name}.md does not begin with its answer"


def test_the_first_page_has_the_figures_of_the_readme() -> None:
    """Each figure of the landing page's table, and what it was measured on, is in the README."""
    readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    first = (DOCS / "index.md").read_text()
    table = first.partition("## How fast it is")[2].partition("## Limitations")[0]
    figures = re.findall(r"\*\*(.+?)\*\*", table)
    assert len(figures) >= 4
    measured = re.sub(r"\s+", " ", table).partition("Compared with ")[2].partition(":")[0]
    assert [one for one in [*figures, measured] if one not in readme] == []


def test_the_first_page_has_the_guarantees_of_the_readme() -> None:
    """The rows of the table are the README's, by their ids."""
    texts = (ROOT / "README.md", DOCS / "index.md")
    ids = [
        re.findall(r"\| ([SL]\d[SL\d, ]*) \|$", path.read_text(), re.MULTILINE) for path in texts
    ]
    assert ids[0] == ids[1] != []


def test_the_life_of_a_record_is_drawn_as_the_table_has_it() -> None:
    """Every arrow between two states is a change that RECORD_TABLE allows."""
    drawn = re.findall(r'data-edge="(\w+) (\w+)"', (DOCS / "diagrams/record-life.svg").read_text())
    allowed = {(RECORD_NAMES[before], RECORD_NAMES[after]) for before, after in RECORD_TABLE}
    assert len(drawn) >= 8
    assert [edge for edge in drawn if edge not in allowed] == []


def test_the_bits_of_the_map_are_those_of_the_records() -> None:
    """The drawn map is what the codec makes of the drawn records: 103, 107 and 110 are not done."""
    from perkey import codec

    text = codec.encode(103, 111, (103, 107, 110))
    drawn = (DOCS / "diagrams/frontier.svg").read_text()
    bits = re.findall(r'<text class="c m b"[^>]*>([01])</text>', drawn)
    assert codec.decode(103, text).not_done == tuple(
        103 + number for number, bit in enumerate(bits) if bit == "0"
    )


def test_diagrams_have_one_style_and_words() -> None:
    """Colours change in one place of each file; a reader without pictures gets a description."""
    styles = {
        re.findall(r"<style>(.*?)</style>", one.read_text(), re.DOTALL)[0] for one in DIAGRAMS
    }
    assert len(styles) == 1
    for path in DIAGRAMS:
        text = path.read_text()
        assert "<title>" in text, path.name
        assert "<desc>" in text, path.name
        assert re.findall(r"#[0-9a-f]{3,6}\b", text.partition("</style>")[2]) == [], path.name


def test_every_diagram_is_shown_with_a_text_alternative() -> None:
    """A drawing that no page shows is removed; one without words is no use to many readers."""
    texts = "".join((DOCS / f"{name}.md").read_text() for name in PAGES)
    shown = {Path(url).name: words for words, url in re.findall(r"!\[(.*?)\]\((.+?)\)", texts)}
    assert [path.name for path in DIAGRAMS if len(shown.get(path.name, "")) < 50] == []


def test_a_state_diagram_is_drawn_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change of the source is a row of the chart, and its label is readable text."""
    monkeypatch.syspath_prepend(DOCS / "_site")
    chart = importlib.import_module("state_chart")
    svg = chart.draw("stateDiagram-v2\n    a --> b: goes & comes\n    b --> b: again\n")
    assert svg.count('class="change"') == 2
    assert "goes &amp; comes</text>" in svg
    with pytest.raises(ValueError, match="only state diagrams"):
        chart.draw("flowchart LR\n  a --> b")


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ('<a href="gone.html">x</a>', "index.html links to gone.html: no such file"),
        ('<a href="#gone">x</a>', "index.html links to #gone: no such anchor"),
        ('<a href="other.html#gone">x</a>', "index.html links to other.html#gone: no such anchor"),
        ('<img src="gone.png">', "index.html links to gone.png: no such file"),
        ('<script src="https://cdn.example/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "from another host"),
    ],
    ids=["page", "anchor", "anchor of a page", "image", "script", "font"],
)
def test_what_leads_nowhere_is_named(
    extension: ModuleType, tmp_path: Path, html: str, complaint: str
) -> None:
    """Each kind of dead link, and each file of another host, is one line."""
    good = '<p id="here"><a href="#here">x</a><a href="https://example.com/">x</a></p>'
    (tmp_path / "other.html").write_text(good)
    (tmp_path / "index.html").write_text(good + '<a href="other.html#here">x</a>')
    assert extension.dead_links(tmp_path) == []
    (tmp_path / "index.html").write_text(good + html)
    (line,) = extension.dead_links(tmp_path)
    assert complaint in line


@pytest.mark.push
def test_a_dead_link_ends_make_site_red(extension: ModuleType, tmp_path: Path) -> None:
    """Sphinx, as `make site` calls it, ends with 1 and names page, line and target."""
    (tmp_path / "index.md").write_text(
        "# Home\n\n[a](gone.md) and [b](#gone) and [c](other.md#gone)\n\n```{toctree}\nother\n```\n"
    )
    (tmp_path / "other.md").write_text("# Other\n\nText.\n")
    (tmp_path / "lost.md").write_text("# Lost\n\nIn no table of contents.\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(DOCS)]
    ran = subprocess.run(
        [*command, "-b", "html", str(tmp_path), str(tmp_path / "out")],
        check=False, capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    for named in ("index.md:3", "gone.md", "'gone'", "other.html#gone", "lost.md"):
        assert named in ran.stderr


def test_make_site_calls_sphinx_like_that() -> None:
    """The recipe of the Makefile is strict; it reads each page again, as only that warns."""
    (recipe,) = re.findall(r"^\t.*-m sphinx .*$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert " -E -W --keep-going " in recipe


@pytest.mark.parametrize(
    ("module", "page"),
    [("perkey", "api"), ("perkey.spark", "api-spark"), ("perkey.testing", "api-testing")],
)
def test_the_reference_has_every_public_name(module: str, page: str) -> None:
    """What a module exports has an entry, and nothing else has one."""
    text = (DOCS / "reference" / f"{page}.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE))
    assert named == set(importlib.import_module(module).__all__) - {"__version__"}


def test_the_markdown_of_the_reference_needs_no_sphinx(extension: ModuleType) -> None:
    """An agent reads signatures and docstrings, not directives."""
    text = extension.described((DOCS / "reference" / "api.md").read_text())
    assert "eval-rst" not in text
    assert "autoclass" not in text
    assert "### `Retry(attempts" in text
    assert "`attempts`: calls in total" in text
    assert "timeout_s=None" in text.partition("#### `App.consume(topics, *, ")[2].partition("\n")[0]
