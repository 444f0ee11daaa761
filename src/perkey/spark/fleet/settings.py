"""The user's options for the fleet, checked before Java starts."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perkey.errors import ConfigError
from perkey.numeric import is_whole
from perkey.spark.fleet.limits import DIAL_IN_S, MEMBERS_MAX, TASK_FAILURES_MAX
from perkey.spark.requirements import check_connect_packages, check_spark_packages
from perkey.spark.table.sink import TableSink

JAVA_VERSION_MIN = 17
_JAVA_CURE = (
    f"install Java {JAVA_VERSION_MIN} or newer (Debian, Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk) or point JAVA_HOME at one"
)
_MASTER_ANSWER_S = 5.0
#: scheme -> what answers there, and its usual port
_SERVERS = {"spark": ("master", 7077), "sc": ("Connect server", 15002)}
_LOCAL = re.compile(r"^local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?$")
_LOCAL_CLUSTER = re.compile(r"^local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]$")
CONNECT = "sc://"
_CLUSTERS = ("spark://", "k8s://", CONNECT)
_MASTERS = (
    "local[N], local-cluster[N,CORES,MB], spark://HOST:PORT, yarn, k8s://HOST:PORT or "
    "sc://HOST:PORT (Spark Connect)"
)

#: Perkey's own keys in `conf`: the control channel's address for executors, and how long the driver
#: waits until all members have connected.
CONTROL_HOST, CONTROL_PORT = "perkey.control.host", "perkey.control.port"
CONTROL_WAIT = "perkey.control.wait_s"
#: Patterns of data files to ship with the app's sources, separated by commas.
SHIP_DATA = "perkey.ship.data"
OURS = (CONTROL_HOST, CONTROL_PORT, CONTROL_WAIT, SHIP_DATA)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The arguments of `app.run(engine="spark", ...)`."""

    members: int
    #: None: that of the given session, of spark-submit, or a local one with a slot per member
    master: str | None = None
    spark: Any = None
    conf: dict[str, str] = field(default_factory=dict)
    #: the table for results; None for topics
    sink: TableSink | None = None

    @property
    def wait_s(self) -> float:
        """How long all members may take to connect."""
        return float(self.conf.get(CONTROL_WAIT, DIAL_IN_S))

    @property
    def data(self) -> list[str]:
        """Patterns of the data files that are shipped with the app's sources."""
        return [one.strip() for one in self.conf.get(SHIP_DATA, "").split(",") if one.strip()]


def fleet_settings(
    members: object,
    master: object,
    spark: object,
    conf: Mapping[str, object] | None,
    sink: object = None,
) -> FleetSettings:
    """Check what is possible without Spark; raises ConfigError in one line."""
    if not is_whole(members, 1, MEMBERS_MAX):
        raise ConfigError(
            f'members={members!r}: engine="spark" needs the number of members, from 1 to '
            f"{MEMBERS_MAX}"
        )
    check_spark_packages()
    master, conf = _checked_master(master), _checked_conf(conf)
    if not (sink is None or isinstance(sink, TableSink)):
        raise ConfigError(
            f'sink={sink!r:.80}: give perkey.spark.DeltaTable("s3://bucket/checked", '
            'schema="inside boolean, zone string")'
        )
    if spark is not None:
        if master:
            raise ConfigError("master= cannot be given with spark=: the session has its own")
        _check_only_ours(conf, "spark=: the session")
        if not (hasattr(spark, "range") and hasattr(spark, "conf")):
            kind = type(spark).__name__
            raise ConfigError(f"spark= must be a SparkSession, not a {kind}")
    elif str(master).startswith(CONNECT):
        check_connect_packages()
        _check_only_ours(conf, f"master={master}: the server")
    elif master is not None:
        check_slots(master, members, f"master={master!r}", "master")
    return FleetSettings(members, master, spark, conf, sink)


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
        if name not in OURS and (not isinstance(name, str) or not name.startswith("spark.")):
            raise ConfigError(
                f"conf: {name!r:.80} is no Spark property, which start with spark., and none of "
                f"Perkey's: {', '.join(OURS)}"
            )
        if not isinstance(value, str | int | float):
            raise ConfigError(f"conf: {name} must be text or a number")
    checked = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in conf.items()
    }
    refuse_what_kills(checked.get)
    if "spark.master" in checked:
        raise ConfigError("conf: spark.master is given by master=")
    for name, low, high in ((CONTROL_PORT, 0, 65_535), (CONTROL_WAIT, 1, 86_400)):
        value = checked.get(name, str(low))
        if not (value.isdigit() and low <= int(value) <= high):
            raise ConfigError(f"conf: {name}={value}: give a whole number from {low} to {high}")
    return checked


