"""The Spark session of a fleet, created for it or given, and its jobs."""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perkey.errors import ConfigError
from perkey.spark.fleet.limits import FAILURES_SHOWN, TASK_FAILURES_MAX
from perkey.spark.fleet.membership import MemberTask
from perkey.spark.fleet.settings import (
    CONNECT,
    FleetSettings,
    check_java,
    check_master_answers,
    check_slots,
    choose_python,
    control_address,
    effective_master,
    refuse_what_kills,
)
from perkey.spark.fleet.task import run_member
from perkey.spark.requirements import check_connect_packages

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger("perkey")


class ClassicSession:
    """A session with a SparkContext; `own`: it ends with the fleet."""

    def __init__(self, spark: SparkSession, *, own: bool) -> None:
        self.spark, self.own = spark, own
        self.context: SparkContext = spark.sparkContext
        self.master = str(self.context.master)
        #: the address of Spark's UI, None if it is disabled
        self.ui: str | None = self.context.uiWebUrl
        wanted = str(self.context.getConf().get("spark.decommission.enabled")).lower() == "true"
        #: Spark may decommission executors, and can be queried for that
        self._decommissions = wanted

    @property
    def stopped(self) -> bool:
        """Whether it has ended; nothing can be submitted then."""
        return self.context._jsc is None  # noqa: SLF001  # PySpark has no public way to ask

    def ship(self, name: str, sources: bytes) -> None:
        """Put a zip of sources on the executors' path.

        Executors that start later also load it, and fail without it: it is in Spark's folder, which
        Java deletes at its end, also after the driver was killed.
        """
        path = Path(self.context._temp_dir) / name  # noqa: SLF001  # PySpark has no public way to ask
        if not path.exists():  # the content is in the name, and executors may be loading it
            path.write_bytes(sources)
        self.context.addPyFile(str(path))

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A thread with its own thread in Java, where job groups are stored."""
        from pyspark import InheritableThread

        return InheritableThread(target=target, name=name, daemon=True)

    def hold(self, task: MemberTask, group: str, description: str) -> None:
        """Run a member as a job of one task; returns when it has left."""
        # Spark stores these for the submitting thread.
        self.context.setJobGroup(group, description, interruptOnCancel=False)
        rows = self.context.parallelize([task.index], 1)
        rows.mapPartitions(functools.partial(run_member, task)).collect()

    def going(self, executors: Collection[str]) -> list[str]:
        """Those of these executors that are being decommissioned. Only Spark's Java has a call."""
        if not self._decommissions or self.stopped:
            return []
        try:
            state = self.context._jsc.sc().taskScheduler().getExecutorDecommissionState  # noqa: SLF001  # see above
            return [one for one in executors if state(one).isDefined()]
        except Exception:
            _log.debug("Spark's scheduler cannot be asked", exc_info=True)
            self._decommissions = False
            return []

    def removed(self, executor: str) -> bool:
        """Whether Spark has given this executor up. Only Spark's Java has a call."""
        try:
            scheduler = self.context._jsc.sc().taskScheduler()  # noqa: SLF001  # see above
            return not self.stopped and not scheduler.isExecutorAlive(executor)
        except Exception:
            _log.debug("Spark's scheduler cannot be asked", exc_info=True)
            return False

    def trouble(self, group: str) -> str | None:
        """Why tasks fail repeatedly: Spark makes many retries before it gives up."""
        tracker = self.context.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                found = tracker.getStageInfo(stage)
                if found is None or found.numFailedTasks < FAILURES_SHOWN:
                    continue
                # The errors of its first failed tasks. PySpark has no call for it, only its Java.
                try:
                    store = self.context._jsc.sc().statusStore()  # noqa: SLF001  # see above
                    tasks = store.taskList(stage, 0, FAILURES_SHOWN)
                    messages = [tasks.apply(n).errorMessage() for n in range(tasks.size())]
                except Exception:
                    _log.debug("Spark's tasks cannot be asked for", exc_info=True)
                    return None
                return next((str(one.get()) for one in messages if one.isDefined()), None)
        return None

    def cancel(self, group: str) -> None:
        """Kill the members that have not left."""
        if not self.stopped:
            self.context.cancelJobGroup(group)

    def control_address(self, conf: dict[str, str]) -> tuple[str, str, int]:
        """(address to bind, address that executors dial, port) of the control channel."""
        if self.master.startswith("local"):
            return control_address(conf, "127.0.0.1", "127.0.0.1")
        # Executors reach the driver at this host, so the channel uses it, too.
        known = self.context.getConf()
        host = str(known.get("spark.driver.host") or socket.gethostname())
        return control_address(conf, str(known.get("spark.driver.bindAddress") or host), host)

    def close(self) -> None:
        """Stop the session if it was created for the fleet."""
        if not self.own:
            return
        try:
            self.spark.stop()
        except Exception:
            # Its Java was killed: the run must still end and report how.
            _log.debug("the Spark session could not be stopped", exc_info=True)


