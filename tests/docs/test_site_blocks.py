"""The Python code of the site's pages runs, as it is, from top to bottom."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("*/**/*.md")), DOCS / "index.md", DOCS / "works-with.md"]
#: A block that cannot run here: another library's code, or a part of a program.
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\n+```python\n.*?```", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def code_of(text: str) -> str:
    """The code of a page as one module, each line at its number in the page."""
    text = NOT_RUN.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = [""] * (text.count("\n") + 1)
    for match in BLOCK.finditer(text):
        first = text.count("\n", 0, match.start(1))
        for number, line in enumerate(match[1].splitlines()):
            lines[first + number] = line
    return "\n".join(lines)


WITH_CODE = {page: code for page in PAGES if (code := code_of(page.read_text())).strip()}


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


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_code_of_a_page_runs(page: Path, module: Any, request: pytest.FixtureRequest) -> None:
    """Its blocks are one module, and the tests in it pass."""
    name = "page_" + re.sub(r"\W", "_", page.relative_to(DOCS).as_posix())
    there = module(name, WITH_CODE[page])
    for test in [getattr(there, each) for each in dir(there) if each.startswith("test_")]:
        wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
        test(**{fixture: request.getfixturevalue(fixture) for fixture in wanted})


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
