"""The packages that Perkey on Spark needs: one clear line for each missing or unsupported one."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from perkey.errors import ConfigError

#: Package -> (lowest supported version, first unsupported version or None). Parts of Perkey need a
#: newer Spark: `check_spark`. PySpark does not support pandas 3.
REQUIRED: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "pyspark": ((3, 5), (5, 0)),
    "pyarrow": ((18, 0), None),
    "pandas": ((2, 2), (3, 0)),
}
CURE = "pip install 'perkey[spark]' brings the versions that work together"


def check_spark_packages() -> None:
    """Raise ConfigError unless PySpark, PyArrow and pandas are installed in supported versions."""
    for package, (low, above) in REQUIRED.items():
        version = installed_version(package)
        if version is None:
            raise ConfigError(f"perkey.spark needs {package}, which is not installed: {CURE}")
        if not in_range(version, low, above):
            wanted = f">={dotted(low)}" + (f",<{dotted(above)}" if above else "")
            raise ConfigError(f"perkey.spark needs {package}{wanted}, found {version}: {CURE}")


def check_spark(low: tuple[int, int], what: str, why: str) -> None:
    """Raise ConfigError if this PySpark is older than the requested feature needs."""
    version = installed_version("pyspark") or "none"
    if major_minor(version) < low:
        raise ConfigError(
            f"{what} needs PySpark {dotted(low)} or newer, found {version}: {why}:"
            f" pip install 'pyspark>={dotted(low)},<5', on the cluster too"
        )


def use_this_python() -> None:
    """Make executors use this Python if PYSPARK_PYTHON is not set and `python3` is another one.

    Spark's default is the `python3` of the PATH, which in `.venv/bin/python job.py` is not the
    environment's: the tasks would not find Perkey. Affects sessions created from now on.
    """
    first = shutil.which("python3")
    if "PYSPARK_PYTHON" in os.environ or sys.prefix == sys.base_prefix:
        return
    if first is None or Path(first).parent != Path(sys.executable).parent:
        os.environ["PYSPARK_PYTHON"] = sys.executable


#: Additional packages for Spark Connect's client.
CONNECT_NEEDS = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")


def check_connect_packages() -> None:
    """Raise ConfigError unless the packages of Spark Connect's client are installed."""
    missing = [name for name in CONNECT_NEEDS if installed_version(name) is None]
    if missing:
        raise ConfigError(f"Spark Connect needs {', '.join(missing)}: {CURE}")


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, None if it is not installed.

    Spark Connect's client is a separate distribution (`pyspark-client`) with the same modules.
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
    """The first two numbers of a version; unreadable parts count as 0."""
    parts = [*version.split("."), "0", "0"][:2]
    digits = ["".join(c for c in part if c.isdigit()) for part in parts]
    return int(digits[0] or 0), int(digits[1] or 0)


def dotted(numbers: tuple[int, int]) -> str:
    """A version as text."""
    return f"{numbers[0]}.{numbers[1]}"
