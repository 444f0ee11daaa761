"""Directories shared by several processes: created if missing, locked while in use."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perkey import guard
from perkey.errors import ConfigError

_LOCK = ".lock"
#: no link is followed: a directory in a shared place may belong to another user
_LOCK_FLAGS = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def user_folder(variable: str, fallback: str) -> Path:
    """The user's folder of one kind (XDG), such as XDG_CACHE_HOME or else `.cache` at home.

    Raises ConfigError if there is no home folder either.
    """
    base = os.environ.get(variable)
    try:
        return (Path(base) if base else Path.home() / fallback) / "perkey"
    except RuntimeError as error:
        raise ConfigError(f"this user has no home folder: set {variable}") from error


def check_own(folder: Path, cure: str) -> None:
    """Raise ConfigError for a directory that another user owns or can write to.

    Its contents define the address that clients connect to, and are executed as Java.
    """
    wrong = guard.complaint(folder.stat())
    if wrong:
        raise ConfigError(f"the folder {folder} {wrong}: make it yours alone, or {cure}")


@contextmanager
def locked(folder: Path, cure: str) -> Iterator[None]:
    """Lock a directory: a second process waits. The system unlocks it when this process dies.

    Raises ConfigError, ending in `cure`, if the folder cannot be created or written, or does not
    belong to this user only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_own(folder, cure)
        lock = os.fdopen(os.open(folder / _LOCK, _LOCK_FLAGS, 0o600), "w")
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be used ({error.strerror}): {cure}"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clear(folder: Path) -> None:
    """Empty a locked folder; its lock file stays, for processes that wait for it."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _LOCK:
            entry.unlink(missing_ok=True)
