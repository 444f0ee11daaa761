"""A query of some batches, its drivers one after the other, and whoever did not die with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from random import Random
from typing import Any

from perkey.spark.sink import protocol as p
from simulators.sink.kafka import QUERY, Client, Kafka, Row, Rows, Transaction

ATTEMPTS_MAX = 4
TURNS_MAX = 60_000
HEALED_DRIVERS_MAX = 12


class ViolationError(AssertionError):
    """A promise is broken: `each once`, `no refusal`, `ends`."""


class Actor:
    """An attempt of a task, or the end of a batch on the driver."""

    def __init__(self, world: World, name: str, batch: int, index: int, steps: Any) -> None:
        self.name, self.index = name, index
        self.client = Client(world.kafka, index, batch)
        self.turns: Generator[None, None, Any] = self.client.run(steps)
        self.result: Any = None
        self.error: p.SinkError | None = None
        self.over = False

    def turn(self) -> None:
        """One step."""
        try:
            next(self.turns)
        except StopIteration as stop:
            self.result, self.over = stop.value, True
        except p.SinkError as error:
            self.error, self.over = error, True


class Driver:
    """One run of the query, batch by batch, as Spark does it."""

    def __init__(self, world: World, session: str, tasks: int) -> None:
        self.world, self.session, self.tasks = world, session, tasks
        self.failed = ""
        self.over = False
        self._begin(world.finished + 1)

    def _begin(self, batch: int) -> None:
        self.batch = batch
        self.over = batch >= self.world.batches
        self.done: dict[int, p.Written] = {}
        self.attempts: dict[int, int] = {}
        self.running: list[Actor] = []
        self.waiting = [] if self.over else list(range(self.tasks))
        self.hook: Actor | None = None

    def start(self, index: int) -> None:
        """One more attempt of a task."""
        number = self.attempts[index] = self.attempts.get(index, 0) + 1
        task = p.Task(index, self.batch, self.session)
        steps = p.write_steps(task, iter(self.world.chunks(self.batch, self.tasks, index)))
        name = f"{self.session} b{self.batch} t{index}.{number}"
        self.running.append(Actor(self.world, name, self.batch, index, steps))

    def turn(self, dice: Random) -> None:
        """Something of it happens."""
        if self.waiting and (not self.running or dice.random() < 0.3):
            self.start(self.waiting.pop(0))
            return
        actor = self.hook or (dice.choice(self.running) if self.running else None)
        if actor is None:
            return
        actor.turn()
        if actor.over:
            self._ended(actor)

    def _ended(self, actor: Actor) -> None:
        if actor is self.hook:
            if actor.error is not None:
                self._fail(str(actor.error))
                return
            self.world.batch_is_finished(self, self.batch)
            if not self.over:
                self._begin(self.batch + 1)
            return
        self.running.remove(actor)
        if actor.error is None:
            self.done.setdefault(actor.index, actor.result)
        elif actor.index not in self.done:
            self.again(actor.index, str(actor.error))
        if len(self.done) == self.tasks:
            # attempts that are left go on as zombies
            self.world.zombies += self.running
            self.running, self.waiting = [], []
            tasks = [self.done[index] for index in range(self.tasks)]
            steps = p.finish_steps(self.batch, tasks)
            self.hook = Actor(self.world, f"{self.session} b{self.batch} end", self.batch, 0, steps)

    def again(self, index: int, why: str) -> None:
        """Another attempt, unless another runs or there were too many."""
        if any(actor.index == index for actor in self.running) or index in self.waiting:
            return
        if self.attempts.get(index, 0) >= ATTEMPTS_MAX or "taken over" in why:
            self._fail(why)
        else:
            self.waiting.append(index)

    def _fail(self, why: str) -> None:
        self.failed, self.over = why, True
        self.world.refused(self, why)


class World:
    """One seed."""

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        self.dice = Random(seed)
        self.trace = trace
        self.stats: Counter[str] = Counter()
        self.steps = 0
        self.kafka = Kafka(self._committed)
        self.batches = self.dice.randint(1, 4)
        self.finished = -1
        self.zombies: list[Actor] = []
        self.drivers: list[Driver] = []
        #: what a repeat of a batch gives: the same rows; other values for the same tasks
        self.other_values = self.dice.random() < 0.15
        #: others write rows that are equal to ours
        self.foreign = not self.other_values and self.dice.random() < 0.15
        self.many = self.dice.random() < 0.1
        topics = ["ta", "tb", "tc"][: 3 if self.dice.random() < 0.2 else 1]
        keys = self.dice.choice([1, 3, 8])
        values = self.dice.choice([1, 3, 1000])
        self.rows = [
            [
                Row(
                    self.dice.choice(topics), self.dice.randrange(keys), self.dice.randrange(values)
                )
                for _ in range(self.dice.randint(0, 14))
            ]
            for _ in range(self.batches)
        ]
        self.spread = "keys" if self.other_values else self.dice.choice(["keys", "round", "any"])
        self.layout = self._tasks()
        self.faults = self.dice.choice([0.002, 0.01, 0.03])
        self.written: Counter[tuple[int, Row]] = Counter()
        self.allowed: Counter[tuple[int, Row]] = Counter()
        #: batches finished by the way out, after a refusal
        self.given_up: set[int] = set()
        for batch, rows in enumerate(self.rows):
            self.allowed.update((batch, self._named(row)) for row in rows)

    def _row(self, topics: list[str], keys: int, values: int) -> Row:
        dice = self.dice
        return Row(dice.choice(topics), dice.randrange(keys), dice.randrange(values))

    def _tasks(self) -> int:
        return self.dice.randint(5, 9) if self.many else self.dice.randint(1, 4)

    def _named(self, row: Row) -> Row:
        return row._replace(value=0) if self.other_values else row

    def chunks(self, batch: int, tasks: int, index: int) -> list[Rows]:
        """The rows of one task, the same ones for the same number of tasks."""
        spread = Random(f"{batch} {tasks}")
        mine = [
            row
            for number, row in enumerate(self.rows[batch])
            if self._task_of(row, number, tasks, spread) == index
        ]
        if self.other_values:
            mine = [row._replace(value=self.dice.randrange(1000)) for row in mine]
        size = self.dice.randint(1, 4)
        return [Rows(mine[at : at + size]) for at in range(0, len(mine), size)]

    def _task_of(self, row: Row, number: int, tasks: int, spread: Random) -> int:
        if self.spread == "keys":
            return row.key * 7 % tasks
        return number % tasks if self.spread == "round" else spread.randrange(tasks)

    # -- the promises ------------------------------------------------------------------------------

    def _committed(self, transaction: Transaction) -> None:
        if transaction.id == "foreign":
            return
        for row in transaction.rows:
            name = (transaction.batch, self._named(row))
            self.written[name] += 1
            if self.written[name] > self.allowed[name] and name[0] not in self.given_up:
                raise ViolationError(f"each once: {name} is there {self.written[name]} times")

    def batch_is_finished(self, driver: Driver, batch: int) -> None:
        """Spark's commit log has it, unless the driver dies before."""
        self._check(batch)
        if self.dice.random() < 0.05:
            self.stats["died before the commit log"] += 1
            driver.failed, driver.over = "died", True
            return
        self.finished = max(self.finished, batch)

    def _check(self, batch: int) -> None:
        if batch in self.given_up:
            return
        for (of, row), copies in self.allowed.items():
            if of == batch and self.written[of, row] != copies:
                there = self.written[of, row]
                raise ViolationError(f"each once: {row} of batch {of}: {there} of {copies}")

    def refused(self, driver: Driver, why: str) -> None:
        """A run has ended with an error."""
        self._say(f"{driver.session} failed: {why}")
        self.stats["runs failed"] += 1
        if p.WAY_OUT not in why:
            return
        if not self.foreign:
            raise ViolationError(f"no refusal: {why}")
        self.stats["refused"] += 1
        self.given_up.add(driver.batch)
        self.finished = max(self.finished, driver.batch)

    # -- what happens ------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults for a while, then none: every row is there once."""
        healthy_after = self.dice.randint(50, 1500)
        healed = 0
        while self.finished < self.batches - 1:
            self.steps += 1
            if self.steps > TURNS_MAX:
                raise ViolationError("ends: the query does not come to its end")
            alive = [driver for driver in self.drivers if not driver.over]
            faults = self.steps < healthy_after
            if not alive:
                healed += not faults
                if healed > HEALED_DRIVERS_MAX:
                    raise ViolationError(f"ends: {self.drivers[-1].failed}")
                self._new_driver()
                continue
            if faults and self.dice.random() < self.faults:
                self._fault(self.dice.choice(alive))
            if self.zombies and self.dice.random() < 0.3:
                self._zombie_turn()
            else:
                self.dice.choice(alive).turn(self.dice)
            self._unblock(alive)
        for batch in range(self.batches):
            self._check(batch)

    def _new_driver(self) -> None:
        if not self.other_values and self.dice.random() < 0.6:
            self.layout = self._tasks()
        self.stats["runs"] += 1
        session = f"s{len(self.drivers)}"
        self._say(f"{session} starts with {self.layout} tasks at batch {self.finished + 1}")
        self.drivers.append(Driver(self, session, self.layout))

    def _zombie_turn(self) -> None:
        zombie = self.dice.choice(self.zombies)
        zombie.turn()
        if zombie.over:
            self.zombies.remove(zombie)
            self.stats["zombies refused" if zombie.error else "zombies ended"] += 1

    def _fault(self, driver: Driver) -> None:
        what = self.dice.choice(
            ["kill", "lose", "copy", "crash", "crash", "time out", "foreign", "split"]
        )
        self.stats[what] += 1
        if what in ("kill", "lose") and driver.running:
            actor = self.dice.choice(driver.running)
            driver.running.remove(actor)
            self._say(f"{what} {actor.name}")
            if what == "lose":
                self.zombies.append(actor)
            if actor.index not in driver.done:
                driver.again(actor.index, "lost")
        elif what == "copy" and driver.running:
            driver.start(self.dice.choice(driver.running).index)
        elif what == "crash":
            self._crash(driver)
        elif what == "split":
            self._new_driver()
        elif what == "time out":
            self.kafka.time_out(self.dice.choice([*self.kafka.holders, QUERY])) if (
                QUERY in self.kafka.holders
            ) else None
        elif what == "foreign":
            self._foreign()

    def _crash(self, driver: Driver) -> None:
        self._say(f"{driver.session} crashes")
        driver.failed, driver.over = "crashed", True
        left = driver.running + ([driver.hook] if driver.hook else [])
        self.zombies += [actor for actor in left if self.dice.random() < 0.5]

    def _foreign(self) -> None:
        """Another producer writes, and does not always end its transaction soon."""
        rows = [row for batch in self.rows for row in batch]
        if not rows:
            return
        row = self.dice.choice(rows)
        if not self.foreign:
            row = row._replace(value=row.value + 10_000)
        epoch = self.kafka.open("foreign")
        self.kafka.append(self.kafka.transaction("foreign", epoch), [row])
        if self.dice.random() < 0.7:
            self.kafka.commit("foreign", epoch)

    def _unblock(self, alive: list[Driver]) -> None:
        """Where all wait for transactions, the oldest of the dead time out."""
        running = [a for d in alive for a in ([d.hook] if d.hook else d.running)]
        if running and all(actor.client.blocked for actor in running):
            for id_ in list(self.kafka.holders):
                self.kafka.time_out(id_)

    def _say(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.steps}: {line}")
