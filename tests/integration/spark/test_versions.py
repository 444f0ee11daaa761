"""Each of Perkey's ways on every Spark that it takes; the table of docs/spark.md is this one.

`make spark-matrix` runs them. Each version has an environment of its own in .spark-matrix/, made by
uv when it is first asked for; the newest is this one. A push runs all of Spark's tests on that.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEWEST = "4.3"
#: Beside a PySpark that is older than these.
WITH_35 = ("numpy<2", "pyarrow>=18,<20")
CLASSIC = ("fleet", "process", "source", "bounded", "sink")
SOURCE = "KafkaSource needs PySpark 4.0 or newer, found 3.5"
BOUNDED = "option maxOffsetsPerTrigger needs PySpark 4.2 or newer, found 4"
COLUMNS = (*CLASSIC, "connect")
#: Version -> way -> what is said instead of "ok"; a line with the cure where a Spark is too old.
EXPECTED = {
    "3.5": {"fleet": "ok", "process": "ok", "source": SOURCE, "bounded": SOURCE, "sink": SOURCE},
    "4.0": {**dict.fromkeys((*CLASSIC, "connect"), "ok"), "bounded": BOUNDED},
    "4.1": {**dict.fromkeys((*CLASSIC, "connect"), "ok"), "bounded": BOUNDED},
    "4.2": dict.fromkeys((*CLASSIC, "connect"), "ok"),
    NEWEST: dict.fromkeys((*CLASSIC, "connect"), "ok"),
}
CELLS = [(version, way) for version, ways in EXPECTED.items() for way in ways]


@cache
def python_of(version: str) -> Path:
    """The Python of an environment with the newest patch of this PySpark."""
    if version == NEWEST:
        return Path(sys.executable)
    place = ROOT / ".spark-matrix" / version
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--clear", "-p", sys.executable, place], check=True)
    with_it = WITH_35 if version == "3.5" else ("pyarrow>=18",)
    wanted = [f"pyspark[connect]=={version}.*", "pandas>=2.2,<3", "pyyaml", "setuptools", *with_it]
    ours = ["confluent-kafka>=2.16", "rich>=13", "typer>=0.12", "zstandard>=0.23"]
    subprocess.run([*uv, "pip", "install", "-q", "-p", python, *wanted, *ours], check=True)
    # Workers of a Connect server get no PYTHONPATH.
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "here.pth").write_text(f"{ROOT / 'src'}\n{ROOT}\n")
    (place / "ready").touch()
    return python


@pytest.fixture(scope="module")
def said(kafka_broker, tmp_path_factory):
    """What a version says to each way: all that share a session in one process."""

    @cache
    def run(version: str, together: tuple[str, ...]) -> dict[str, str]:
        python = python_of(version)
        env = os.environ | {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [python, "-m", "tests.support.spark_smoke", kafka_broker.bootstrap]
        done = subprocess.run(
            [*command, tmp_path_factory.mktemp("smoke"), *together],
            cwd=ROOT, env=env | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
        print(done.stderr[-3000:], file=sys.stderr)
        lines = (line.partition(" ") for line in done.stdout.splitlines())
        return {way: json.loads(text) for way, _, text in lines if way in together}

    def ask(version: str, way: str) -> str:
        together = tuple(one for one in CLASSIC if one in EXPECTED[version])
        return run(version, (way,) if way not in CLASSIC else together)[way]

    return ask


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("version", "way"), CELLS)
def test_it_works_or_says_what_it_needs(said, version, way):
    """The smoke passes, or ends in one line with what is needed, what was found and the cure."""
    answer, expected = said(version, way), EXPECTED[version][way]
    assert expected in answer
    assert answer == "ok" or "pip install 'pyspark>=" in answer


def test_the_table_of_the_docs_is_this_one():
    """docs/spark.md shows for each version and way what its test expects."""
    text = (ROOT / "docs" / "spark.md").read_text()
    rows = dict(re.findall(r"^\| (\d\.\d)[^|]*\|(.*)\|$", text, flags=re.MULTILINE))
    assert set(rows) == set(EXPECTED)
    for version, row in rows.items():
        cells = [cell.strip() for cell in row.split("|")]
        for way, expected in EXPECTED[version].items():
            shown = cells[COLUMNS.index(way)]
            assert shown.startswith("yes" if expected == "ok" else "no"), (version, way)
