"""What Weft on Spark needs installed: one clear line for each thing that is missing or too new."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from weft.errors import ConfigError

#: Package -> (lowest version that works, first version that does not, None where none is known).
#: Some of Weft wants a newer Spark than that: `check_spark`. PySpark does not support pandas 3.
REQUIRED: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "pyspark": ((3, 5), (5, 0)),
    "pyarrow": ((18, 0), None),
    "pandas": ((2, 2), (3, 0)),
}
CURE = "pip install 'weft[spark]' brings the versions that work together"


def check_spark_packages() -> None:
    """Raise ConfigError unless PySpark, PyArrow and pandas are there in versions that work."""
    for package, (low, above) in REQUIRED.items():
        version = installed_version(package)
        if version is None:
            raise ConfigError(f"weft.spark needs {package}, which is not installed: {CURE}")
        if not in_range(version, low, above):
            wanted = f">={dotted(low)}" + (f",<{dotted(above)}" if above else "")
            raise ConfigError(f"weft.spark needs {package}{wanted}, found {version}: {CURE}")


def check_spark(low: tuple[int, int], what: str, why: str) -> None:
    """Raise ConfigError where this PySpark is older than what is asked for needs."""
    version = installed_version("pyspark") or "none"
    if major_minor(version) < low:
        raise ConfigError(
            f"{what} needs PySpark {dotted(low)} or newer, found {version}: {why}:"
            f" pip install 'pyspark>={dotted(low)},<5', on the cluster too"
        )


def use_this_python() -> None:
    """Let executors run this Python where PYSPARK_PYTHON is not set and `python3` is another one.

    Spark's default is the `python3` of the PATH, which in `.venv/bin/python job.py` is not the one
    of the environment: the tasks would find no Weft. Takes effect for sessions made from now on.
    """
    first = shutil.which("python3")
    if "PYSPARK_PYTHON" in os.environ or sys.prefix == sys.base_prefix:
        return
    if first is None or Path(first).parent != Path(sys.executable).parent:
        os.environ["PYSPARK_PYTHON"] = sys.executable


#: What Spark Connect's client needs beside these.
CONNECT_NEEDS = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")


def check_connect_packages() -> None:
    """Raise ConfigError unless the packages of Spark Connect's client are there."""
    missing = [name for name in CONNECT_NEEDS if installed_version(name) is None]
    if missing:
        raise ConfigError(f"Spark Connect needs {', '.join(missing)}: {CURE}")


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, None where there is none.

    Spark Connect's client is a distribution of its own (`pyspark-client`) with the same modules.
    """
    names = (package, "pyspark-client", "pyspark-connect") if package == "pyspark" else (package,)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def in_range(version: str, low: tuple[int, int], above: tuple[int, int] | None) -> bool:
    """Whether `version` ("4.3.0", "3.0.0rc1") is at least `low` and below `above`."""
    numbers = major_minor(version)
    return low <= numbers and (above is None or numbers < above)


def major_minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version; what cannot be read counts as 0."""
    parts = [*version.split("."), "0", "0"][:2]
    digits = ["".join(c for c in part if c.isdigit()) for part in parts]
    return int(digits[0] or 0), int(digits[1] or 0)


def dotted(numbers: tuple[int, int]) -> str:
    """A version as people write it."""
    return f"{numbers[0]}.{numbers[1]}"
