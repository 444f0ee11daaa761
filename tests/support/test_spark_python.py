"""Java has its answer before a worker imports what takes long."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

from tests.support.spark_python import SOURCES, launcher

LIMIT_S = 60.0
SECRET = b"s3cret"
#: its import takes for ever, until the test lets it end
SLOW = "import os\nwhile not os.path.exists({gate!r}): pass\n"
WORKER_UTIL = "def get_sock_file_to_executor(timeout=-1): raise AssertionError\n"
RUNNER = """
import os
from pyspark.worker_util import get_sock_file_to_executor
if __name__ == "__main__":
    with get_sock_file_to_executor(timeout=None) as file:
        file.write(b"begun " + file.readline())
"""


def test_the_process_of_a_source_answers_before_its_imports(tmp_path: Path) -> None:
    """Secret and process id come while the import of Spark still lasts; then the module runs."""
    gate, package = tmp_path / "gate", tmp_path / "pyspark"
    folder = package / "sql" / "streaming"
    folder.mkdir(parents=True)
    for place in (package / "sql", folder):
        (place / "__init__.py").touch()
    (package / "__init__.py").write_text(SLOW.format(gate=str(gate)))
    (package / "worker_util.py").write_text(WORKER_UTIL)
    (folder / "python_streaming_source_runner.py").write_text(RUNNER)
    with socket.create_server(("127.0.0.1", 0)) as java:
        java.settimeout(LIMIT_S)
        told = {
            "PYTHON_WORKER_FACTORY_PORT": str(java.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
            "PYTHONPATH": str(tmp_path),
        }
        command = [launcher(tmp_path), "-m", SOURCES]
        with subprocess.Popen(command, env=os.environ | told) as worker:
            try:
                line, _ = java.accept()
                line.settimeout(LIMIT_S)
                with line, line.makefile("rwb") as file:
                    assert file.read(4 + len(SECRET)) == struct.pack("!i", len(SECRET)) + SECRET
                    file.write(struct.pack("!i", 2) + b"ok")
                    file.flush()
                    assert file.read(4) == struct.pack("!i", worker.pid)
                    gate.touch()
                    file.write(b"the query\n")
                    file.flush()
                    assert file.readline() == b"begun the query\n"
                assert worker.wait(LIMIT_S) == 0
            finally:
                worker.kill()


def test_everything_else_is_plain_python(tmp_path: Path) -> None:
    """Arguments, exit code and what it prints."""
    command = [launcher(tmp_path), "-c", "import sys; print(sys.argv); sys.exit(3)", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (3, "['-c', 'a b']\n")
