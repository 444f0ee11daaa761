"""Ownership checks for files and directories that Weft trusts or executes."""

from __future__ import annotations

import os
import stat

#: the permissions that let other users change a file or folder
WRITE = 0o022
#: every right of others
ANY = 0o077


def complaint(found: os.stat_result, others: int = WRITE) -> str | None:
    """The reason why it is not private to this user, to follow its path; None if it is.

    `others` are the permissions that no other user may have.
    """
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & others:
        return "can be written by others" if found.st_mode & WRITE else "can be read by others"
    return None