class ConnectSession:
    """A Spark Connect session; `own`: it ends with the fleet.

    There is no SparkContext: members run in the tasks of queries of one row, whose generators yield
    when the member has left. Queries are tagged with the run, and interrupted by that tag.
    """

    #: only the server knows its address
    ui: str | None = None

    def __init__(self, spark: Any, *, own: bool) -> None:
        """Raises ConfigError if it was stopped, or the server's settings would end members."""
        self.spark, self.own = spark, own
        self._builder = spark.client._builder  # noqa: SLF001  # PySpark has no public way to ask where the server is
        self.master = f"sc://{self._builder.endpoint}"
        if self.stopped:
            raise ConfigError("the Spark Connect session has been stopped: give a running one")
        refuse_what_kills(lambda name: spark.conf.get(name, None))

    @property
    def stopped(self) -> bool:
        """Whether it has ended; nothing can be submitted then."""
        return bool(self.spark.is_stopped)

    def control_address(self, conf: dict[str, str]) -> tuple[str, str, int]:
        """(address to bind, address that executors dial, port) of the control channel.

        Assumes that executors reach this machine as the server does.
        """
        # This machine's address on the route to the server. Nothing is sent.
        (family, *_, where), *_ = socket.getaddrinfo(self._builder.host, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            here = str(probe.getsockname()[0])
        return control_address(conf, here, here)

    def ship(self, name: str, sources: bytes) -> None:
        """Put a zip of sources on the executors' path."""
        with tempfile.TemporaryDirectory(prefix="perkey-fleet-") as folder:
            path = Path(folder) / name
            path.write_bytes(sources)
            self.spark.addArtifacts(str(path), pyfile=True)  # copies it

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A plain thread: tags belong to the client."""
        return threading.Thread(target=target, name=name, daemon=True)

    def hold(self, task: MemberTask, group: str, _description: str) -> None:
        """Run a member; returns when it has left."""
        self.spark.addTag(group)
        rows = self.spark.range(0, 1, 1, 1)
        rows.mapInArrow(_Holder(task), "why string").collect()

    def going(self, _executors: Collection[str]) -> list[str]:
        """Only the server knows."""
        return []

    def removed(self, _executor: str) -> bool:
        """Only the server knows."""
        return False

    def trouble(self, _group: str) -> str | None:
        """A query fails as a whole, with its reason."""
        return None

    def cancel(self, group: str) -> None:
        """Kill the members that have not left."""
        if not self.stopped:
            self.spark.interruptTag(group)

    def close(self) -> None:
        """Stop the session if it was created for the fleet."""
        if self.own:
            self.spark.stop()


class _Holder:
    """What Spark runs in a task: reads the task's one row and runs a member."""

    def __init__(self, task: MemberTask) -> None:
        self._task = task

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:  # otherwise the socket stays full of it
            pass
        whys = list(run_member(self._task, ()))
        yield pa.RecordBatch.from_pydict({"why": pa.array(whys, pa.string())})


#: Either kind.
FleetSession = ClassicSession | ConnectSession


def open_session(settings: FleetSettings, name: str) -> FleetSession:
    """The given session, or a new one; raises ConfigError in one line."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    talk = logging.getLogger("py4j")
    if talk.level == logging.NOTSET:
        talk.setLevel(logging.WARNING)  # it logs every connection that it closes

    if ".connect." in type(settings.spark).__module__:
        return ConnectSession(settings.spark, own=False)
    if settings.spark is None and (connect := _connect_wanted(settings)):
        return connect
    if settings.spark is None and SparkContext._active_spark_context is None:  # noqa: SLF001  # PySpark has no public way to ask
        return _new_session(settings, name)
    session = settings.spark
    if session is None:
        session = SparkSession.builder.getOrCreate()
        running = session.sparkContext.master
        # One process cannot have two with different settings.
        if settings.conf or settings.master not in (None, running):
            raise ConfigError(
                f"a Spark session on {running} runs in this process already: give it with spark= "
                "and leave master= and conf= out, or stop it first"
            )
    if session.sparkContext._jsc is None:  # noqa: SLF001  # nor to ask whether one has ended
        raise ConfigError("the Spark session has been stopped: give a running one")
    found = ClassicSession(session, own=False)
    refuse_what_kills(found.context.getConf().get)
    what = f"the Spark session's master {found.master}"
    check_slots(found.master, settings.members, what, "session")
    return found


def _connect_wanted(settings: FleetSettings) -> FleetSession | None:
    """The Connect session given by master=, or by this process's environment."""
    from pyspark.sql.utils import is_remote

    asked = (settings.master or "").startswith(CONNECT)
    if not asked and not is_remote() and "SPARK_REMOTE" not in os.environ:
        return None
    check_connect_packages()
    from pyspark.sql.connect.session import SparkSession

    active = SparkSession.getActiveSession()
    if not asked and settings.master is not None:
        raise ConfigError(
            f"this process works over Spark Connect (SPARK_REMOTE, or a session of it) and cannot "
            f"start master={settings.master!r} beside that: leave master= out to run the fleet "
            "there, or stop the session first"
        )
    if active is not None and not active.is_stopped:
        return ConnectSession(active, own=False)
    remote = settings.master or os.environ.get("SPARK_REMOTE", "")
    check_master_answers(remote)
    try:
        spark = SparkSession.builder.remote(remote).getOrCreate()
        return ConnectSession(spark, own=True)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"no Spark Connect session at {remote}: {one_line(error)}: is a Connect server running "
            "there, of this PySpark's version?"
        ) from error


