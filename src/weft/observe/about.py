"""Identity of the run in a snapshot."""

from __future__ import annotations

import itertools
import os
import socket
import time
from typing import Any

from weft._version import __version__

#: several apps of one process are separate members
_runs = itertools.count()


def about_run(group: str, instance_id: str | None) -> dict[str, Any]:
    """The group, the member's name and where it runs."""
    host, number = socket.gethostname(), next(_runs)
    name = f"{host}-{os.getpid()}" + (f"-{number}" if number else "")
    return {
        "group": group,
        "member": instance_id or name,
        "pid": os.getpid(),
        "host": host,
        "started_at": round(time.time(), 3),
        "version": __version__,
    }
