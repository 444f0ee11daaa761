"""Download Kafka's jars with an ordinary client: Maven, or the Ivy inside PySpark.

No download address stands here: the client brings its own, or the company's mirror it is set to.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from weft.broker.java import find_java
from weft.errors import ConfigError

_FETCH_TIMEOUT_S = 900.0
_OUTPUT_LINES_MAX = 10_000
_JAR_NAME = re.compile(r"[\w.\-]+\.jar")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weft</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


def fetch(version: str, folder: Path, names: frozenset[str]) -> str:
    """Put the jars of one Kafka release into `folder`; return the name of the client that did it.

    Raises ConfigError, in one line, when there is no client or none succeeded.
    """
    clients = _clients(version, folder)
    if not clients:
        raise ConfigError(
            "Kafka's jars must be fetched once and no client for it is installed: "
            "install Maven (apt install maven) or PySpark (pip install 'weft[spark]')"
        )
    failures: list[str] = []
    for name, command in clients.items():
        with _progress(f"Fetching Kafka {version} with {name}", names) as on_line:
            failure = _run(command, on_line)
        if failure is None:
            return name
        failures.append(f"{name}: {failure}")
    raise ConfigError(f"Kafka {version} could not be fetched ({'; '.join(failures)})")


def _clients(version: str, folder: Path) -> dict[str, list[str]]:
    """The clients this machine has, by name, each as the command that fills `folder`."""
    clients: dict[str, list[str]] = {}
    maven = shutil.which("mvn")
    if maven:
        pom = folder / "pom.xml"
        pom.write_text(_POM.format(version=version))
        clients["Maven"] = [
            maven, "--batch-mode", "--file", str(pom), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={folder}",
        ]  # fmt: skip
    ivy = _ivy_jar()
    if ivy:
        clients["Ivy"] = [
            str(find_java().program), "-jar", str(ivy), "-cache", str(folder / "ivy-cache"),
            "-dependency", "org.apache.kafka", "kafka_2.13", version, "-confs", "default",
            "-types", "jar", "bundle",
            "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
        ]  # fmt: skip
    return clients


def _ivy_jar() -> Path | None:
    """PySpark ships Ivy among its jars; it is found without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    return found[-1] if found else None


def _run(command: list[str], on_line: Callable[[str], None]) -> str | None:
    """Run one client; return None, or in one line why it failed."""
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        subprocess.Popen(
            command, cwd=elsewhere, stdin=subprocess.DEVNULL, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        ) as client,
    ):  # fmt: skip
        deadline = threading.Timer(_FETCH_TIMEOUT_S, _end, [client])
        deadline.start()
        try:
            lines = _read_lines(client, on_line)
        except BaseException:
            _end(client)
            raise
        finally:
            deadline.cancel()
    return None if client.returncode == 0 else _reason(lines, client.returncode)


def _end(client: subprocess.Popen[str]) -> None:
    """Kill a client with what it has started: `mvn` is a script around a Java."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(client.pid, signal.SIGKILL)


def _read_lines(client: subprocess.Popen[str], on_line: Callable[[str], None]) -> list[str]:
    lines: list[str] = []
    assert client.stdout is not None
    for line in client.stdout:
        on_line(line)
        if len(lines) < _OUTPUT_LINES_MAX:
            lines.append(line.strip())
    return lines


def _reason(lines: list[str], exit_code: int) -> str:
    """The first line that says error; later ones are advice about switches."""
    for line in lines:
        if "ERROR" in line or "unresolved" in line.lower():
            return line[:300]
    return f"exit code {exit_code}"


@contextmanager
def _progress(title: str, names: frozenset[str]) -> Iterator[Callable[[str], None]]:
    """A bar on stderr that counts the jars a client's output has named so far."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} ({len(names)} jars, once) …", highlight=False)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jars"),
        TimeElapsedColumn(), console=console, disable=not console.is_terminal,
    )  # fmt: skip
    seen: set[str] = set()
    with bar:
        task = bar.add_task(title, total=len(names))

        def on_line(line: str) -> None:
            seen.update(names.intersection(_JAR_NAME.findall(line)))
            bar.update(task, completed=len(seen))

        yield on_line