#: Spark properties that would end members -> how.
_KILLERS = {
    "spark.speculation": "a copy of a member would push the original out of its group",
    "spark.python.worker.killOnIdleTimeout": "a member gives Spark nothing, so it seems idle",
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "a member gives Spark nothing, so it "
    "seems idle",
}


def refuse_what_kills(get: Callable[[str], str | None]) -> None:
    """Raise ConfigError for a property, wherever it was set, with which Spark would end members."""
    for name, how in _KILLERS.items():
        if str(get(name)).strip().lower() == "true":
            raise ConfigError(f"{name}=true cannot be used with a fleet: {how}: set it to false")


def _check_only_ours(conf: Iterable[str], whose: str) -> None:
    if sparks := [name for name in conf if name not in OURS]:
        raise ConfigError(
            f"conf {', '.join(sparks)} cannot be given with {whose} has its own: set it there"
        )


def check_slots(master: str, members: int, what: str, larger: str) -> None:
    """Local masters name the number of concurrent tasks; ConfigError if there are too few."""
    slots = local_slots(master)
    if slots is not None and slots < members:
        raise ConfigError(
            f"{what} runs {slots} concurrent tasks and members={members}: each member holds one, "
            f"so give at most members={slots}, or a larger {larger}"
        )


def local_slots(master: str) -> int | None:
    """How many concurrent tasks a local master runs; None if its URL does not have it."""
    cluster = _LOCAL_CLUSTER.match(master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    local = _LOCAL.match(master)
    return int(local[1]) if local and local[1] not in (None, "*") else None


def effective_master(master: str | None, members: int) -> str:
    """The master's URL for Spark.

    A local one retries tasks only with a second number: without it the first kill would end
    everything.
    """
    if master is None:
        return f"local[{members},{TASK_FAILURES_MAX}]"
    local = _LOCAL.match(master)
    if local is None or local[2] is not None:
        return master
    slots = local_slots(master) or (max(members, os.cpu_count() or 1) if local[1] else members)
    return f"local[{slots},{TASK_FAILURES_MAX}]"


def check_java() -> int:
    """The version of the Java that Spark will find; ConfigError if there is none or it is old."""
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
    return int(found[1])


def check_master_answers(master: str) -> None:
    """Report an unreachable master or Connect server now, instead of after minutes."""
    scheme, sign, addresses = master.partition("://")
    if scheme not in _SERVERS or not sign:
        return
    (kind, usual_port), tried = _SERVERS[scheme], []
    for address in addresses.split(","):
        try:
            parts = urlsplit(f"{scheme}://{address}")
            where = (str(parts.hostname), parts.port or usual_port)
            socket.create_connection(where, _MASTER_ANSWER_S).close()
        except (OSError, ValueError) as error:
            tried.append(f"{address}: {error}")
        else:
            return
    raise ConfigError(
        f"no Spark {kind} answers at {master} ({'; '.join(tried)}): start one, or correct master="
    )


def on_this_machine(master: str) -> bool:
    """Whether the executors run on this machine, with its Python and file system."""
    if master.startswith("local"):
        return True
    host = urlsplit(master).hostname if master.startswith("spark://") else None
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def choose_python(master: str, conf: Mapping[str, str]) -> None:
    """Executors on this machine use this Python, not the first `python3` on the PATH."""
    chosen = {"spark.pyspark.python", "spark.pyspark.driver.python"} & set(conf)
    if "PYSPARK_PYTHON" not in os.environ and not chosen and on_this_machine(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def control_address(conf: Mapping[str, str], bind: str, host: str) -> tuple[str, str, int]:
    """The control channel's (address to bind, address that executors dial, port).

    `bind` and `host` if the user gave no address.
    """
    given = conf.get(CONTROL_HOST)
    return given or bind, given or host, int(conf.get(CONTROL_PORT, "0"))
