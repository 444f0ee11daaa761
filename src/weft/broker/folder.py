"""Folders that several processes share: made when missing, locked while in use."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.errors import ConfigError

_LOCK = ".lock"


def user_folder(variable: str, fallback: str) -> Path:
    """The user's folder of one kind (XDG), such as XDG_CACHE_HOME or else `.cache` at home.

    Raises ConfigError where there is no home either.
    """
    base = os.environ.get(variable)
    try:
        return (Path(base) if base else Path.home() / fallback) / "weft"
    except RuntimeError as error:
        raise ConfigError(f"this user has no home folder: set {variable}") from error


@contextmanager
def locked(folder: Path, cure: str) -> Iterator[None]:
    """Hold a folder: whoever comes second waits. The system lets go when this process dies.

    Raises ConfigError, ending in `cure`, when the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be used ({error.strerror}): {cure}"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clear(folder: Path) -> None:
    """Empty a folder that is held; its lock stays, for who waits for it."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _LOCK:
            entry.unlink(missing_ok=True)
