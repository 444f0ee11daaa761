"""The Spark session of a fleet: made for it, or given."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.spark.fleet.limits import TASK_FAILURES_MAX
from weft.spark.fleet.settings import (
    CONTROL_HOST,
    CONTROL_PORT,
    FleetSettings,
    check_java,
    check_master_answers,
    choose_python,
    effective_master,
    local_slots,
    refuse_speculation,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger("weft")


class FleetSession:
    """A Spark session, and whether it ends with the fleet."""

    def __init__(self, spark: SparkSession, *, own: bool) -> None:
        self.spark = spark
        self.context: SparkContext = spark.sparkContext
        self.own = own

    @property
    def master(self) -> str:
        """Its master's URL."""
        return str(self.context.master)

    @property
    def ui(self) -> str | None:
        """The address of Spark's UI, None where it is off."""
        return self.context.uiWebUrl

    def control_address(self, conf: dict[str, str]) -> tuple[str, str, int]:
        """(address to bind, address that executors dial, port) of the control channel."""
        known = self.context.getConf()
        port = int(conf.get(CONTROL_PORT, "0"))
        if conf.get(CONTROL_HOST):
            return conf[CONTROL_HOST], conf[CONTROL_HOST], port
        if self.master.startswith("local"):
            return "127.0.0.1", "127.0.0.1", port
        # Executors reach the driver at this host, so this is where they find the channel too.
        host = str(known.get("spark.driver.host") or socket.gethostname())
        return str(known.get("spark.driver.bindAddress") or host), host, port

    def close(self) -> None:
        """Stop the session if it was made for the fleet."""
        if not self.own:
            return
        try:
            self.spark.stop()
        except Exception:
            # Its Java has been killed: the run must end all the same, and can tell how.
            _log.debug("the Spark session could not be stopped", exc_info=True)


def open_session(settings: FleetSettings, name: str) -> FleetSession:
    """The given session, or a new one; raises ConfigError in one line."""
    from pyspark import SparkContext

    talk = logging.getLogger("py4j")
    if talk.level == logging.NOTSET:
        talk.setLevel(logging.WARNING)  # it tells of every connection it closes

    if settings.spark is None and SparkContext._active_spark_context is None:  # noqa: SLF001  # PySpark has no public way to ask
        return _new_session(settings, name)
    session = settings.spark if settings.spark is not None else _active_session(settings)
    if session.sparkContext._jsc is None:  # noqa: SLF001  # nor to ask whether one has ended
        raise ConfigError("the Spark session has been stopped: give a running one")
    found = FleetSession(session, own=False)
    refuse_speculation(found.context.getConf().get("spark.speculation"))
    slots = local_slots(found.master)
    if slots is not None and slots < settings.members:
        raise ConfigError(
            f"the Spark session's master {found.master} runs {slots} tasks at once and "
            f"members={settings.members}: each member holds a slot, so give at most "
            f"members={slots}, or a larger session"
        )
    return found


def _active_session(settings: FleetSettings) -> Any:
    """The session of this process; one process cannot have two with different settings."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    running = session.sparkContext.master
    if settings.conf or settings.master not in (None, running):
        raise ConfigError(
            f"a Spark session on {running} runs in this process already: give it with spark= and "
            "leave master= and conf= out, or stop it first"
        )
    return session


def _new_session(settings: FleetSettings, name: str) -> FleetSession:
    from pyspark.sql import SparkSession

    check_java()
    conf = {key: value for key, value in settings.conf.items() if key.startswith("spark.")}
    builder = SparkSession.builder.appName(f"weft {name}")
    defaults = {
        # The driver tells what matters of a member's death, in one line.
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
        session = FleetSession(builder.getOrCreate(), own=True)
    except Exception as error:
        raise ConfigError(f"no Spark session: {one_line(error)}") from error
    if settings.master is None:
        refuse_speculation(session.context.getConf().get("spark.speculation"))
    return session


def one_line(error: BaseException) -> str:
    """What Spark says of a failure, without its stacks: the innermost cause that has words."""
    text = str(error)
    for line in text.splitlines():
        if "failed" in line and "Lost task" in line:
            # `Job aborted due to …: Lost task 0.0 … (executor driver): org.x.Y: what happened`
            return " ".join(line.split("): ", 1)[-1].split())[:600]
    words = [line.strip() for line in text.splitlines() if line.strip()]
    return (words[0] if words else type(error).__name__)[:600]
