"""The lines that the pages print, run as a reader types them, in an empty folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perkey.broker.state import free_ports

ROOT = Path(__file__).parents[2]
LIMIT_S = 110
PRINTED = 9092


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page that are in this language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


class Shell:
    """Runs lines in a folder; `perkey` and `python` are those of the folder `programs`."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._env = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def __call__(self, line: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """What the line did; its output is text."""
        return subprocess.run(
            ["sh", "-c", line], cwd=self.folder, env=self._env, input=stdin, text=True,
            capture_output=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def succeed(self, line: str) -> str:
        """The standard output of a line that must end with exit code 0."""
        done = self(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


@contextmanager
def printed_port() -> Iterator[int]:
    """9092 as it is printed, where no other process has it or is about to."""
    with (Path(tempfile.gettempdir()) / f"perkey-test-{PRINTED}-{os.getuid()}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", PRINTED)):
                pass
        except OSError:
            yield free_ports(1)[0]
        else:
            yield PRINTED


def on_port(line: str, port: int) -> str:
    """The line as printed, or for another port where 9092 is taken."""
    line = line.replace("9092", str(port))
    tells_no_address = re.search(r"perkey (topics|produce) (?!.*--bootstrap)", line) is not None
    return (
        f"{line} --bootstrap-servers localhost:{port}"
        if tells_no_address and port != 9092
        else line
    )


def run_the_readme(shell: Shell, port: int) -> None:
    """README's example, line by line: broker, topics, a record, `python app.py`."""
    code = blocks("README.md", "python")[0].replace("9092", str(port))
    (shell.folder / "app.py").write_text(code)
    (console,) = [block for block in blocks("README.md", "console") if "python app.py" in block]
    for line in console.strip().splitlines():
        shell.succeed(on_port(line, port))
    show = f"perkey offsets show --group geofence --bootstrap-servers localhost:{port} --json"
    (progress,) = json.loads(shell.succeed(show))
    assert (progress["topic"], progress["frontier"], progress["lag"]) == ("gps.positions", 1, 0)
