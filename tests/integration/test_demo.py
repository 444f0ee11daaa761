"""`python -m demo` as its users run it: to its end, interrupted, and with bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROOT = Path(__file__).parents[2]
DEMO_S = 420.0  # on a machine that does much else
END_S = 60.0


class Demo:
    """One `python -m demo`, and every process that was seen below it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo", *arguments], cwd=folder,
                stdout=errors, stderr=errors, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self.family: set[psutil.Process] = set()

    @property
    def text(self) -> str:
        """What it has said."""
        return self.errors.read_text(errors="replace")

    def look(self) -> bool:
        """Remember who is there; whether it still runs."""
        if self.process.poll() is not None:
            return False
        self.family.update(psutil.Process(self.process.pid).children(recursive=True))
        return True

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        wait_for(lambda: not self.look(), seconds, lambda: f"it said: {self.text}")
        return self.process.wait()

    def left(self) -> list[str]:
        """Command lines of what still runs a moment after the end."""
        _, alive = psutil.wait_procs(list(self.family), timeout=END_S)
        return [" ".join(one.cmdline())[:120] for one in alive if one.status() != "zombie"]


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    """A demo that is killed at the end, should it still run."""
    one = Demo(folder, *arguments)
    try:
        yield one
    finally:
        if one.look():
            one.process.kill()
            one.process.wait()
        for process in one.family:
            if process.is_running():
                process.kill()


@pytest.mark.timeout(DEMO_S + 60)
def test_the_demo_proves_itself_and_leaves_nothing_running(tmp_path: Path) -> None:
    """`--fast` to its end: exit 0, every fact in summary.json as promised, no process left."""
    with demo(tmp_path, "--fast") as one:
        assert one.wait(DEMO_S) == 0, one.text
        assert one.left() == []
    out = tmp_path / "demo-out"
    told = json.loads((out / "summary.json").read_text())
    assert told["records"] == 6_000
    assert (told["lost"], told["order_breaks"], told["unexplained_repeats"]) == (0, 0, 0)
    assert told["dead_letters"] == told["dead_letters_expected"] > 0
    assert told["alerts"] == told["alerts_expected"] > 0
    assert told["parquet_rows"] == told["parquet_expected"] > 0
    assert told["perkey_rate"] > 10 * told["vanilla_rate"] > 0
    assert told["spark_rate"] > told["vanilla_rate"]
    assert all(check["ok"] for check in told["checks"])
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import""", page)
    assert "$" not in re.sub(r"base64,[^\"]*", "", page)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(240)
def test_an_interrupted_demo_leaves_nothing_running(number: signal.Signals, tmp_path: Path) -> None:
    """A signal in the middle of Perkey's run ends broker, service and app, with 130 or 143."""
    with demo(tmp_path, "--fast") as one:
        log = tmp_path / "demo-out" / "logs" / "perkey-local.log"
        wait_for(lambda: one.look() and log.exists() and log.stat().st_size, 150)
        one.look()
        one.process.send_signal(number)
        assert one.wait(END_S) == 128 + number, one.text
        assert one.left() == []


@pytest.mark.long
@pytest.mark.timeout(400)
def test_interrupted_on_spark_it_leaves_nothing_running(tmp_path: Path) -> None:
    """Ctrl-C while the fleet runs: no Java and no worker is left."""
    with demo(tmp_path, "--fast") as one:
        log = tmp_path / "demo-out" / "logs" / "perkey-spark.log"
        wait_for(lambda: one.look() and log.exists() and "starting fleet" in log.read_text(), 300)
        one.look()
        one.process.send_signal(signal.SIGINT)
        assert one.wait(END_S) == 130, one.text
        assert one.left() == []


@pytest.mark.long
@pytest.mark.timeout(400)
def test_killed_on_spark_it_leaves_nothing_running(tmp_path: Path) -> None:
    """Kill -9 of the demo itself while the fleet runs: its processes notice, and end."""
    with demo(tmp_path, "--fast") as one:
        log = tmp_path / "demo-out" / "logs" / "perkey-spark.log"
        wait_for(lambda: one.look() and log.exists() and "assigned" in log.read_text(), 300)
        one.look()
        one.process.kill()
        one.process.wait()
        wait_for(lambda: one.left() == [], END_S)


def test_a_file_as_folder_is_one_line(tmp_path: Path) -> None:
    """--out that cannot be a folder: exit 2 and one line, before anything is started."""
    (tmp_path / "file").write_text("mine")
    with demo(tmp_path, "--out", "file") as one:
        assert one.wait(END_S) == 2
        assert one.text.strip() == "perkey: --out file is a file: give a folder"
    assert (tmp_path / "file").read_text() == "mine"
