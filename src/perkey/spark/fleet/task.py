"""What Spark runs on an executor: find the driver, load the app, host one member.

Imports little: an executor without Perkey's dependencies must still be able to report that.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perkey.spark.fleet.link import DriverLink
from perkey.spark.fleet.membership import MemberTask, kernel
from perkey.spark.fleet.wire import WireError

if TYPE_CHECKING:
    from perkey.spark.fleet.hosting import Host

#: third-party modules that a member imports
NEEDED = ("confluent_kafka", "zstandard")[: 2 if sys.version_info < (3, 14) else 1]


def run_member(task: MemberTask, _rows: Iterable[int]) -> Iterator[str]:
    """The Spark task. Ends when the member has left for good; raising would start it again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    # The daemon that forks the workers signals its group, and so this process, at its end.
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    link = DriverLink((task.host, task.port), task.secret, place=f"{task.index}.{task.generation}")
    facts = {
        "attempt": attempt,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "executor": executor_id(),
        "kernel": kernel(),
    }
    try:
        welcome = link.open(facts)
        try:
            bye: dict[str, Any] = {"why": "told to"}
            if not welcome["leave"]:
                app, host = _loaded(task)
                bye = host(task, link, welcome, app).run()
        except Unusable as error:
            bye = {"why": "refused", "reason": str(error)}
        except WireError as error:  # the driver is gone: nothing to report to
            bye = {"why": str(error)}
        link.end({"type": "bye", **bye})
        yield str(bye["why"])
    finally:
        link.close()
        signal.signal(signal.SIGHUP, hung_up)


def executor_id() -> str | None:
    """The id of this process's Spark executor; None if it cannot be determined.

    Spark does not pass it to Python. It is in the command line of the Java process that is the
    daemon's parent, which Linux shows.
    """
    try:
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        java = int(daemon.rpartition(")")[2].split()[1])
        words = Path(f"/proc/{java}/cmdline").read_bytes().split(b"\0")
        return words[words.index(b"--executor-id") + 1].decode()
    except (OSError, ValueError, IndexError):
        return None


class Unusable(Exception):
    """This executor cannot run the app; a retry would not help."""


def _loaded(task: MemberTask) -> tuple[Any, Callable[..., Host]]:
    """The app and its host; raises Unusable with the fix."""
    here = f"executor {socket.gethostname()} ({sys.executable})"
    needed = NEEDED if task.table is None else (*NEEDED, "pyarrow")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise Unusable(
            f"{here} lacks {' and '.join(missing)}: install Perkey's dependencies there, or ship "
            "an environment (spark.archives and PYSPARK_PYTHON; docs/spark.md)"
        )
    try:
        from perkey.spark.fleet.hosting import Host

        return _resident(pickle.loads(task.app)), Host  # noqa: S301  # it came with the task, from the driver
    except ModuleNotFoundError as error:
        raise Unusable(
            f"{here} cannot import {error.name}, which the app uses: install it there, or ship it "
            "(spark.submit.pyFiles or spark.archives; docs/spark.md)"
        ) from error
    except Exception as error:
        raise Unusable(
            f"{here} cannot load the app: {type(error).__name__}: {error}: does it run the "
            "driver's version of Python and of the app's packages?"
        ) from error


def _resident(app: Any) -> Any:
    """The app to run: for an installed module, the module's own.

    Handlers of such a module are shipped by name and use the `app` that its import created here,
    whose `state` the lifespan must set. It gets the options of the driver.
    """
    from perkey.app_options import owner_of

    found = (owner_of(handler.function) for handler in app.handlers)
    owner: Any = next((one for one in found if one), None)
    if owner is None:
        return app
    owner.__setstate__(app.__getstate__())
    return owner
