"""What must be installed for Perkey on Spark, and what is said when it is not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from perkey.errors import ConfigError
from perkey.spark import requirements
from perkey.spark.requirements import check_spark, check_spark_packages, in_range

GOOD = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3"}


@pytest.mark.parametrize(
    ("package", "version", "says"),
    [
        ("pyspark", None, "pyspark, which is not installed"),
        ("pyspark", "3.4.4", "pyspark>=3.5,<5.0, found 3.4.4"),
        ("pyspark", "5.0.0", "found 5.0.0"),
        ("pandas", "3.0.0", "pandas>=2.2,<3.0, found 3.0.0"),
        ("pandas", "2.1.9", "found 2.1.9"),
        ("pyarrow", "17.0.0", "pyarrow>=18.0, found 17.0.0"),
    ],
)
def test_a_wrong_version_is_one_line_with_the_cure(monkeypatch, package, version, says):
    """The package, the versions that work and the one that is there."""
    found = {**GOOD, package: version}
    monkeypatch.setattr(requirements, "installed_version", found.get)
    with pytest.raises(ConfigError, match=f"{says}.*pip install 'perkey"):
        check_spark_packages()


@pytest.mark.parametrize(("version", "good"), [("4.1.4", False), ("4.2.0", True), ("4.3.0", True)])
def test_what_wants_a_newer_spark_reports_it(monkeypatch, version, good):
    """What needs it, what is there, why, and the way to it, in one line."""
    monkeypatch.setattr(requirements, "installed_version", lambda name: version)
    if good:
        check_spark((4, 2), "it", "so it is")
        return
    with pytest.raises(
        ConfigError, match=r"it needs PySpark 4\.2 or newer, found 4\.1\.4: so it is: pip"
    ):
        check_spark((4, 2), "it", "so it is")


def test_the_versions_here_are_accepted():
    """What the project is tested with works."""
    check_spark_packages()


@pytest.mark.parametrize(
    ("version", "good"),
    [("2.2.0", True), ("2.1.99", False), ("2.3.0rc1", True), ("3.0.0rc0", False), ("2", False)],
)
def test_limits_of_versions(version, good):
    """At, below and above the limits, also for previews."""
    assert in_range(version, (2, 2), (3, 0)) is good


def test_a_spark_without_perkey_reports_what_to_install(tmp_path):
    """The class of the format travels by value, as Spark sends it, to a Connect server, say."""
    from pyspark.cloudpickle import dumps

    from perkey.spark import KafkaSource

    (tmp_path / "class").write_bytes(dumps(KafkaSource))
    code = (
        "import os, pickle, sys\n"
        "source = pickle.load(open(sys.argv[1], 'rb'))({})\n"
        "try: source.schema()\n"
        "except ImportError as error: print(source.name(), error)\n"
        "print(os.environ['SPARK_HIDE_TRACEBACK'])\n"
    )
    # Without `site` nothing is installed, and what stands on this path is there all the same; an
    # editable Perkey does not.
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in ("pyspark", "py4j"):
        found = importlib.util.find_spec(package)
        (packages / package).symlink_to(Path(found.origin).parent)
    command = [sys.executable, "-S", "-c", code, str(tmp_path / "class")]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(packages)}
    ).stdout
    assert said.startswith(
        f"perkey {sys.executable}, which plans this query, has no module perkey:"
    )
    assert "install perkey[spark] there" in said
    assert said.endswith("\n1\n"), "PySpark shows the line without a traceback"


def test_perkey_imports_without_pyspark():
    """Only asking for a name needs PySpark, and then the error says so in one line."""
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import perkey, perkey.spark, perkey.spark.requirements as r\n"
        "from perkey.errors import ConfigError\n"
        "r.installed_version = lambda name: None\n"
        "try: perkey.spark.KafkaSource\n"
        "except ConfigError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.startswith("perkey.spark needs pyspark, which is not installed"), done.stderr


def test_an_unknown_name_is_an_attribute_error():
    """`hasattr` and friends work as with any module."""
    import perkey.spark

    assert not hasattr(perkey.spark, "nothing_of_the_kind")
