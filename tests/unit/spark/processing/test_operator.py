"""What Spark calls in a task, where Perkey is not."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from perkey.errors import ConfigError
from perkey.spark.fleet import shipping
from perkey.spark.processing.operator import check_workers, task_function

BARE = """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "perkey":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
run = pickle.load(sys.stdin.buffer)
try:
    run(iter(()))
except ImportError as error:
    print(run.__name__, type(error).__name__, error)
"""


def test_an_executor_without_perkey_reports_what_to_do():
    """The function can be loaded there, and tells which Python lacks it."""
    data = shipping.dumps(task_function(b"", "check"))
    done = subprocess.run(
        [sys.executable, "-c", BARE], input=data, capture_output=True, timeout=100, check=False
    )
    said = done.stdout.decode()
    assert said.startswith(
        f"check ImportError {sys.executable} on an executor has no module perkey"
    )
    assert "install perkey[spark] there" in said


class Workers:
    """A Spark context whose workers run another Python; what is mapped runs here."""

    def __init__(self, python: str) -> None:
        self.pythonExec, self.jobs = python, 0

    def parallelize(self, rows, _slices):
        self.jobs += 1
        self.rows = rows
        return self

    def mapPartitions(self, function):  # Spark's name
        self.found = function(iter(self.rows))
        return self

    def collect(self):
        return self.found


def test_workers_without_perkey_are_found_out_before_a_task_fails(monkeypatch):
    """A failing task is tried again, locally a thousand times; the line names their Python."""
    workers = Workers("/opt/other/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"/opt/other/python, the Python .* has no module perkey"):
        check_workers(SimpleNamespace(sparkContext=workers))


def test_workers_with_perkey_are_checked_only_once(monkeypatch):
    """And those of this very Python not at all."""
    other, same = Workers("/opt/good/python"), Workers(sys.executable)
    for workers in (other, other, same):
        check_workers(SimpleNamespace(sparkContext=workers))
    assert (other.jobs, same.jobs) == (1, 0)


class Server:
    """A Connect session whose server's workers are as this process."""

    session_id = "s"

    def __init__(self) -> None:
        self.queries = 0

    def range(self, *_: int):
        self.queries += 1
        return self

    def mapInArrow(self, function, _schema):  # Spark's name
        self.rows = [SimpleNamespace(**row) for one in function([]) for row in one.to_pylist()]
        return self

    def collect(self):
        return self.rows


def test_a_connect_server_without_perkey_is_found_out_before_a_task_fails(monkeypatch):
    """A query looks, and the line names the workers' Python; one that has Perkey is asked once."""
    server = Server()
    with monkeypatch.context() as bare:
        bare.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=rf"{sys.executable}, .*server's workers, has no mod"):
            check_workers(server)
    for _ in range(3):
        check_workers(server)
    assert server.queries == 2
