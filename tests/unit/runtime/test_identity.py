"""Transactional ids: stable for a successor, different for everybody else."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perkey.runtime.member.transactor import transactional_id


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def members(home: Path) -> Path:
    return home / "state" / "perkey" / "members"


def test_a_successor_gets_the_id_and_a_neighbour_another(home: Path) -> None:
    """The slot is free when its holder has let go."""
    first, free_first = transactional_id("g", None)
    second, free_second = transactional_id("g", None)
    other, free_other = transactional_id("other", None)
    assert len({first, second, other}) == 3
    free_first()
    again, free_again = transactional_id("g", None)
    assert again == first
    for free in (free_again, free_second, free_other):
        free()


def test_a_killed_holder_gives_its_slot_back(home: Path) -> None:
    """However the process ended."""
    program = (
        "import os; from perkey.runtime.member.transactor import transactional_id as t;"
        "print(t('g', None)[0], flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    mine, free = transactional_id("g", None)
    free()
    assert killed.stdout.strip() == mine


def test_one_host_name_with_two_folders_gives_two_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers, two users, two services with folders of their own fenced each other."""
    ids = []
    for name in ("one", "two"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        monkeypatch.setenv("TMPDIR", str(tmp_path / f"tmp-{name}"))
        found, free = transactional_id("g", None)
        ids.append(found)
        free()
    assert ids[0] != ids[1]
    assert all(one.startswith("g-") for one in ids)


def test_an_instance_id_is_the_identity(home: Path) -> None:
    """It is unique by itself; no file is touched."""
    assert transactional_id("g", "i")[0] == "g-i"
    assert not members(home).exists()


def test_the_folder_is_the_users_alone(home: Path) -> None:
    """Nobody else reads or writes in it."""
    _, free = transactional_id("g", None)
    free()
    assert stat.S_IMODE(members(home).stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in members(home).iterdir()} == {0o600}


def _planted_link(home: Path) -> None:
    (home / "elsewhere").mkdir()
    members(home).parent.mkdir(parents=True)
    members(home).symlink_to(home / "elsewhere")


def _open_to_others(home: Path) -> None:
    members(home).mkdir(parents=True)
    members(home).chmod(0o777)


def _no_folder(home: Path) -> None:
    (home / "state").write_text("a file")


@pytest.mark.parametrize("harm", [_planted_link, _open_to_others, _no_folder])
def test_without_a_folder_of_its_own_an_id_is_random(home: Path, caplog, harm) -> None:
    """And the log says what that costs, and what to do."""
    harm(home)
    ids = {transactional_id("g", None)[0] for _ in range(2)}
    assert len(ids) == 2
    assert "XDG_STATE_HOME" in caplog.text
    assert list((home / "elsewhere").glob("*")) == []


def test_a_planted_lock_is_not_followed(home: Path) -> None:
    """A link in a lock's place is refused: what it points to is not opened or made."""
    first, free = transactional_id("g", None)
    free()
    (lock,) = members(home).glob("*.lock")
    lock.unlink()
    lock.symlink_to(home / "target")
    found, free = transactional_id("g", None)
    free()
    assert found != first
    assert not (home / "target").exists()
