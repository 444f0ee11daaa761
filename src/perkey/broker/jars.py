"""Kafka's jars: downloaded once into the user's cache, each checked against its SHA-256.

An ordinary client downloads them: Maven, or the Ivy inside PySpark. This module has no download
address: the client uses its own, or the configured company mirror.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from functools import cache
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from perkey.broker.folder import locked, user_folder
from perkey.broker.java import find_java
from perkey.errors import ConfigError

_FETCH_TIMEOUT_S = 900.0
_OUTPUT_LINES_MAX = 10_000
_JAR_NAME = re.compile(r"[\w.\-]+\.jar")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>perkey</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


def fetch(version: str, folder: Path, names: frozenset[str]) -> str:
    """Put the jars of one Kafka release into `folder`; return the name of the client that did it.

    Raises ConfigError, in one line, if there is no client or none succeeded.
    """
    clients = _clients(version, folder)
    if not clients:
        raise ConfigError(
            "Kafka's jars must be fetched once and no client for it is installed: "
            "install Maven (apt install maven) or PySpark (pip install 'perkey[spark]')"
        )
    failures: list[str] = []
    for name, command in clients.items():
        with _progress(f"Fetching Kafka {version} with {name}", names) as on_line:
            # Run one client; return None, or the failure in one line
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
                    lines: list[str] = []
                    assert client.stdout is not None
                    for line in client.stdout:
                        on_line(line)
                        if len(lines) < _OUTPUT_LINES_MAX:
                            lines.append(line.strip())
                except BaseException:
                    _end(client)
                    raise
                finally:
                    deadline.cancel()
            # The first line with an error; later ones are advice about switches.
            wrong = (line for line in lines if "ERROR" in line or "unresolved" in line.lower())
            failure = next(wrong, f"exit code {client.returncode}")[:300]
        if client.returncode == 0:
            return name
        failures.append(f"{name}: {failure}")
    raise ConfigError(f"Kafka {version} could not be fetched ({'; '.join(failures)})")


def _clients(version: str, folder: Path) -> dict[str, list[str]]:
    """The installed clients, by name, each with the command that fills `folder`."""
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
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    return jars[-1] if jars else None


def _end(client: subprocess.Popen[str]) -> None:
    """Kill a client with its child processes: `mvn` is a script around Java."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(client.pid, signal.SIGKILL)


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


KAFKA_VERSION = "4.4.0"
_CHUNK_BYTES = 2**20


def cache_dir() -> Path:
    """The folder for fetched files: PERKEY_CACHE, else the XDG cache directory's `perkey`."""
    chosen = os.environ.get("PERKEY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return user_folder("XDG_CACHE_HOME", ".cache")


@cache
def checksums() -> dict[str, str]:
    """The jars of one Kafka release: file name to SHA-256, as `sha256sum` prints them."""
    listed = resources.files("perkey.broker").joinpath(f"kafka-{KAFKA_VERSION}.sha256").read_text()
    return {name: digest for digest, name in (line.split() for line in listed.splitlines())}


def ensure_jars() -> list[Path]:
    """Return the paths of Kafka's jars, all verified; fetch missing ones first.

    Raises ConfigError for a wrong file, and if nothing can fetch. Several processes may call it
    concurrently: one fetches, the others wait for it.
    """
    folder = cache_dir() / f"kafka-{KAFKA_VERSION}"
    with locked(folder, "set PERKEY_CACHE to one that can"):
        if not all((folder / name).exists() for name in checksums()):
            # Fetch beside the cache and move in only verified files
            for left_by_a_kill in folder.glob(".fetch-*"):
                shutil.rmtree(left_by_a_kill, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as staging:
                client = fetch(KAFKA_VERSION, Path(staging), frozenset(checksums()))
                for name, digest in checksums().items():
                    fetched = Path(staging) / name
                    if not fetched.exists():
                        raise ConfigError(f"{client} did not deliver {name}: check its mirror")
                    if sha256(fetched) != digest:
                        raise ConfigError(
                            f"{client} delivered a wrong {name} (its SHA-256 differs): check its "
                            "mirror"
                        )
                    if not (folder / name).exists():
                        fetched.replace(folder / name)
        jars = {folder / name: digest for name, digest in checksums().items()}
        for jar, digest in jars.items():
            if sha256(jar) != digest:
                raise ConfigError(
                    f"{jar} has the wrong content (its SHA-256 differs): delete it and run this "
                    "again"
                )
        return list(jars)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
