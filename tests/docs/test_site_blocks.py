"""The Python code of the pages runs, as it is, from top to bottom; the other code parses.

What a page uses and does not define is in page_names.py.
"""

from __future__ import annotations

import configparser
import importlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types
from tests.docs import page_names
from tests.docs.page_names import NAMES

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
#: Page -> the test that runs its code, and how many blocks that is. All others run below.
ELSEWHERE = {
    "README.md": ("tests/docs/test_docs.py::test_the_readmes_twenty_lines_work_when_pasted", 1),
    "docs/embedding.md": (
        "tests/docs/test_docs.py::test_the_page_about_other_programs_works_when_pasted", 4,
    ),
    "docs/getting-started.md": (
        "tests/docs/test_docs.py::test_the_page_for_beginners_works_when_pasted", 2,
    ),
    "docs/observability.md": ("tests/docs/test_recipes.py::test_structlog_has_the_fields", 3),
}  # fmt: skip
#: A block that cannot run here: another library's code, or a part of a program.
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\n+```python\n.*?```", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def code_of(text: str, fence: str = "") -> str:
    """The code of a page as one module, each line at its number in the page.

    `fence`: code in place of the line that opens a block.
    """
    text = NOT_RUN.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = [""] * (text.count("\n") + 1)
    for match in BLOCK.finditer(text):
        first = text.count("\n", 0, match.start(1))
        lines[first - 1] = fence
        for number, line in enumerate(match[1].splitlines()):
            lines[first + number] = line
    return "\n".join(lines)


def in_the_tree(page: Path) -> str:
    """The page's path from the root."""
    return page.relative_to(ROOT).as_posix()


def module_of(page: Path) -> str:
    """The code of a page, with the names that it uses."""
    if page.name not in NAMES or page.parent != DOCS:
        return code_of(page.read_text())
    code = code_of(page.read_text(), f"page_names.give({page.name!r}, globals())")
    return f"from tests.docs import page_names{code}"  # its first line is empty: a title


