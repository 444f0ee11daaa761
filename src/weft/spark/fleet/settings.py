"""What the user asked of the fleet, checked before Java is started."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from weft.errors import ConfigError
from weft.spark.fleet.limits import DIAL_IN_S, MEMBERS_MAX, TASK_FAILURES_MAX
from weft.spark.requirements import check_spark_packages

JAVA_VERSION_MIN = 17
_JAVA_CURE = (
    f"install Java {JAVA_VERSION_MIN} or newer (Debian, Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk) or point JAVA_HOME at one"
)
_MASTER_ANSWER_S = 5.0
_LOCAL = re.compile(r"^local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?$")
_LOCAL_CLUSTER = re.compile(r"^local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]$")
_CLUSTERS = ("spark://", "k8s://")
_MASTERS = "local[N], local-cluster[N,CORES,MB], spark://HOST:PORT, yarn or k8s://HOST:PORT"

#: Weft's own keys in `conf`: where executors find the control channel, and how long the driver
#: waits until all members have dialled in.
CONTROL_HOST, CONTROL_PORT = "weft.control.host", "weft.control.port"
CONTROL_WAIT = "weft.control.wait_s"


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What `app.run(engine="spark", ...)` was given."""

    members: int
    #: None: that of the given session, of spark-submit, or a local one with a slot for each
    master: str | None = None
    spark: Any = None
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def wait_s(self) -> float:
        """How long all members may take to dial in."""
        return float(self.conf.get(CONTROL_WAIT, DIAL_IN_S))


def fleet_settings(
    members: object, master: object, spark: object, conf: Mapping[str, object] | None
) -> FleetSettings:
    """Check what can be seen without Spark; raises ConfigError in one line."""
    if type(members) is not int or not 1 <= members <= MEMBERS_MAX:
        raise ConfigError(
            f'members={members!r}: engine="spark" needs how many members to run, a whole number '
            f"from 1 to {MEMBERS_MAX}"
        )
    check_spark_packages()
    settings = FleetSettings(members, _checked_master(master), spark, _checked_conf(conf))
    if spark is not None:
        _check_given_session(settings)
    elif settings.master is not None:
        _check_slots(settings.master, members)
    return settings


def _checked_master(master: object) -> str | None:
    if master is None:
        return None
    if isinstance(master, str) and (
        master == "yarn"
        or _LOCAL.match(master)
        or _LOCAL_CLUSTER.match(master)
        or (master.startswith(_CLUSTERS) and urlsplit(master.split(",")[0]).netloc)
    ):
        return master
    raise ConfigError(f"master={master!r} is no Spark master: give {_MASTERS}")


def _checked_conf(conf: object) -> dict[str, str]:
    if conf is None:
        return {}
    if not isinstance(conf, Mapping):
        raise ConfigError("conf= must be a dict of Spark properties")
    for name, value in conf.items():
        ours = name in (CONTROL_HOST, CONTROL_PORT, CONTROL_WAIT)
        if not ours and (not isinstance(name, str) or not name.startswith("spark.")):
            raise ConfigError(f"conf: {name!r:.80} is no Spark property: they start with spark.")
        if not isinstance(value, str | int | float):
            raise ConfigError(f"conf: {name} must be text or a number")
    checked = {name: _text(value) for name, value in conf.items()}
    refuse_speculation(checked.get("spark.speculation"))
    if "spark.master" in checked:
        raise ConfigError("conf: spark.master is given by master=")
    _check_number(checked, CONTROL_PORT, 0, 65_535)
    _check_number(checked, CONTROL_WAIT, 1, 86_400)
    return checked


def _check_number(conf: dict[str, str], name: str, low: int, high: int) -> None:
    value = conf.get(name)
    if value is not None and not (value.isdigit() and low <= int(value) <= high):
        raise ConfigError(f"conf: {name}={value}: give a whole number from {low} to {high}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse_speculation(value: str | None) -> None:
    """A speculative copy of a member would fence its original."""
    if value is not None and value.strip().lower() == "true":
        raise ConfigError(
            "spark.speculation=true cannot be used with a fleet: a copy of a member would push "
            "the original out of its group: set it to false"
        )


def _check_given_session(settings: FleetSettings) -> None:
    for name in ("master", "conf"):
        if getattr(settings, name):
            raise ConfigError(
                f"{name}= cannot be given with spark=: the session has its own; make the session "
                f"with it, or leave spark= out"
            )
    if not hasattr(settings.spark, "sparkContext") or "connect" in type(settings.spark).__module__:
        raise ConfigError(
            "spark= must be a classic SparkSession: Spark Connect cannot hold members; give "
            "master= instead"
        )


def _check_slots(master: str, members: int) -> None:
    """Local masters say how many tasks they run at once."""
    slots = local_slots(master)
    if slots is not None and slots < members:
        raise ConfigError(
            f"master={master!r} runs {slots} tasks at once and members={members}: each member "
            f"holds a slot, so give at most members={slots}, or a larger master"
        )


def local_slots(master: str) -> int | None:
    """How many tasks a local master runs at once; None where that is not in its URL."""
    cluster = _LOCAL_CLUSTER.match(master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    local = _LOCAL.match(master)
    return int(local[1]) if local and local[1] not in (None, "*") else None


def effective_master(master: str | None, members: int) -> str:
    """The master's URL as Spark gets it.

    A local one only retries tasks when a second number says how often: without it the first kill
    would end everything.
    """
    if master is None:
        return f"local[{members},{TASK_FAILURES_MAX}]"
    local = _LOCAL.match(master)
    if local is None or local[2] is not None:
        return master
    slots = local_slots(master) or (max(members, os.cpu_count() or 1) if local[1] else members)
    return f"local[{slots},{TASK_FAILURES_MAX}]"


def check_java() -> None:
    """Raise ConfigError unless Spark will find a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        where = f"JAVA_HOME={home} has none" if home else "none was found"
        raise ConfigError(f"Spark runs on Java and {where}: {_JAVA_CURE}")
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program} does not run ({error}): {_JAVA_CURE}") from error
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        version = found[1] if found else "of an unknown version"
        raise ConfigError(f"{program} is Java {version}, too old for Spark: {_JAVA_CURE}")


def check_master_answers(master: str) -> None:
    """A standalone master that is not there is a line now, not a minute of silence."""
    if not master.startswith("spark://"):
        return
    tried = []
    for address in master.removeprefix("spark://").split(","):
        try:
            parts = urlsplit(f"spark://{address}")
            where = (str(parts.hostname), parts.port or 7077)
            socket.create_connection(where, _MASTER_ANSWER_S).close()
        except (OSError, ValueError) as error:
            tried.append(f"{address}: {error}")
        else:
            return
    raise ConfigError(
        f"no Spark master answers at {master} ({'; '.join(tried)}): start one, or correct master="
    )


def on_this_machine(master: str) -> bool:
    """Whether the executors run here, where this Python and this file system are."""
    if master.startswith("local"):
        return True
    host = urlsplit(master).hostname if master.startswith("spark://") else None
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def choose_python(master: str, conf: Mapping[str, str]) -> None:
    """Executors on this machine run this Python, not whichever `python3` is first on the PATH."""
    chosen = {"spark.pyspark.python", "spark.pyspark.driver.python"} & set(conf)
    if "PYSPARK_PYTHON" not in os.environ and not chosen and on_this_machine(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
