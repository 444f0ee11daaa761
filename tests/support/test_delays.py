"""Delays find a race, and say where they rested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.delays import Delays

ROOT = Path(__file__).parents[2]
RACE = """
import logging
import threading

def test_race(caplog):
    done = threading.Event()

    def work():
        done.set()
        logging.getLogger("perkey").warning("it is done")

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    done.wait(60)
    seen = caplog.text
    thread.join()
    assert "it is done" in seen
"""


def test_a_late_line_is_found(tmp_path):
    """An effect is seen before the line that reports it; the seed is in the output."""
    (tmp_path / "test_race.py").write_text(RACE)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.delays", "-p", "no:cacheprovider", "."],
        check=False, cwd=tmp_path, capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PERKEY_DELAYS": "log:7"},
    )  # fmt: skip
    assert "1 failed" in ran.stdout
    assert "PERKEY_DELAYS=log:7" in ran.stdout
    assert "Logger.handle in worker: it is done" in ran.stdout


@pytest.mark.parametrize("drawn", ["", "7", "front:7", "back:", "back:x"])
def test_what_is_no_mode_and_seed_is_refused(drawn):
    """Before a thread is traced."""
    with pytest.raises(pytest.UsageError, match="MODE:SEED"):
        Delays(drawn)
