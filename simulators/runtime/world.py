"""The run of one group: members start and end, records arrive, faults happen and heal."""

from __future__ import annotations

import random
from typing import Any

from perkey.app import RunHandle
from perkey.core.states import SUPERSEDED
from perkey.core.work import Work
from perkey.types import TopicPartition
from simulators.core.violation import Violation
from simulators.runtime.broker import Network, SimKafka
from simulators.runtime.handlers import make_app
from simulators.runtime.oracle import Oracle
from simulators.runtime.patches import installed
from simulators.runtime.prompt import Prompt
from simulators.runtime.setup import DEAD, OUTPUT, TOPIC, Odds, draw
from simulators.runtime.stage import Stage
from simulators.runtime.taps import Taps, tapped

#: after all faults: something more is done in so much time
HEAL_S = 200.0
STOP_S = 60.0
LOOK_S = 0.1


class World(Stage):
    """Everything of one seed."""

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        super().__init__(draw(seed))
        self.sim.trace = trace
        self.oracle = Oracle(self)
        self.taps = Taps(self, self.oracle)
        self.prompt = Prompt(self, self.oracle, self.taps)
        self.machine.on_killed = self.oracle.cut_off
        self.kafka: SimKafka
        self.handles: dict[str, RunHandle] = {}
        self._stops: dict[str, str] = {}
        self._script = random.Random(f"script {seed}")
        self._members = 0

    def run(self) -> None:
        """Live it. Raises Violation where a promise does not hold."""
        shuffle, ahead = self.setup.shuffle, self.setup.ahead
        with (
            installed(self.sim, self.machine, shuffle=shuffle, ahead=ahead),
            tapped(self.taps),
        ):
            try:
                self.sim.on_quiet = self.prompt.look
                self.sim.run(self._live)
            finally:
                kafka = getattr(self, "kafka", None)
                if kafka is not None:
                    kafka.close()
        if self.sim.violation is not None:
            raise self.sim.violation
        for name, error in self.sim.died:
            raise Violation("L1", f"thread {name} died: {type(error).__name__}: {error}") from error

    # -- the script --------------------------------------------------------------------------------

    def _live(self) -> None:
        self.kafka = SimKafka(self, self.oracle, Network(self))
        self.kafka.create_topic(TOPIC, self.setup.partitions)
        self.kafka.create_topic(OUTPUT)
        self.kafka.create_topic(DEAD)
        self._produce()
        self._join()
        for _ in range(self.setup.actions):
            self.sim.sleep(self.setup.pace_s * self._script.random())
            self._act()
        self._heal()
        self._end()

    def _act(self) -> None:
        roll = self._script.random()
        alive = self.alive()
        if roll < 0.45 or self.setup.calm:
            self._produce()
        elif roll < 0.6 and len(alive) < self.setup.members:
            self._join()
        elif roll < 0.72 and len(alive) > 1:
            self._stop(self._script.choice(alive))
        elif roll < 0.78 and len(alive) > 1:
            self._kill(self._script.choice(alive))
        elif roll < 0.83 and (running := self.machine.living()):
            self.sim.note("a worker is killed")
            self.oracle.stats["workers killed"] += 1
            self.machine.kill(self._script.choice(running))
        elif roll < 0.88 and self.setup.members > 1:
            self.sim.note("expire")
            self.kafka.expire_members("g")
        elif roll < 0.94:
            with self.kafka.changed:
                number = self._script.randrange(self.setup.partitions)
            self.kafka.leave_gap(TOPIC, number, self._script.choice((1, 3)))

    def _produce(self) -> None:
        for _ in range(self._script.randint(1, self.setup.produce_max)):
            key = f"k{self._script.randrange(self.setup.keys)}".encode()
            if self._script.random() < 0.05:
                key = b""
            number = self._script.randrange(self.setup.partitions)
            with self.kafka.changed:  # known before anybody can have read it
                sent = self.kafka.produce(TOPIC, b"x", key or None, partition=number)
                self.oracle.written(number, sent.offset, key or None)

    def _join(self) -> None:
        self._members += 1
        member = self.starting = f"m{self._members}"
        self.sim.note(f"{member} joins")
        app = make_app(self, self.oracle, self.kafka.bootstrap, member)
        self.handles[member] = app.start()
        self.starting = ""

    def _stop(self, member: str) -> None:
        mode: Any = self._script.choice(("in_flight", "in_flight", "buffered", "now"))
        self.sim.note(f"{member} stops {mode}")
        self._stops[member] = mode
        self.handles[member].stop(mode)

    def _kill(self, member: str) -> None:
        self.sim.note(f"{member} is killed")
        self.oracle.stats["killed"] += 1
        self.kafka.connections[member].kill()

    # -- the end -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        """No more faults: everything is done in bounded time."""
        self.sim.note("healed")
        self.odds = Odds()
        if not self.alive():
            self._join()
        latest, left, until = self.sim.now + self._slowest_s(), -1, 0.0
        while missing := self.oracle.missing():
            if len(missing) != left:
                left, until = len(missing), min(latest, self.sim.now + HEAL_S)
            if self.sim.now > until:
                self.oracle.broken("L1", f"not done when all had healed: {missing[:10]}")
            self.sim.sleep(LOOK_S)

    def _slowest_s(self) -> float:
        """In how much time all is done that is not: one after the other, through all attempts."""
        return HEAL_S + len(self.oracle.missing()) * self.setup.slowest_s

    def _end(self) -> None:
        if self._script.random() < 0.5:
            self.odds = self.setup.odds  # the end has its faults, too
        drained = self._script.random() < 0.5 and not self.is_last_faulty()
        if drained:
            self._drain()
        for member in self.alive():
            self._stops[member] = "in_flight"
            self.handles[member].stop("in_flight")
        for member, handle in self.handles.items():
            self._ended(member, handle)
        self.oracle.seen(self.kafka.records(OUTPUT))
        running = {place for call in self.oracle.calls.values() for place in call.open}
        left = [
            work
            for work, member in self.taps.granted.items()
            if not self.is_dead(member)
            and (work.partition.number, work.record.offset) not in running
            and not self._cut_off(work, member)
        ]
        if left:
            self.oracle.broken("structure", f"granted and never ended: {left}")

    def _cut_off(self, work: Work, member: str) -> bool:
        """Its epoch had ended, and its member ended before it could be told of."""
        if work.state != SUPERSEDED:
            return False
        place = (member, work.partition.number, work.record.offset)
        granted_at = self.oracle.granted_at[place]
        left_at = self.oracle.left_at.get(member, granted_at)
        return self.setup.kind == "processes" or left_at - granted_at < 1.0

    def is_last_faulty(self) -> bool:
        """Faults go on that may keep a run from ever being drained."""
        return self.odds.commit_lost > 0.3 or self.odds.commit_refused > 0.3

    def _drain(self) -> None:
        """The last members are replaced by one that runs until all is done."""
        for member in self.alive():
            self._stops[member] = "in_flight"
            self.handles[member].stop("in_flight")
        for member, handle in list(self.handles.items()):
            self._ended(member, handle)
        self._produce()
        self._members += 1
        member = self.starting = f"m{self._members}"
        self.handles[member] = make_app(self, self.oracle, self.kafka.bootstrap, member).start(
            until="drained"
        )
        self.starting = ""
        self._ended(member, self.handles[member], self._slowest_s())

    def _ended(self, member: str, handle: RunHandle, limit_s: float = STOP_S) -> None:
        try:
            report = handle.wait(limit_s)
        except TimeoutError:
            self.oracle.broken("L4", f"{member} has not ended after {limit_s} s")
            return
        if not self.is_dead(member) and report.exit_code not in (0, 3):
            self.oracle.broken("L1", f"{member} ended: {report.exit_code} {report.reason}")

    # -- what others ask ---------------------------------------------------------------------------

    def alive(self) -> list[str]:
        """Members that run and were not told to stop."""
        return [m for m in self.handles if not self.is_dead(m) and m not in self._stops]

    def is_dead(self, member: str) -> bool:
        """It was killed."""
        return member in self.kafka.connections and bool(self.kafka.connections[member].dead)

    def is_stopping(self, member: str) -> bool:
        """It was told to stop."""
        return member in self._stops or self.handles[member].over

    def has_failed(self, member: str) -> bool:
        """It ends for a reason of its own, which its report tells."""
        return member in self.handles and self.handles[member].snapshot()["state"] == "failed"

    def undisturbed(self, member: str) -> bool:
        """Nothing keeps its last commit from being stored, or its calls from being waited for."""
        odds = self.odds
        faults = (
            odds.transaction_lost + odds.transaction_unheard + odds.transaction_slow
            if self.setup.transactional
            else odds.commit_lost + odds.answer_lost + odds.commit_refused
        )  # fmt: skip
        there = self._member_id(member) in self.kafka.broker.group("g").members
        calm = not faults and not self.setup.stall_odds
        return calm and there and self._stops.get(member) != "now"

    def _member_id(self, member: str) -> str:
        return self.kafka.connections[member].member_id

    def owns(self, member: str, where: TopicPartition) -> bool:
        """The group has given it this partition, and not taken it back."""
        return self.kafka.broker.group("g").owner(where) == self._member_id(member)
