"""docs/testing.md is run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perkey.testing.crash import POINTS

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


@pytest.mark.push
def test_its_examples_work_when_pasted(tmp_path: Path) -> None:
    """All of its Python, in one test file of a stranger's, passes."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "test_pasted.py").write_text("\n\n".join(blocks), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def test_it_names_every_crash_point() -> None:
    """A point that is added is written down."""
    page = PAGE.read_text(encoding="utf-8")
    assert [point for point in POINTS if f"`{point}`" not in page] == []
