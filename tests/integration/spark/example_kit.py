"""Runs the examples as a reader of the docs would: as programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.support import spark_python

EXAMPLES = Path(__file__).parents[3] / "examples"
#: One small Spark for each; sizes as in the session of conftest.py.
SPARK = (
    "--master local[2] --conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false"
    " --conf spark.sql.session.timeZone=UTC --conf spark.sql.shuffle.partitions=2 pyspark-shell"
)


@contextmanager
def example(
    *command: str, log: Path | None = None, python: str = sys.executable, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """An example that runs; whatever is left of it is killed at the end. `log`: its stderr."""
    with tempfile.TemporaryDirectory() as folder:
        workers = python if python != sys.executable else spark_python.launcher(Path(folder))
        env = os.environ | {"PYSPARK_SUBMIT_ARGS": SPARK, "PYSPARK_PYTHON": workers}
        env |= {"SPARK_LOCAL_IP": "127.0.0.1", **environment}
        # A file, not a pipe: nobody reads along, and the JVM would hold a pipe open.
        with (log or Path(os.devnull)).open("wb") as err:
            process = subprocess.Popen(
                [python, *command], cwd=EXAMPLES, env=env, stdout=err, stderr=err
            )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the driver, its JVM and its Python workers, in one go."""
    try:
        family = psutil.Process(process.pid)
        members = [family, *family.children(recursive=True)]
    except psutil.NoSuchProcess:
        members = []
    for member in members:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(members, timeout=60)
    process.wait(60)


def run(
    *command: str, log: Path, timeout_s: float = 100, python: str = sys.executable, **more: str
) -> None:
    """Run an example to its end; it must succeed. `more`: environment."""
    with example(*command, log=log, python=python, **more) as process:
        code = process.wait(timeout_s)
        assert code == 0, log.read_text()[-4_000:]
