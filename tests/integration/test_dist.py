"""Perkey as it is distributed: the built wheel and sdist, and what an installation of them does.

`make dist` builds into `dist/` and runs all of it on that; without PERKEY_DIST these tests build for
themselves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from tests.support.printed import Shell, printed_port, run_the_readme

from perkey import __version__

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = pytest.mark.push


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with wheel and sdist."""
    if "PERKEY_DIST" in os.environ:
        return ROOT / os.environ["PERKEY_DIST"]
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=110, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    """The file of the wheel."""
    return built / f"perkey-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def sdist(built):
    """The file of the sdist."""
    return built / f"perkey-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that has the package alone, as `pip install` puts it there."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)], check=True)
    return folder


def run(installed, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=installed, env={**os.environ, "PYTHONPATH": str(installed)}, check=False,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_index_takes_both_files(wheel, sdist):
    """`twine check --strict` renders the README and finds nothing to warn of."""
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_wheel_has_the_package_its_types_and_its_licence(wheel):
    """And nothing of the repository beside it; its metadata are pyproject.toml's."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = f"perkey-{__version__}.dist-info"
        metadata = message_from_string(archive.read(f"{about}/METADATA").decode())
    assert {name.split("/")[0] for name in names} == {"perkey", about}
    assert {"perkey/py.typed", f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"} <= {*names}
    assert (metadata["Name"], metadata["Version"]) == ("perkey", __version__)
    assert metadata["License-Expression"] == PROJECT["license"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert [line.partition(", ")[0] for line in metadata.get_all("Project-URL", [])] == [
        *PROJECT["urls"]
    ]


def test_the_wheel_lists_what_it_depends_on(wheel):
    """An SBOM (CycloneDX) with each declared dependency, required or optional."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"perkey-{__version__}.dist-info/sboms/perkey.cdx.json")
    bom = json.loads(text)
    assert bom["metadata"]["component"]["purl"] == f"pkg:pypi/perkey@{__version__}"
    scopes = {component["name"]: component["scope"] for component in bom["components"]}
    declared = {re.match(r"[\w-]+", line).group().lower() for line in PROJECT["dependencies"]}
    assert {name for name, scope in scopes.items() if scope == "required"} == declared
    assert scopes["pyspark"] == "optional"


def test_the_sdist_has_what_a_packager_needs(sdist):
    """Sources, tests, docs, README, changelog and licence; nothing that was built."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "docs/getting-started.md",
        "src/perkey/py.typed", "tests/conftest.py",
    }  # fmt: skip
    assert needed <= names
    assert [name for name in names if "__pycache__" in name or name.startswith("dist/")] == []


def test_the_installed_package_runs_and_lists_its_commands(installed):
    """From the wheel alone, without the repository around it."""
    where = run(installed, "-c", "import perkey; print(perkey.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed)
    listed = run(installed, "-m", "perkey", "--help")
    assert listed.returncode == 0
    for command in ("run", "broker", "topics", "produce", "offsets", "status", "why", "lag"):
        assert f"\n  {command} " in listed.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_readmes_example_runs_in_an_empty_environment(wheel, tmp_path):
    """`pip install` of the wheel and its dependencies into a new environment, then the example."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    programs = environment / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", str(wheel)], check=True, timeout=300)
    subprocess.run([*pip, "check"], check=True, timeout=60)
    folder = tmp_path / "empty"
    folder.mkdir()
    shell = Shell(folder, programs)
    try:
        where = shell.succeed("python -c 'import perkey; print(perkey.__file__)'")
        assert Path(where.strip()).is_relative_to(environment)
        with printed_port() as port:
            run_the_readme(shell, port)
    finally:
        shell("perkey broker down")