def _new_session(settings: FleetSettings, name: str) -> FleetSession:
    from pyspark.sql import SparkSession

    check_java()
    conf = {key: value for key, value in settings.conf.items() if key.startswith("spark.")}
    builder = SparkSession.builder.appName(f"perkey {name}")
    defaults = {
        # The driver logs a member's death in one line.
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(TASK_FAILURES_MAX),
    }
    # spark-submit has chosen the master already.
    if settings.master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = effective_master(settings.master, settings.members)
        check_master_answers(master)
        choose_python(master, conf)
        builder = builder.master(master)
    for key, value in {**defaults, **conf}.items():
        builder = builder.config(key, value)
    try:
        session = ClassicSession(builder.getOrCreate(), own=True)
    except Exception as error:
        raise ConfigError(f"no Spark session: {one_line(error)}") from error
    try:
        # Also properties of spark-defaults.conf.
        refuse_what_kills(session.context.getConf().get)
    except ConfigError:
        session.close()
        raise
    return session


def one_line(error: BaseException | str) -> str:
    """Spark's error without its stacks: the innermost cause with a message."""
    text = str(error)
    if "PYTHON_VERSION_MISMATCH" in text:
        found = re.search(r"different(?: minor)? version:? (\d+\.\d+)", text)
        theirs = found[1] if found else "another version"
        return (
            f"the executors run Python {theirs} and the driver {sys.version_info[0]}."
            f"{sys.version_info[1]}: give them the driver's minor version (PYSPARK_PYTHON, their "
            "image or the Connect server's environment)"
        )
    _, python, below = text.partition("Traceback (most recent call last):\n")
    if python:  # its first line that is not indented
        return next(line for line in (*below.splitlines(), python) if line[:1].strip())[:600]
    for line in text.splitlines():
        if "failed" in line and "Lost task" in line:
            # `Job aborted due to …: Lost task 0.0 … (executor driver): org.x.Y: what happened`
            return " ".join(line.split("): ", 1)[-1].split())[:600]
    words = [line.strip() for line in text.splitlines() if line.strip()]
    # A line with only an exception's name is useless; its message follows below.
    telling = [line for line in words if not line.endswith("Exception:")]
    return (*telling, *words, type(error).__name__)[0][:600]


# -- jobs ------------------------------------------------------------------------------------------


class MemberJobs:
    """One Spark job per member. Spark retries its task; when Spark gives up, it is submitted again.

    Separate jobs, because a job fails as a whole: the death of one member would end the others,
    too, once Spark's retries are used up; a plain `local[N]` has none.
    """

    def __init__(
        self,
        session: FleetSession,
        group: str,
        describe: Callable[[MemberTask], str],
        next_task: Callable[[MemberTask, BaseException | None], MemberTask | None],
    ) -> None:
        """`next_task` gets the end of a job and returns what to submit now, if anything."""
        self._session, self._group = session, group
        self._describe, self._next_task = describe, next_task
        self._threads: list[threading.Thread] = []

    def submit(self, tasks: list[MemberTask]) -> None:
        """Start a job for each of these; returns immediately."""
        for task in tasks:
            run = functools.partial(self._run, task)
            self._threads.append(self._session.thread(run, f"perkey-job-{task.index}"))
            self._threads[-1].start()

    def cancel(self) -> None:
        """End running jobs; members that have not left are killed."""
        self._session.cancel(self._group)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of all jobs, up to the time-out."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, first: MemberTask) -> None:
        task: MemberTask | None = first
        while task is not None:
            error: BaseException | None = None
            try:
                self._session.hold(task, self._group, self._describe(task))
            except Exception as raised:
                error = raised
            task = self._next_task(task, error)
