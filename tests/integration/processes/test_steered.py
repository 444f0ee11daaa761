"""A poisoned release, its records parked, held and dead-lettered, kills, the fix, and all home."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.chaos import PATIENCE_S, Chaos, Child
from tests.support.command import perkey
from tests.support.exactness import read_committed
from tests.support.handler_log import Entry
from tests.support.verdict import judge

from perkey.observe.group_orders import ANSWER, command_key, kind_of, packed
from perkey.observe.orders import order_of

ATTEMPTS = 2
BECAUSE = ("--reason", "a poisoned release")


class Size(NamedTuple):
    """How many keys of each kind, and who handles them."""

    parked: int
    dead: int
    held: int
    fine: int
    members: int
    partitions: int


SHORT = Size(parked=60, dead=60, held=10, fine=60, members=1, partitions=2)
LONG = Size(parked=1_000, dead=1_000, held=200, fine=800, members=2, partitions=8)


class Steered:
    """The scenario, and what is known of it from outside."""

    def __init__(self, run: Chaos, size: Size) -> None:
        self.run, self.size = run, size
        self.group, self.topic, self.control = run.plan.group, run.plan.topic, run.plan.control
        self.servers = ("--bootstrap-servers", run.plan.bootstrap)
        self.parked, self.dead, self.held, self.fine = (
            [f"{name}{number}" for number in range(count)]
            for name, count in zip(("bad-park", "bad-dead", "hold", "fine"), size, strict=False)
        )
        self.members: list[Child] = []

    # -- members and records ---------------------------------------------------------------------

    def start(self, *, poisoned: bool) -> None:
        """Every member that does not run, each in its place: its partitions are its again."""
        for place in range(self.size.members):
            if place < len(self.members) and self.members[place].alive:
                continue
            kafka = {**self.run.plan.kafka, "group.instance.id": f"m{place}"}
            child = self.run.start(kafka=kafka, poisoned=poisoned)
            self.members[place : place + 1] = [child]

    def kill(self, *children: Child) -> None:
        """In the middle of work."""
        done = self.run.completed
        self.send(self.fine)
        self.run.until(lambda: self.run.completed > done, PATIENCE_S, "they work")
        for child in children:
            self.run.kill(child)

    def starts(self, places: set[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """How often each of these records was tried."""
        self.run.look()
        tried = (entry.record for entry in self.run.entries if entry.kind == "S")
        return Counter(place for place in tried if place in places)

    def send(self, *keys: Sequence[str]) -> None:
        """One record of each key."""
        self.run.send((key, b"v") for some in keys for key in some)

    def offsets(self, keys: Iterable[str]) -> set[tuple[int, int]]:
        """Where their records are."""
        wanted = set(keys)
        return {place for place, key in self.run.produced.items() if key in wanted}

    def wait(self, kind: str, keys: Iterable[str], times: int = 1) -> None:
        """Until each record of the keys has so many of these entries."""
        wanted = self.offsets(keys)

        def come() -> bool:
            self.run.look()
            found = Counter(entry.record for entry in self.run.entries if entry.kind == kind)
            return all(found[place] >= times for place in wanted)

        self.run.until(come, PATIENCE_S, f"{times} {kind} of {len(wanted)} records")

    # -- commands --------------------------------------------------------------------------------

    def perkey(self, *words: str) -> str:
        """`perkey WORDS…` of the group, given again until every member has obeyed; its output."""
        said: list[Any] = []

        def obeyed() -> bool:
            said[:] = [perkey(*words, *self.servers)]
            return said[0].returncode == 0

        try:
            self.run.until(obeyed, PATIENCE_S, f"perkey {' '.join(words)}")
        except AssertionError:
            raise AssertionError(f"{words}: {said[0].stdout}{said[0].stderr}") from None
        return str(said[0].stdout)

    def waiting(self) -> dict[tuple[int, int], bool]:
        """What the commits remember as parked (True) or held."""
        rows = json.loads(self.perkey("parked", "ls", "--group", self.group, "--json"))
        return {(one["partition"], one["offset"]): one["held_until"] is None for one in rows}

    def release_parked(self) -> None:
        """All of them, by the sockets of the members."""
        which = ("--group", self.group, "--where", 'state == "parked"')
        self.perkey("parked", "release", self.topic, *which, *BECAUSE)

    def hold(self) -> None:
        """The first key by `perkey key`, the others as a script does it."""
        by = ("--group", self.group, "--control", self.control)
        self.perkey("key", "hold", "--topic", self.topic, "--key", self.held[0], *by, *BECAUSE)
        self.by_script("hold", self.held[1:])

    def by_script(self, action: str, keys: Sequence[str]) -> None:
        """Write a command for each key to the control topic; every member answers each."""
        orders = [
            order_of(
                {
                    "action": action, "topic": self.topic, "key": key, "reason": BECAUSE[1],
                    "id": f"{action}-{key}",
                }
            )
            for key in keys
        ]  # fmt: skip
        producer = Producer({"bootstrap.servers": self.run.plan.bootstrap, "linger.ms": 5})
        for order in orders:
            producer.produce(self.control, packed(order), command_key(self.group, order))
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        left = Counter({order.id: len(self.members) for order in orders})
        reader = Consumer({"bootstrap.servers": self.run.plan.bootstrap, "group.id": "reader"})
        reader.assign([TopicPartition(self.control, 0, 0)])

        def answered() -> bool:
            for message in reader.consume(500, 0.1):
                kind, _, what = kind_of(message.key() or b"") or ("", "", ())
                if kind == ANSWER and what[0] in left:
                    assert b'"refused"' not in (message.value() or b""), message.value()
                    left[what[0]] -= 1
            return not +left

        self.run.until(answered, PATIENCE_S, f"{len(orders)} answers to {action}")
        reader.close()

    # -- the end ---------------------------------------------------------------------------------

    def home(self) -> dict[tuple[int, int], str]:
        """The records that came back from the dead-letter topic, with their keys.

        Each letter's record once, those of one key in the order of its letters.
        """
        letters = {
            tuple(int(dict(m.headers() or ())[f"__dlq.errors.{name}"] or b"") for name in PLACE)
            for m in read_committed(self.run.plan.bootstrap, f"{self.topic}.dlq")
        }
        assert letters == self.offsets(self.dead)
        found, order = dict[tuple[int, int], str](), defaultdict[str, list[int]](list)
        for message in read_committed(self.run.plan.bootstrap, self.topic):
            headers: dict[str, Any] = dict(message.headers() or ())
            if "__dlq.errors.replay.offset" in headers:
                partition, offset = message.partition(), message.offset()
                key = (message.key() or b"").decode()
                assert partition is not None
                assert offset is not None
                found[partition, offset] = key
                order[key].append(int(headers["__dlq.errors.replay.offset"]))
        assert len(found) == len(letters)
        assert all(offsets == sorted(set(offsets)) for offsets in order.values())
        return found


PLACE = ("partition", "offset")


def lettered_as_done(log: Sequence[Entry], dead: set[tuple[int, int]]) -> list[Entry]:
    """The log with what made a record a letter as its end: the last failure before its lane went on.

    A letter that a kill let come twice is a repeat, as of a record that was handled.
    """
    log, ends = sorted(log, key=lambda entry: entry.at), set[int]()
    open_: dict[tuple[int, str], int] = {}
    ended: set[tuple[int, int]] = set()
    for number, entry in enumerate(log):
        if entry.record not in dead:
            continue
        last = open_.get(entry.lane)
        if entry.kind == "S" and last is not None and log[last].offset < entry.offset:
            ends.add(last)
            ended.add(log[last].record)
            del open_[entry.lane]
        elif entry.kind == "F" and entry.record not in ended:
            open_[entry.lane] = number
    ends |= set(open_.values())
    return [one._replace(kind="E") if number in ends else one for number, one in enumerate(log)]


def first_of(produced: dict[tuple[int, int], str], keys: Iterable[str]) -> set[tuple[int, int]]:
    """The first record of each key."""
    wanted, found = set(keys), dict[str, tuple[int, int]]()
    for place, key in sorted(produced.items()):
        if key in wanted:
            found.setdefault(key, place)
    return set(found.values())


def test_a_letter_that_is_overtaken_is_found():
    """The judge of what follows: the next record of a key began before the letter's last try."""

    def problems(*words: str) -> list[str]:
        log = [
            Entry("S" if word[0] == "S" else "F", float(at), 1, 1, 0, int(word[1]), "bad-dead0")
            for at, word in enumerate(words)
        ]
        return judge(lettered_as_done(log, {(0, 5), (0, 7)}), {(0, 5), (0, 7)}).problems()

    assert not problems("S5", "F5", "S5", "F5", "S7", "F7")
    assert problems("S5", "F5", "S5", "S7", "F5", "F7")