RUN_HERE = [
    page
    for page in PAGES
    if code_of(page.read_text()).strip() and in_the_tree(page) not in ELSEWHERE
]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports code as a module of its own name: workers can import it, too."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def load(name: str, code: str) -> Any:
        (tmp_path / f"{name}.py").write_text(code)
        made.append(name)
        return importlib.import_module(name)

    yield load
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that would start Spark check their arguments instead; a login is in the environment."""
    monkeypatch.setenv("KAFKA_USER", "billing")
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    for name in ("process", "replay", "once"):
        monkeypatch.setattr(f"perkey.spark.processing.{name}", getattr(page_names, name))


@pytest.mark.parametrize("page", RUN_HERE, ids=in_the_tree)
@pytest.mark.usefixtures("surroundings")
def test_the_code_of_a_page_runs(page: Path, module: Any, request: pytest.FixtureRequest) -> None:
    """Its blocks are one module, and the tests in it pass."""
    name = "page_" + re.sub(r"\W", "_", in_the_tree(page))
    there = module(name, module_of(page))
    for test in [getattr(there, each) for each in dir(there) if each.startswith("test_")]:
        wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
        test(**{fixture: request.getfixturevalue(fixture) for fixture in wanted})


def fences(text: str) -> list[str]:
    """What each code block of a page is marked as, indented or not."""
    return re.findall(r"(?m)^[ \t>]*(?:```+|~~~+)(.*)\n(?:.*\n)*?^[ \t>]*(?:```+|~~~+) *$", text)


def not_seen(text: str) -> list[str]:
    """Python blocks of a page that are neither run nor marked as not run."""
    python = [kind for kind in fences(text) if re.search(r"\b(i?py|doctest)", kind.lower())]
    seen = len(BLOCK.findall(text))
    return python if len(python) != seen else []


def test_every_python_block_is_run_or_marked() -> None:
    """No block is in another form than those that run."""
    assert [
        (in_the_tree(page), kind) for page in PAGES for kind in not_seen(page.read_text())
    ] == []
    run = {*RUN_HERE, *(ROOT / page for page in ELSEWHERE)}
    assert [page for page in PAGES if page not in run and code_of(page.read_text()).strip()] == []


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_whose_code_runs_elsewhere_has_no_more_blocks(page: str) -> None:
    """The test that runs them exists and names the page; a new block is an error until it runs."""
    test, blocks = ELSEWHERE[page]
    path, _, name = test.partition("::")
    source = (ROOT / path).read_text()
    assert f"def {name}(" in source
    assert Path(page).name in source
    text = (ROOT / page).read_text()
    assert len(BLOCK.findall(NOT_RUN.sub("", text))) == blocks, f"{test} runs {blocks} blocks"


@pytest.mark.parametrize(
    "block",
    ["```py\nx = 1\n```\n", "```{code-block} python\nx\n```\n", "~~~python\nx\n~~~\n", "```python \nx = 1\n```\n"],
    ids=["py", "directive", "tildes", "space"],
)  # fmt: skip
def test_a_python_block_that_no_test_sees_is_an_error(block: str) -> None:
    """It is found however it is written."""
    assert not_seen("```python\nx = 1\n```\n\n" + block + "\n```console\n$ ls\n```\n") != []


DATA: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "ini": lambda text: configparser.ConfigParser(strict=False, interpolation=None).read_string(
        text
    ),
}


def data_errors(text: str) -> list[str]:
    """The blocks of a page in these languages that are not in them."""
    errors = []
    for kind, block in re.findall(r"(?ms)^```(\w+)\n(.*?)^```", text):
        try:
            DATA.get(kind, str)(block)
        except (ValueError, yaml.YAMLError, configparser.Error) as error:
            errors.append(f"{kind}: {error}")
    return errors


def test_the_data_of_the_pages_parses() -> None:
    """JSON, TOML, YAML and INI."""
    texts = {in_the_tree(page): page.read_text() for page in PAGES}
    assert [(page, each) for page, text in texts.items() for each in data_errors(text)] == []


@pytest.mark.parametrize(
    ("kind", "block"),
    [("json", "{1: 2}"), ("toml", "a = b"), ("yaml", "a: b: c"), ("ini", "a = 1")],
)
def test_data_that_does_not_parse_is_an_error(kind: str, block: str) -> None:
    """It is named by its language."""
    (error,) = data_errors(f"```text\n{{\n```\n\n```{kind}\n{block}\n```\n")
    assert error.startswith(f"{kind}: ")


def test_the_example_of_the_first_page_is_that_of_the_readme() -> None:
    """The README's program runs in tests/docs/test_docs.py; the landing page shows the same."""
    readme = (DOCS.parent / "README.md").read_text()
    (shown, *_), (tested, *_) = (
        BLOCK.findall((DOCS / "index.md").read_text()),
        BLOCK.findall(readme),
    )
    assert shown == tested


def test_a_block_that_is_not_run_gives_its_reason() -> None:
    """The mark takes out its own block alone, and lines keep their numbers."""
    text = "<!-- not run: aiokafka -->\n```python\nx = 1\n```\n\n```python\ny = 2\n```\n"
    assert code_of(text).splitlines()[6] == "y = 2"
    assert "x = 1" not in code_of(text)
    assert "x = 1" in code_of(text.replace(": aiokafka", ":"))
    assert code_of(text * 2).count("y = 2") == 2


def test_blocks_that_are_not_run_are_those_of_other_libraries_and_hosts() -> None:
    """Pages about Perkey alone have none; a test that a reason names exists."""
    marked = {in_the_tree(page): NOT_RUN.findall(page.read_text()) for page in PAGES}
    pages = [page for page, blocks in marked.items() if blocks]
    assert [
        page for page in pages if Path(page).parent.name not in ("coming-from", "cookbook")
    ] == []
    named = re.findall(
        r"tests/[\w/]+\.py", "".join(block for each in marked.values() for block in each)
    )
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_manifests_of_the_kubernetes_page_are_valid() -> None:
    """Each passes Kubernetes' strict schema; KEDA's own kind is not part of it."""
    blocks = re.findall(
        r"```yaml\n(.*?)```", (DOCS / "guides/kubernetes.md").read_text(), re.DOTALL
    )
    manifests = [one for block in blocks for one in yaml.safe_load_all(block)]
    assert {one["kind"] for one in manifests} == {"Deployment", "Service", "ScaledObject"}
    for one in manifests:
        if one["kind"] != "ScaledObject":
            kubernetes_validate.validate(one, "1.31", strict=True)
