"""Dead members of runs whose driver is dead: removed from the group instead of waited for.

Kafka's admin call for it, `removeMembersFromConsumerGroup`, is in no librdkafka. The protocol
itself allows it: a client with the same static id replaces that member, and may leave with its id.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft import guard
from weft.errors import WeftError
from weft.kafka.admin import KafkaAdmin, StaticMember
from weft.kafka.connect import Connection, RealConnection
from weft.kafka.ports import KafkaUnavailable
from weft.runtime.logs import event
from weft.runtime.member.transactor import stable_id
from weft.spark.fleet.limits import HELLO_BYTES_MAX
from weft.spark.fleet.membership import driver_of, instance_name, run_of, static_id
from weft.spark.fleet.wire import Wire, WireError
from weft.types import TopicPartition

_log = logging.getLogger("weft")

#: Orphans of a dead driver get so long to finish what runs, commit and leave by themselves.
GRACE_S = 3.0
#: A run looks for what earlier ones left for so long: after that a session has passed.
LOOK_FOR_S = 60.0
_LOOK_EVERY_S = 0.5
_ANSWER_S = 5.0
_DIAL_S = 1.0
_PUSH_S = 6.0
#: of members that no living one waits for: what an earlier run left, or the run's own at its end
PUSHES_MAX = 10
#: between two: the reason may pass, and the group may list for a moment what has left
_AGAIN_S, _AGAIN_MAX_S = 1.0, 5.0
#: after so long the broker has ended a dead member's transaction by itself
_TRANSACTION_S = 20.0


class DeadMembers:
    """What earlier runs left in the group; looked for on a thread of its own."""

    def __init__(
        self,
        group: str,
        run: str,
        topics: Sequence[str],
        connect: Callable[[str], Connection],
        *,
        transactional: bool,
    ) -> None:
        """`connect` makes the clients of a member with this static id.

        `transactional`: members produce in transactions, and a dead one may have left one open.
        """
        self.group = group
        self._run, self._topics, self._connect = run, topics, connect
        self._transactional = transactional
        self._over = threading.Event()
        self._since: dict[str, float] = {}
        #: whose failed push-out was logged: the next ones mostly have the same reason
        self._logged: set[str] = set()

    def look(self) -> None:
        """Begin; returns at once."""
        guard.thread("weft-dead-members", self._look).start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def push_out_own(self) -> list[str]:
        """After this run has ended: remove its members that are still in the group."""
        names = [one.instance_id for one in self._static_members() or ()]
        ours = [name for name in names if run_of(name, self.group) == self._run]
        return self.push_out(ours, PUSHES_MAX)

    def admin(self) -> KafkaAdmin:
        """A new client that can describe the group."""
        connection = self._connect("")
        assert isinstance(connection, RealConnection)
        return KafkaAdmin(connection.settings)

    def static_id(self, index: int, seat: int) -> str:
        """The id of one of this run's members."""
        return static_id(instance_name(self.group, self._run), index, seat)

    def in_the_group(self, names: Sequence[str]) -> list[str]:
        """Which of them are; all where the group cannot be described now."""
        found = self._static_members()
        there = set(names) if found is None else {one.instance_id for one in found}
        return [name for name in names if name in there]

    def push_out(self, names: Sequence[str], pushes_max: int | None = None) -> list[str]:
        """Have these leave the group; those that are in it still, after so many pushes.

        They must be dead: one that lives would be fenced. Again until none is listed, for a push
        ends without a result where a rebalance takes longer than the wait for it (who asks to join
        and goes has a place in the group for a session), and where brokers are away or refuse.
        """
        ends = _started(self._end_transaction, names) if self._transactional else []
        left, pushes, pause_s = list(names), 0, _AGAIN_S
        while left and (pushes_max is None or pushes < pushes_max):
            for thread in _started(self._take_and_leave, left):
                thread.join(_PUSH_S * 2)
            pushes += 1
            if not (left := self.in_the_group(left)) or self._over.wait(pause_s):
                break
            pause_s = min(pause_s * 2, _AGAIN_MAX_S)
            left = self.in_the_group(left)
        for thread in ends:
            thread.join(_PUSH_S)
        return left

    # -- inside ------------------------------------------------------------------------------------

    def _static_members(self) -> list[StaticMember] | None:
        """Those of the group; None where it cannot be described now."""
        try:
            with self.admin() as admin:
                return admin.static_members(self.group, _ANSWER_S)
        except (KafkaUnavailable, WeftError) as error:
            _log.debug("the group cannot be described now: %s", error)
            return None

    def _look(self) -> None:
        """Remove members whose time is over, as long as any remain to be checked."""
        until, mine = time.monotonic() + LOOK_FOR_S, (None, self._run)
        while time.monotonic() < until:
            found = self._static_members()
            if found is not None:  # else the brokers may be back in a moment
                others = [one for one in found if run_of(one.instance_id, self.group) not in mine]
                if not others:
                    return
                dead = [one.instance_id for one in others if driver_is_dead(one)]
                now = time.monotonic()
                self._since = {name: self._since.get(name, now) for name in dead}
                due = [name for name, since in self._since.items() if now - since >= GRACE_S]
                if due:
                    self.push_out(due, PUSHES_MAX)
                    what = "pushed out what an earlier run left in the group"
                    event("warning", what, members=",".join(sorted(due)))
            if self._over.wait(_LOOK_EVERY_S):
                return

    def _take_and_leave(self, name: str) -> None:
        try:
            consumer = self._connect(name).consumer()
            consumer.subscribe(self._topics, _NoCallbacks())
            consumer.leave(_PUSH_S)  # which waits for the end of the join
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            level = "debug" if name in self._logged else "warning"
            self._logged.add(name)
            event(level, "push-out failed", member=name, reason=reason)

    def _end_transaction(self, name: str) -> None:
        """Abort what a dead member left open: who gets its partitions cannot read them before."""
        until = time.monotonic() + _TRANSACTION_S
        while True:
            try:
                transactions = self._connect(name).transactions(stable_id(self.group, name))
                transactions.open()
                transactions.close()
            except Exception as error:
                _log.debug("the transaction of %s could not be ended: %s", name, error)
                if time.monotonic() >= until or self._over.wait(_AGAIN_S):
                    return
            else:
                return


def _started(task: Callable[[str], None], names: Sequence[str]) -> list[threading.Thread]:
    threads = [threading.Thread(target=task, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    return threads


class _NoCallbacks:
    """Takes its partitions and begins none."""

    def on_assigned(self, _partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Nothing is read."""
        return {}

    def on_revoked(self, _partitions: Sequence[TopicPartition]) -> None:
        """Nothing to finish."""

    def on_lost(self, _partitions: Sequence[TopicPartition]) -> None:
        """Nothing to drop."""


def driver_is_dead(member: StaticMember) -> bool:
    """Whether the driver of a member's run is known to be gone. False where one cannot know.

    Its port refuses on its own machine, or another run's channel answers there. A port that only
    does not answer may be behind a firewall; then the session time-out decides.
    """
    place = driver_of(member.client_id)
    if place is None:
        return False
    try:
        peer = socket.create_connection((place.host, place.port), _DIAL_S)
    except ConnectionRefusedError:
        return place.machine == socket.gethostname()
    except OSError:
        return False
    wire = Wire(peer)
    try:
        challenge = wire.receive(HELLO_BYTES_MAX, deadline=time.monotonic() + _DIAL_S)
    except WireError:
        return False
    finally:
        wire.close()
    run: Any = None if challenge is None else challenge.get("run")
    return isinstance(run, str) and run != place.run
