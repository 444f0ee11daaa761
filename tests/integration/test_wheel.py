"""Perkey as it is installed: from a wheel, without the repository around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.push


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that has the package alone, as `pip install` puts it there."""
    built, folder = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(ROOT)]
    subprocess.run(wheel, check=True, timeout=110)
    (file,) = built.glob("perkey-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder), str(file)], check=True)
    return folder


def run(installed, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=installed, env={**os.environ, "PYTHONPATH": str(installed)}, check=False,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_what_the_wheel_has(installed):
    """The installed package runs and lists its commands; it is typed, and nothing is beside it."""
    where = run(installed, "-c", "import perkey; print(perkey.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed)
    listed = run(installed, "-m", "perkey", "--help")
    assert listed.returncode == 0
    for command in ("run", "broker", "topics", "produce", "offsets", "status", "why", "lag"):
        assert f"\n  {command} " in listed.stdout
    packages = {one.name for one in installed.iterdir() if not one.name.endswith(".dist-info")}
    assert packages - {"bin"} == {"perkey"}
    folders = {one.name for one in (installed / "perkey").rglob("*") if one.is_dir()}
    assert not folders & {"simulators", "demo", "benchmarks", "sim", "runtime_sim"}
    assert (installed / "perkey" / "py.typed").exists()  # type checkers of users read annotations
