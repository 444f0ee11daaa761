"""A Python for Spark's workers whose streaming sources answer Java before they import anything.

Java waits 10 s for the process of a streaming source, whatever is configured: importing Spark and
Arrow takes one 0.4 s of a processor, and longer than that where 40 others want it. Then the query
has ended with "Python worker failed to connect back".
"""

from __future__ import annotations

import os
import runpy
import shlex
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: the only ones that Java starts without its daemon, and hangs up on after 10 s
SOURCES = "pyspark.sql.streaming.python_streaming_source_runner"

LAUNCHER = """#!/bin/sh
if [ "$2" = {sources} ]; then exec {python} {here}; fi
exec {python} "$@"
"""


def launcher(folder: Path) -> str:
    """Write it, to be named as PYSPARK_PYTHON."""
    path = folder / "python"
    here, python = shlex.quote(__file__), shlex.quote(sys.executable)
    path.write_text(LAUNCHER.format(sources=SOURCES, python=python, here=here))
    path.chmod(0o755)
    return str(path)


def _connected() -> Any:
    """The connection to Java, as `pyspark.worker_util.get_sock_file_to_executor` makes it."""
    port, secret = (
        os.environ["PYTHON_WORKER_FACTORY_PORT"],
        os.environ["PYTHON_WORKER_FACTORY_SECRET"],
    )
    line = socket.create_connection(("127.0.0.1", int(port)))
    file = line.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
    file.write(struct.pack("!i", len(secret)) + secret.encode())
    file.flush()
    assert file.read(struct.unpack("!i", file.read(4))[0]) == b"ok"
    file.write(struct.pack("!i", os.getpid()))
    file.flush()
    return file


def main() -> None:
    """What `python -m` does with the module, on a connection that is there."""
    file = _connected()

    @contextmanager
    def given(timeout: int | None = -1) -> Iterator[Any]:
        with file:
            yield file

    sys.path.pop(0)  # this folder's: `-m` has the present one
    sys.path.insert(0, "")
    from pyspark import worker_util

    worker_util.get_sock_file_to_executor = given
    runpy.run_module(SOURCES, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
