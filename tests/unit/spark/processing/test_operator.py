"""What Spark calls in a task, where Weft is not."""

from __future__ import annotations

import subprocess
import sys

from weft.spark.fleet import pickles
from weft.spark.processing.operator import task_function

BARE = """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "weft":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
run = pickle.load(sys.stdin.buffer)
try:
    run(iter(()))
except ImportError as error:
    print(run.__name__, type(error).__name__, error)
"""


def test_an_executor_without_weft_says_what_to_do():
    """The function can be loaded there, and tells which Python lacks it."""
    data = pickles.dumps(task_function(b"", "check"))
    done = subprocess.run(
        [sys.executable, "-c", BARE], input=data, capture_output=True, timeout=100, check=False
    )
    said = done.stdout.decode()
    assert said.startswith(f"check ImportError {sys.executable} on an executor has no module weft")
    assert "install weft[spark] there" in said
