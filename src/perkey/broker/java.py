"""Find the machine's Java, and check that it is recent enough for Kafka."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perkey.errors import ConfigError

JAVA_VERSION_MIN = 17
_ASK_TIMEOUT_S = 30.0
_CURE = (
    f"install Java {JAVA_VERSION_MIN} or newer (Debian, Ubuntu: apt install "
    "openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; macOS: "
    "brew install openjdk) or point JAVA_HOME at one"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Kafka: its program and its major version."""

    program: Path
    version: int


def find_java() -> Java:
    """Find Java in JAVA_HOME, else on the PATH.

    Raises ConfigError if there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")  # wins over the PATH: users set it to choose
    program = Path(home, "bin", "java") if home else None
    if program is None or not os.access(program, os.X_OK):
        on_path = shutil.which("java")
        if on_path is None:
            raise ConfigError(f"Kafka needs Java, and none was found: {_CURE}")
        program = Path(on_path)
    try:
        answer = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        version = None
    else:
        version = parse_version(answer.stderr + answer.stdout)
    if version is None:
        raise ConfigError(f"{program} does not report its version: {_CURE}")
    if version < JAVA_VERSION_MIN:
        raise ConfigError(f"{program} is Java {version}, too old for Kafka: {_CURE}")
    return Java(program, version)


def parse_version(text: str) -> int | None:
    """Parse the major version from the output of `java -version`; `1.8.0_402` is 8."""
    version = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if version is None:
        return None
    major, minor = int(version[1]), int(version[2] or 0)
    return minor if major == 1 else major
