"""The socket of a run: its rights, who finds it, and what becomes of a dead one."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perkey.cli.sources import runs_of
from perkey.errors import ConfigError, FatalError
from perkey.observe import local
from perkey.observe.local import About, LocalServer, about, ask, folder, gone, runs
from perkey.observe.orders import Answer, what


class Source:
    """A run with one answer each."""

    def snapshot(self):
        return {"state": "running", "app": {"member": "m"}, "partitions": [], "handlers": {}, "blockers": [],
                "halts": [{"cause": "unassigned"}]}  # fmt: skip

    measures = snapshot

    def members(self):
        return [self.snapshot()]

    sums = members

    def picture(self, topic, partition):
        return None

    def find(self, topic, partition, offset):
        return {"topic": topic, "partition": partition, "offset": offset, "place": "done"}

    def find_key(self, key, topic):
        return []

    def control(self, order):
        self.orders = [*getattr(self, "orders", ()), order]
        return [Answer("m", "done", f"{order.action} {what(order)}")]

    def commands(self):
        return [{"member": "m", "in_force": [], "log": []}]

    def live(self):
        return True, "ok"

    def ready(self):
        return True, "ok"


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory, monkeypatch):
    """Not the user's own runs."""
    base = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base


@pytest.fixture
def server():
    """One run that serves."""
    one = LocalServer(Source())
    yield one
    one.close()


def test_the_socket_is_the_users_alone(server):
    """Mode 0600 in a folder of mode 0700."""
    assert stat.S_IMODE(server.path.lstat().st_mode) == 0o600
    assert stat.S_IMODE(server.path.parent.lstat().st_mode) == 0o700


def test_runs_are_found_and_asked(server):
    """By everybody of this user, without a word about where."""
    (path,) = runs()
    assert ask(path, {"ask": "snapshot"})["state"] == "running"
    told = ask(path, {"ask": "why"})
    assert told["sentences"][0]["about"] == "unassigned"
    told = ask(path, {"ask": "why", "where": "t:0:7"})
    assert (told["found"][0]["place"], told["sentences"][0]["text"]) == (
        "done", "t[0]: record 7 is done.",
    )  # fmt: skip


@pytest.mark.parametrize("asked", [{"where": "t:0:7"}, {"key": "k"}])
def test_a_record_is_not_elsewhere_while_the_start_waits(server, monkeypatch, asked):
    """No member owns its partition yet: the first line is what the start waits for."""
    halt = {"cause": "starting", "why": "brokers", "value": "kafka:9092", "for_s": 7.0}
    shot = {**Source().snapshot(), "state": "starting", "halts": [halt]}
    monkeypatch.setattr(Source, "snapshot", lambda _: shot)
    told = ask(server.path, {"ask": "why", **asked})
    assert told["sentences"][0]["text"].startswith("The start has waited for 7.0 s")
    assert told["found"] == []


def dead_socket(server, pid):
    """One that nobody listens on."""
    path = server.path.parent / f"{pid}-999999.sock"  # no number that a server of this process had
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    return path


def test_a_socket_whose_process_lives_is_removed(server):
    """Nobody listens there any more, though it was not killed: the living stay."""
    dead = dead_socket(server, os.getpid())
    assert runs() == [server.path]
    assert not dead.exists()
    assert gone() == []


def test_a_killed_run_is_reported_for_ten_minutes(server, monkeypatch):
    """It would vanish without a word: whoever finds its socket keeps its name."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    dead_socket(server, process.pid)
    assert runs() == [server.path]
    ((name, _, ago_s),) = gone()
    assert (name, ago_s < 60) == (f"{process.pid}-999999", True)
    shown = runs_of(None, None)
    with pytest.raises(FatalError, match=f"^process {process.pid} ended without a clean stop"):
        shown[1].ask({"ask": "snapshot"})
    monkeypatch.setattr(local, "GONE_SHOWN_S", -1.0)
    assert gone() == []


def test_a_run_that_ends_while_it_is_looked_for(server, monkeypatch):
    """Its socket was in the list and is gone: it is left out."""
    listed = [server.path, server.path.with_name("8-0.sock")]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(listed))
    assert runs() == [server.path]


def test_a_closed_run_leaves_nothing():
    """Its socket goes with it."""
    one = LocalServer(Source())
    one.close()
    assert runs() == []
    assert not one.path.exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense\n", "JSON object with `ask`"),
        (b"[1]\n", "JSON object with `ask`"),
        (b'{"ask": "shell"}\n', "unknown question 'shell'"),
        (b'{"ask": "why", "where": "t:x"}\n', "write TOPIC"),
        (b'{"ask": "why", "where": 7}\n', "where and key must be text"),
        (b'{"ask": "why", "key": "' + b"k" * 20_000 + b'"}\n', "at most 16,384 bytes"),
        (b"x" * (local.ASKED_BYTES_MAX + 1), "one line of at most"),
    ],
)
def test_bad_questions_are_answered_with_what_is_wrong(server, line, said):
    """And the server goes on."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(20)
        one.connect(str(server.path))
        one.sendall(line)
        with one.makefile("rb") as stream:
            assert said in json.loads(stream.readline())["error"]
    assert ask(server.path, {"ask": "snapshot"})["state"] == "running"


def test_a_folder_that_others_may_enter_is_refused(own_folder):
    """So is one that is a link to somewhere."""
    place = own_folder / "perkey"
    place.mkdir(mode=0o755)
    with pytest.raises(
        ConfigError, match="can be read by others, and must be a directory of this user"
    ):
        folder()
    place.rmdir()
    place.symlink_to(own_folder)
    with pytest.raises(
        ConfigError, match="is not a directory, and must be a directory of this user"
    ):
        runs()


def test_without_a_runtime_folder_the_temporary_one_serves(monkeypatch, tmp_path):
    """Under the user's own number."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(local.tempfile, "gettempdir", lambda: str(tmp_path))
    assert folder() == tmp_path / f"perkey-{os.getuid()}"


def test_a_path_that_is_too_long_is_one_line(monkeypatch, tmp_path):
    """Not an OSError from the depths."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(ConfigError, match="too long for a socket"):
        LocalServer(Source())


def test_a_run_leaves_its_group_and_member_beside_its_socket(monkeypatch):
    """For a process that cannot answer; they go with the socket."""
    monkeypatch.setattr(Source, "members", lambda _: [{"app": {"group": "g", "member": "m1"}}])
    one = LocalServer(Source())
    place = one.path.with_suffix(".about")
    assert about(one.path) == About("g", "m1")
    assert stat.S_IMODE(place.lstat().st_mode) == 0o600
    one.close()
    assert not place.exists()
    assert about(one.path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"group": "g"}', "x" * 5_000])
def test_a_file_that_names_no_run_is_passed_over(server, text):
    """The run is asked then."""
    server.path.with_suffix(".about").write_text(text)
    assert about(server.path) is None
