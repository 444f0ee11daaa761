"""The Java Parallel Consumer 0.5.3.3: fetched by Maven, compiled from java/, run as a process.

Benchmarks and the hand-over tests share it. What is fetched and compiled lives in the user's cache
under a digest of the sources, so a change in java/ builds anew and nothing lands in the repository.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from perkey.broker.jars import cache_dir

VERSION = "0.5.3.3"
_SOURCES = Path(__file__).resolve().parent.parent / "java"
_BUILD_LIMIT_S = 300
JVM_OPTIONS = ("-Xmx3g", "-Xss512k", "-Dslf4j.internal.verbosity=ERROR")


class JavaError(Exception):
    """The Java side could not be built, or a run of it failed."""


def missing() -> str | None:
    """Why the Java library cannot run on this machine, or None."""
    for tool, cure in (("java", "a JDK 17+"), ("javac", "a JDK 17+"), ("mvn", "Maven")):
        if shutil.which(tool) is None:
            return f"{tool} is not on the PATH: install {cure} to run the Java Parallel Consumer"
    return None


def run(mode: str, *, limit_s: int, **options: object) -> dict[str, Any]:
    """Run PcRunner in `mode` and return the JSON it prints; raises JavaError.

    `options` are PcRunner's names; `limit_s` bounds its work, start and close come on top.
    """
    arguments = [f"{name}={value}" for name, value in {**options, "limit_s": limit_s}.items()]
    command = ["java", *JVM_OPTIONS, "-cp", build(), "PcRunner", mode, *arguments]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=limit_s + 60
        )
    except subprocess.TimeoutExpired:
        raise JavaError(f"{mode}: no answer after {limit_s + 60} s") from None
    lines = done.stdout.strip().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if done.returncode != 0 or not answer.get("complete"):
        raise JavaError(f"{mode}: exit {done.returncode}, {answer} {done.stderr[-1500:]}")
    return answer


@cache
def build() -> str:
    """The class path of the compiled runner, built on first use; raises JavaError."""
    reason = missing()
    if reason:
        raise JavaError(reason)
    home = cache_dir() / "javapc" / _digest()
    if not home.is_dir():
        _build_into(home)
    return os.pathsep.join([str(home / "classes"), str(home / "lib" / "*")])


def _build_into(home: Path) -> None:
    """Build beside the target and rename, so that a killed build leaves nothing half made."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as name:
        work = Path(name)
        shutil.copy(_SOURCES / "pom.xml", work)
        fetch = [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            "-DoutputDirectory=lib",
        ]
        _call(["mvn", "-q", "-B", *fetch], work)
        sources = [str(path) for path in sorted(_SOURCES.glob("*.java"))]
        _call(["javac", "-cp", "lib/*", "-d", "classes", *sources], work)
        ready = work / "ready"
        ready.mkdir()
        (work / "lib").rename(ready / "lib")
        (work / "classes").rename(ready / "classes")
        if not home.is_dir():
            ready.rename(home)


def _call(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_BUILD_LIMIT_S,
    )
    if done.returncode != 0:
        raise JavaError(f"{command[0]} failed: {(done.stdout + done.stderr)[-1500:]}")


def _digest() -> str:
    total = hashlib.sha256()
    for path in sorted([*_SOURCES.glob("*.java"), _SOURCES / "pom.xml"]):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
