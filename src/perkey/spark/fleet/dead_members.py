"""Dead members of runs whose driver is dead: removed from the group instead of waited for.

librdkafka has no call for Kafka's `removeMembersFromConsumerGroup`. The protocol itself allows it:
a client with the same static id replaces that member, and may leave with its id.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from perkey import guard
from perkey.errors import PerkeyError
from perkey.kafka.admin import KafkaAdmin, StaticMember
from perkey.kafka.connect import Connection, RealConnection
from perkey.kafka.ports import KafkaUnavailable
from perkey.runtime.logs import event
from perkey.runtime.member.transactor import stable_id
from perkey.spark.fleet.limits import HELLO_BYTES_MAX
from perkey.spark.fleet.membership import driver_of, instance_name, run_of, static_id
from perkey.spark.fleet.wire import Wire, WireError
from perkey.types import TopicPartition

_log = logging.getLogger("perkey")

#: how long orphans of a dead driver have to finish running calls, commit and leave by themselves
GRACE_S = 3.0
#: how long a run looks for members of earlier runs: after that a session has passed
LOOK_FOR_S = 60.0
_LOOK_EVERY_S = 0.5
_ANSWER_S = 5.0
_DIAL_S = 1.0
_PUSH_S = 6.0
#: attempts for members that no living one waits for: of an earlier run, or the run's own at its end
PUSHES_MAX = 10
#: pause between two: the reason may be temporary, or the group's list a moment old
_AGAIN_S, _AGAIN_MAX_S = 1.0, 5.0
#: after so long the broker has ended a dead member's transaction by itself
_TRANSACTION_S = 20.0


class DeadMembers:
    """Removes what earlier runs left in the group; looks for it on a separate thread."""

    def __init__(
        self,
        group: str,
        run: str,
        topics: Sequence[str],
        connect: Callable[[str], Connection],
        *,
        transactional: bool,
    ) -> None:
        """`connect` creates the clients of a member with this static id.

        `transactional`: members produce in transactions, and a dead one may have left one open.
        """
        self.group = group
        self._run, self._topics, self._connect = run, topics, connect
        self._transactional = transactional
        self._over = threading.Event()
        self._since: dict[str, float] = {}
        #: members whose failed removal was logged: later failures mostly have the same reason
        self._logged: set[str] = set()

    def look(self) -> None:
        """Start looking; returns immediately."""
        guard.thread("perkey-dead-members", self._look).start()

    def close(self) -> None:
        """Stop looking."""
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

    def static_id(self, index: int, suffix: int) -> str:
        """The id of one of this run's members."""
        return static_id(instance_name(self.group, self._run), index, suffix)

    def in_the_group(self, names: Sequence[str]) -> list[str]:
        """Those of them that are in the group; all if it cannot be described now."""
        found = self._static_members()
        there = set(names) if found is None else {one.instance_id for one in found}
        return [name for name in names if name in there]

    def push_out(self, names: Sequence[str], pushes_max: int | None = None) -> list[str]:
        """Make these leave the group; returns those still in it, after this many attempts.

        They must be dead: a living one would be fenced. Repeated until none is listed, because an
        attempt has no effect if a rebalance takes longer than the wait for it (a client that joins
        and disconnects keeps a place for a session), or if brokers are away or refuse.
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
        """The group's static members; None if it cannot be described now."""
        try:
            with self.admin() as admin:
                return admin.static_members(self.group, _ANSWER_S)
        except (KafkaUnavailable, PerkeyError) as error:
            _log.debug("the group cannot be described now: %s", error)
            return None

    def _look(self) -> None:
        """Remove members whose time is over, as long as any remain to be checked."""
        until, mine = time.monotonic() + LOOK_FOR_S, (None, self._run)
        while time.monotonic() < until:
            found = self._static_members()
            if found is not None:  # otherwise the brokers may be back in a moment
                others = [one for one in found if run_of(one.instance_id, self.group) not in mine]
                if not others:
                    return
                dead = [one.instance_id for one in others if driver_is_dead(one)]
                now = time.monotonic()
                self._since = {name: self._since.get(name, now) for name in dead}
                due = [name for name, since in self._since.items() if now - since >= GRACE_S]
                left = self.push_out(due, PUSHES_MAX) if due else []
                if gone := sorted({*due} - {*left}):
                    what = "pushed out what an earlier run left in the group"
                    event("warning", what, members=",".join(gone))
                if left:
                    what = "what an earlier run left is still in the group"
                    event("warning", what, members=",".join(sorted(left)))
            if self._over.wait(_LOOK_EVERY_S):
                return

    def _take_and_leave(self, name: str) -> None:
        try:
            consumer = self._connect(name).consumer()
            consumer.subscribe(self._topics, _NoCallbacks())
            consumer.leave(_PUSH_S)  # waits for the end of the join
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            level = "debug" if name in self._logged else "warning"
            self._logged.add(name)
            event(level, "push-out failed", member=name, reason=reason)

    def _end_transaction(self, name: str) -> None:
        """Abort a dead member's open transaction: it blocks the next owner's reads."""
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
    """A listener that starts none of its partitions."""

    def on_assigned(self, _partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Start none."""
        return {}

    def on_revoked(self, _partitions: Sequence[TopicPartition]) -> None:
        """Nothing to finish."""

    on_lost = on_revoked


def driver_is_dead(member: StaticMember) -> bool:
    """Whether the driver of a member's run is known to be gone. False if that is unknown.

    It is if its port refuses connections on its own machine, or another run answers there. A port
    that does not answer may be behind a firewall; then the session time-out decides.
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
    run = None if challenge is None else challenge.get("run")
    return isinstance(run, str) and run != place.run
