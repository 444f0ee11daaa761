"""The `transactional.id` of a member: the same for its successor, different from all others.

A successor with the id of a killed member ends its open transaction at once. Two members with one
id would fence each other for ever. So an id names the host, the user's installation (two containers
may have one host name and different folders), and a slot that a file lock holds, which the kernel
gives back however the process ends. The locks are in a folder that is the user's alone: in a
folder that others can write to, others could take them, or plant a link in their place.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from weft import owner
from weft.runtime.logs import event

_log = logging.getLogger("weft")

SLOTS_MAX = 10_000
_INSTALLATION = "installation"
_LENGTH = 12
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW


def stable_id(group: str, instance_id: str) -> str:
    """The id of the member with this `group.instance.id`."""
    return f"{group}-{instance_id}"


def transactional_id(group: str, instance_id: str | None) -> tuple[str, Callable[[], None]]:
    """The id of this member, and what to call when it is free again.

    With a `group.instance.id` it is that. Where the user has no folder of its own for the locks the
    id is random; the log explains the cost.
    """
    if instance_id is not None:
        return stable_id(group, instance_id), lambda: None
    host = socket.gethostname()
    try:
        place, free = _held_place(hashlib.sha256(group.encode()).hexdigest()[:16])
    except OSError as error:
        event(
            _log,
            "warning",
            "no directory for locks, so this member's transactional.id is random: what it "
            "leaves open when it is killed blocks read_committed readers for up to 10 s; set "
            "XDG_STATE_HOME to a folder of this user, or give each member a group.instance.id",
            reason=str(error),
        )
        return f"{group}-{host}-{secrets.token_hex(_LENGTH)}", lambda: None
    return f"{group}-{host}-{place}", free


def _held_place(digest: str) -> tuple[str, Callable[[], None]]:
    """A free `{installation}-{slot}`, and a function that releases it."""
    folder = _own_folder()
    try:
        installation = _installation(folder)
        slot, held = _free_slot(folder, digest)
        return f"{installation}-{slot}", partial(os.close, held)
    finally:
        os.close(folder)


def _own_folder() -> int:
    """The folder of the locks, opened; OSError where there is none that is this user's alone."""
    given = os.environ.get("XDG_STATE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise OSError("this user has no home folder") from error
    path = base / "weft" / "members"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(exist_ok=True, mode=0o700)
    folder = os.open(path, _FOLDER_FLAGS)  # refuses a link
    try:
        _check_own(folder, path)
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def _check_own(opened: int, path: object) -> None:
    wrong = owner.complaint(os.fstat(opened))
    if wrong:
        raise OSError(f"{path} {wrong}")


def _open(folder: int, name: str) -> int:
    opened = os.open(name, _FILE_FLAGS, 0o600, dir_fd=folder)
    try:
        _check_own(opened, name)
    except OSError:
        os.close(opened)
        raise
    return opened


def _free_slot(folder: int, digest: str) -> tuple[int, int]:
    """The first free slot, and its lock."""
    for slot in range(SLOTS_MAX):
        held = _open(folder, f"{digest}-{slot}.lock")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
        else:
            return slot, held
    raise RuntimeError(f"more than {SLOTS_MAX} members of one group with one lock folder")


def _installation(folder: int) -> str:
    """A random name that is kept in the folder: made by the first, read by all."""
    kept = _open(folder, _INSTALLATION)
    try:
        fcntl.flock(kept, fcntl.LOCK_EX)  # freed with the file
        name = os.read(kept, 100).decode("ascii", "replace").strip()
        if len(name) != _LENGTH or not name.isalnum():
            name = secrets.token_hex(_LENGTH // 2)
            os.ftruncate(kept, 0)
            os.pwrite(kept, name.encode(), 0)
        return name
    finally:
        os.close(kept)
