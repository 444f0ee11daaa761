"""How a fleet ends: which reason came first, and the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from perkey.kafka.ports import AdminPort, KafkaUnavailable
from perkey.runtime.run.drain import Reachable
from perkey.spark.fleet.roster import Roster
from perkey.types import ErrorInfo, RunReport, TopicPartition

_log = logging.getLogger("perkey")

_ANSWER_S = 10.0
_ASK_EVERY_S = 1.0
#: The broker answers a transaction's end before its offsets can be read, usually by
#: milliseconds.
_VISIBLE_S = 10.0
_LOOK_S = 0.05


class GroupDrain:
    """`until="drained"`: the ends at the start of the run that the group has not reached.

    A partition is finished when the group has committed its end, or when the member that owns it
    reports that: parked records are never committed.
    """

    def __init__(
        self,
        admin: AdminPort,
        group: str,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self._admin, self._group = admin, group
        self._left = {where: end for where, end in ends.items() if end > starts.get(where, 0)}
        self._asked_at = 0.0
        self._reachable = Reachable(admin)

    def ends(self) -> list[list[Any]]:
        """[topic, partition, end] of all partitions with records."""
        return [[*where, end] for where, end in self._left.items()]

    def over(self, finished: Iterable[TopicPartition]) -> bool:
        """Whether only partitions that members report as finished remain."""
        elsewhere = set(self._left) - set(finished)
        if elsewhere and time.monotonic() - self._asked_at > _ASK_EVERY_S:
            self._asked_at = time.monotonic()
            self._left = self._reachable.of(self._left)
            self._strike(elsewhere & set(self._left))
            elsewhere &= set(self._left)
        return not elsewhere

    def missing(self, parked: Iterable[TopicPartition]) -> list[TopicPartition]:
        """After all members have left: what the group has not committed, except parked partitions.

        Not empty if a member was killed while it left. Waits for the last offsets.
        """
        beside, until = set(parked), time.monotonic() + _VISIBLE_S
        while True:
            self._strike(set(self._left) - beside)
            left = sorted(set(self._left) - beside)
            if not left or time.monotonic() >= until:
                return left
            time.sleep(_LOOK_S)

    def _strike(self, partitions: set[TopicPartition]) -> None:
        """Remove the partitions whose end the group has committed."""
        if not partitions:
            return
        try:
            held = self._admin.group_offsets(self._group, sorted(partitions), _ANSWER_S)
        except KafkaUnavailable as error:
            _log.debug("the group's offsets cannot be read now: %s", error)
            return
        for where in partitions:
            offset = held.get(where)
            if offset is not None and offset >= self._left[where]:
                del self._left[where]


class Ending:
    """What is known of the end so far."""

    def __init__(self) -> None:
        #: (exit code, reason, error) of an early end
        self.fatal: tuple[int, str, list[str] | None] | None = None
        self.drained = False
        self._parked = 0

    def break_off(self, code: int, reason: str, error: list[str] | None = None) -> bool:
        """End for this reason; False if there was one before."""
        if self.fatal is not None:
            return False
        self.fatal = (code, reason, error)
        return True

    def note_drained(self, parked: int) -> None:
        """Everything present at the start is finished, except for parked records."""
        self.drained, self._parked = True, parked

    def confirm(self, drain: GroupDrain | None, roster: Roster) -> None:
        """After all members have left: check with the broker that the drain is committed."""
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
        return 0, "drained" if self.drained else "stopped"

    def report(self, roster: Roster, signalled: int | None, seconds: float) -> RunReport:
        """The run's report, with the counts of all members, also of killed ones."""
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