@pytest.mark.parametrize(
    "size", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.long)]
)
@pytest.mark.timeout(600)
def test_a_poisoned_release_comes_home_in_order(
    chaos: Callable[..., Chaos], size: Size, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key's effects in offset order, none lost, none twice beyond the formula."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    plan = {"concurrency": 32, "attempts": ATTEMPTS, "dead_letters": True}
    control = f"steering-{uuid.uuid4().hex[:8]}"
    with chaos(seed=121, partitions=size.partitions, control=control, **plan) as run:
        run.broker.create_topic(f"{run.plan.topic}.dlq", size.partitions)
        scene = Steered(run, size)

        scene.start(poisoned=True)
        scene.send(scene.parked, scene.dead, scene.held, scene.fine)
        scene.send(scene.parked, scene.dead)
        scene.wait("F", scene.dead, ATTEMPTS)
        scene.wait("E", [*scene.held, *scene.fine])
        scene.hold()
        held_since = len(run.entries)
        scene.send(scene.held, scene.fine)
        if size.members > 1:
            scene.kill(scene.members[0])
            scene.start(poisoned=True)
        scene.wait("E", scene.fine)
        parked = first_of(run.produced, scene.parked)
        held = scene.offsets(scene.held) - first_of(run.produced, scene.held)
        waiting = {**dict.fromkeys(parked, True), **dict.fromkeys(held, False)}
        run.until(lambda: scene.waiting() == waiting, PATIENCE_S, "the commits remember them")
        scene.kill(*scene.members)
        assert scene.waiting() == waiting, "while no member runs"
        before = scene.starts(parked)
        scene.start(poisoned=True)
        scene.wait("E", scene.fine)
        for child in scene.members:  # the fix
            run.terminate(child)
        assert scene.starts(parked) == before, "a restart tried what is parked"
        scene.start(poisoned=False)
        scene.send(scene.parked, scene.held, scene.fine)
        scene.wait("E", scene.fine)
        assert not {entry.key for entry in run.entries[held_since:]} & set(scene.held)

        scene.release_parked()
        if size.members > 1:
            scene.kill(scene.members[1])
            scene.start(poisoned=False)
            scene.release_parked()
        scene.wait("E", scene.parked)
        scene.perkey("dlq", "replay", f"{scene.topic}.dlq", "--yes")
        home = scene.home()
        run.produced.update(home)
        scene.by_script("release", scene.held)
        lettered = scene.offsets(scene.dead) - home.keys()
        run.all_done(PATIENCE_S, but=len(lettered))
        run.until(run.committed, PATIENCE_S, "everything committed")
        for child in scene.members:
            run.terminate(child)
        run.look()
        run.entries = lettered_as_done(run.entries, lettered)
        run.verdict()
