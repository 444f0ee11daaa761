"""Folders of brokers are their user's own."""

from __future__ import annotations

import os
import stat

import pytest

from perkey.broker.cluster import Cluster
from perkey.broker.folder import locked
from perkey.broker.state import new_state, save_state
from perkey.errors import ConfigError


def test_a_new_folder_is_its_users_alone(tmp_path):
    """Whatever the umask: it holds records, and what the broker was told."""
    before = os.umask(0)
    try:
        with locked(tmp_path / "data", "choose another"):
            modes = [
                stat.S_IMODE(path.stat().st_mode)
                for path in (tmp_path / "data", tmp_path / "data" / ".lock")
            ]
    finally:
        os.umask(before)
    assert modes == [0o700, 0o600]


def test_a_planted_link_is_not_followed(tmp_path):
    """What it points to is neither emptied nor made."""
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="cannot be used"), locked(tmp_path / "data", "choose"):
        pass
    assert (tmp_path / "theirs").read_text() == "precious"


def _of_another(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    theirs = folder.stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: theirs)


def _open_to_others(folder, _monkeypatch):
    folder.mkdir()
    folder.chmod(0o770)


@pytest.mark.parametrize(
    ("harm", "said"),
    [(_of_another, r"belongs to user \d+"), (_open_to_others, "can be written by others")],
)
def test_a_folder_that_is_not_ones_own_is_refused(tmp_path, monkeypatch, harm, said):
    """Neither held nor believed: its owner could name any address, or plant a link in it."""
    folder = tmp_path / "data"
    harm(folder, monkeypatch)
    save_state(folder, new_state(1, None))
    with (
        pytest.raises(ConfigError, match=rf"{said}.*choose another$"),
        locked(folder, "choose another"),
    ):
        pass
    assert not (folder / ".lock").exists()
    with pytest.raises(ConfigError, match=rf"{said}.*choose another --data$"):
        Cluster(folder).pids()
