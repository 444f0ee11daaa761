"""How a fleet ends: which reason came first, and the report."""

from __future__ import annotations

from weft.spark.fleet.drained import GroupDrain
from weft.spark.fleet.roster import Roster
from weft.types import ErrorInfo, RunReport


class Ending:
    """What is known of the end so far."""

    def __init__(self) -> None:
        #: (exit code, reason, error) of what ends the run before its time
        self.fatal: tuple[int, str, list[str] | None] | None = None
        self.drained = False
        self._parked = 0

    def break_off(self, code: int, reason: str, error: list[str] | None = None) -> bool:
        """End for this reason; False when there was one before."""
        first = self.fatal is None
        if first:
            self.fatal = (code, reason, error)
        return first

    def note_drained(self, parked: int) -> None:
        """All that was there at the start is finished with, beside what is parked."""
        self.drained, self._parked = True, parked

    def confirm(self, drain: GroupDrain | None, roster: Roster) -> None:
        """After everybody has left: ask the broker whether the drain is committed."""
        if drain is None or not self.drained or self.fatal is not None or self._parked:
            return
        parked = [where for where, at_end in roster.finished().items() if not at_end]
        missing = drain.missing(parked)
        if missing:
            names = ", ".join(f"{topic}[{number}]" for topic, number in missing[:5])
            self.break_off(
                1, f"a member was killed while it left: {names} not committed to the end"
            )

    def outcome(self, signalled: int | None) -> tuple[int, str]:
        """(exit code, reason); `signalled` is the exit code of a second signal."""
        if signalled is not None:
            return signalled, "stopped by a second signal"
        if self.fatal is not None:
            return self.fatal[0], self.fatal[1]
        if self.drained and self._parked:
            return 3, "drained, but parked records remain"
        return (0, "drained") if self.drained else (0, "stopped")

    def report(self, roster: Roster, signalled: int | None, seconds: float) -> RunReport:
        """The run's report, with the counts of all members and their lives."""
        code, reason = self.outcome(signalled)
        error = None if self.fatal is None else self.fatal[2]
        total = roster.total
        return RunReport(
            exit_code=code,
            reason=reason,
            done=total("done"),
            failed_attempts=total("failures"),
            retried=total("retries"),
            dead_lettered=total("dead_lettered"),
            skipped=total("skipped"),
            parked=total("parked"),
            superseded=total("superseded"),
            seconds=seconds,
            error=None if not error else ErrorInfo(*error),
        )
