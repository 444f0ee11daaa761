"""The runs: the plain loop, one process, Spark with a kill, alerts into a table."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.children import Child, Children, DemoError, descendants
from demo.stage import ALERTS, LOCAL, PLAIN, POSITIONS, SPARK, Service, group_of
from demo.witness import Answer

#: Calls in flight in all, whatever the number of members.
CONCURRENCY = 300
MEMBERS = 2
MEMBER_CONCURRENCY = CONCURRENCY // MEMBERS
KILL_AT = 0.35
_LOOK_S = 0.1
_LOOK_AROUND_S = 1.0
#: Far more than a slow machine needs; for what hangs.
_NO_PROGRESS_S = 180.0
#: For a JVM that lives some seconds, C2 and parallel collectors cost more than they bring.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: (records done, what else is to say)
Progress = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Kill:
    """A member that was killed with -9: its process id, and when, as UNIX seconds."""

    pid: int
    at: float


@dataclass(slots=True)
class Runs:
    """What all runs need: processes, the service, the broker's address, where files go."""

    children: Children
    service: Service
    bootstrap: str
    folder: Path
    work: Path
    _looked_at: float = 0.0

    def plain(self, seconds: float, on_progress: Progress) -> None:
        """The plain loop for so long."""
        arguments = (self.bootstrap, self.service.url(PLAIN), POSITIONS, str(seconds))
        child = self.children.start("plain", "demo.plain", *arguments)
        self._until_it_ends(child, PLAIN, on_progress)

    def perkey_in_one_process(self, on_progress: Progress) -> None:
        """`perkey run demo.geofence:app --until drained`."""
        child = self._perkey(LOCAL, CONCURRENCY)
        self._until_it_ends(child, LOCAL, on_progress)

    def perkey_on_spark(self, records: int, on_progress: Progress) -> Kill:
        """The same with `--engine spark`; one member's process is killed with -9 on the way."""
        fleet = ("--engine", "spark", "--members", str(MEMBERS), "--master", f"local[{MEMBERS}]")
        child = self._perkey(SPARK, MEMBER_CONCURRENCY, *fleet, *self._spark_options())
        kill: Kill | None = None

        def look(done: int, said: str) -> None:
            nonlocal kill
            if kill is None and done >= KILL_AT * records:
                kill = self._kill_one(child)
            on_progress(done, f"process {kill.pid} killed with -9" if kill else said)

        self._until_it_ends(child, SPARK, look)
        if kill is None:
            raise DemoError("the run on Spark was over before a member could be killed")
        return kill

    def table(self) -> None:
        """The alerts of the run on Spark, into Parquet."""
        arguments = (self.bootstrap, ALERTS[SPARK], str(self.folder))
        child = self.children.start("table", "demo.table", *arguments, env=self._spark_env())
        self._wait(child)

    def _perkey(self, run: str, concurrency: int, *options: str) -> Child:
        env = {
            "GEOFENCE_BOOTSTRAP": self.bootstrap,
            "GEOFENCE_SERVICE": self.service.url(run),
            "GEOFENCE_GROUP": group_of(run),
            "GEOFENCE_ALERTS": ALERTS[run],
            "GEOFENCE_CONCURRENCY": str(concurrency),
        }
        arguments = ("run", "demo.geofence:app", "--until", "drained", *options)
        return self.children.start(
            f"perkey-{run}", "perkey.cli.main", *arguments, env={**env, **self._spark_env()}
        )

    def _spark_env(self) -> dict[str, str]:
        return {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.work),
            "PYSPARK_PYTHON": sys.executable,
        }

    def _spark_options(self) -> Sequence[str]:
        java = f"spark.driver.extraJavaOptions={JAVA_OPTIONS} -Djava.io.tmpdir={self.work}"
        return ("--conf", "spark.ui.enabled=false", "--conf", java)

    def _kill_one(self, driver: Child) -> Kill | None:
        """Kill the member that has done most; only what our own driver has started is killed."""
        ours = {pid for pid, _ in descendants(driver.process.pid)}
        counts = self.service.counts(SPARK)
        busiest = max((pid for pid in counts if pid in ours), key=lambda p: counts[p], default=None)
        if busiest is None:
            return None
        os.kill(busiest, signal.SIGKILL)
        return Kill(busiest, time.time())

    def _until_it_ends(self, child: Child, run: str, on_progress: Progress) -> None:
        """Show how far it is, until it has ended well."""
        done, moved_at = 0, time.monotonic()
        while child.exit_code is None:
            self._look()
            counts = self.service.counts(run)
            if sum(counts.values()) != done:
                done, moved_at = sum(counts.values()), time.monotonic()
            on_progress(done, "")
            if time.monotonic() - moved_at > _NO_PROGRESS_S:
                raise DemoError(f"{child.name} has done nothing for {_NO_PROGRESS_S:.0f} s")
            time.sleep(_LOOK_S)
        child.check()
        on_progress(sum(self.service.counts(run).values()), "")

    def _look(self) -> None:
        """Now and then: asking `ps` costs some milliseconds."""
        if time.monotonic() - self._looked_at > _LOOK_AROUND_S:
            self._looked_at = time.monotonic()
            self.children.look()

    def _wait(self, child: Child) -> None:
        deadline = time.monotonic() + _NO_PROGRESS_S
        while child.exit_code is None:
            self._look()
            if time.monotonic() > deadline:
                raise DemoError(f"{child.name} has not ended within {_NO_PROGRESS_S:.0f} s")
            time.sleep(_LOOK_S)
        child.check()


def rate_of(answers: Sequence[Answer]) -> float:
    """Records per second, from the first call's begin to the last one's end, as the service saw it.

    Only the first final answer of a position counts: repeats are no throughput.
    """
    done = {(one.vehicle, one.seq) for one in answers if one.final}
    if not done:
        return 0.0
    seconds = max(one.end for one in answers) - min(one.begin for one in answers)
    return len(done) / max(seconds, 1e-6)


def rates_over_time(answers: Sequence[Answer], bin_s: float) -> list[tuple[float, float]]:
    """(seconds since the run's first call, records per second) for each time bin."""
    begin = min((one.begin for one in answers), default=0.0)
    counts: dict[int, int] = {}
    for one in answers:
        if one.final:
            index = int((one.end - begin) / bin_s)
            counts[index] = counts.get(index, 0) + 1
    last = max(counts, default=-1)
    return [((i + 0.5) * bin_s, counts.get(i, 0) / bin_s) for i in range(last + 1)]
