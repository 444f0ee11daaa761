"""`perkey run --engine spark` with wrong input: one line with the cure, exit code 2, no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perkey
from perkey.cli.run import properties_of

APP = """
import perkey
app = perkey.App(group="g", kafka={"bootstrap.servers": "127.0.0.1:1"})

@app.consume("t")
def handle(record): ...
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], 'members=None: engine="spark" needs the number of members'),
        (["--members", "0"], 'members=0: engine="spark" needs the number of members'),
        (["--members", "2", "--master", "sprak://h:1"], "is no Spark master"),
        (["--members", "2", "--conf", "spark.speculation=true"], "spark.speculation=true cannot"),
        (["--members", "2", "--conf", "spark.x"], "is not KEY=VALUE"),
    ],
)  # fmt: skip
@pytest.mark.push
def test_wrong_input_is_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    """What is wrong is told before anything starts."""
    (tmp_path / "cliapp.py").write_text(APP)
    source = str(Path(perkey.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "perkey.cli.main", "run", "cliapp:app", "--engine", "spark", *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": source, "JAVA_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_properties_are_pairs() -> None:
    """A value may hold a further = sign, and may be empty."""
    assert properties_of(None) is None
    assert properties_of(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
