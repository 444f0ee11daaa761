"""Who may add rows, and which are new: case by case, and from seeds with crashes and two fleets."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.support.cases import each

from perkey.spark.table.ownership import UNKNOWN_GENERATION, Hand, Ownership
from perkey.spark.table.progress import Done, Entry, Progress, Source

T0, T1 = Source("t", "id", 0), Source("t", "id", 1)


def hand(epoch: int, *offsets: int, source: Source = T0) -> Hand:
    """Rows of these offsets, below whose last one all is done."""
    done = Done(max(offsets) + 1, max(offsets))
    return Hand([(source, offset) for offset in offsets], {source: Entry(epoch, done)})


def test_a_claim_is_newer_than_all_before() -> None:
    """Than those of this run, and than those that the table knows of."""
    ownership = Ownership()
    assert ownership.claim(T0, 3) == Entry(1, Done(0, -1))
    assert ownership.claim(T0, 3) == Entry(2, Done(0, -1))
    ownership.learn(Progress({T0: Entry(7, Done(5, 4))}))
    assert ownership.claim(T0, 4) == Entry(8, Done(5, 4))
    assert ownership.claim(T1, 4) == Entry(1, Done(0, -1))


def test_a_claim_that_comes_late_is_refused() -> None:
    """It was made in an older generation of the group than the one that is known."""
    ownership = Ownership()
    ownership.claim(T0, 5)
    assert ownership.claim(T0, 4) is None
    assert ownership.claim(T0, 5) is not None
    assert ownership.claim(T0, UNKNOWN_GENERATION) is not None


def test_rows_of_an_older_claim_are_refused() -> None:
    """Of this run or of another one; at the newest claim they are taken."""
    ownership = Ownership()
    first = ownership.claim(T0, 1)
    assert ownership.stale(hand(first.epoch, 0)) == []
    second = ownership.claim(T0, 2)
    assert ownership.stale(hand(first.epoch, 0)) == [T0]
    assert ownership.stale(hand(second.epoch, 0)) == []
    ownership.learn(Progress({T0: Entry(second.epoch + 1, Done(1, 0))}))
    assert ownership.stale(hand(second.epoch, 0)) == [T0]


def test_rows_that_the_table_has_are_left_out() -> None:
    """Also those that a hand before this one brings in the same transaction."""
    ownership = Ownership()
    ownership.learn(Progress({T0: Entry(1, Done(2, 4, (2, 3)))}))
    draft = ownership.draft([hand(1, 1, 2, 4, 5), hand(1, 5, 6), hand(1, 0, source=T1)])
    assert draft.fresh == [[False, True, False, True], [False, True], [True]]
    assert draft.progress.get(T0) == Entry(1, Done(7, 6))
    assert draft.changed == {T0: Entry(1, Done(7, 6)), T1: Entry(1, Done(1, 0))}


def test_several_rows_of_one_record_go_together() -> None:
    """All of them are new, or none is."""
    ownership = Ownership()
    draft = ownership.draft([hand(1, 0, 0, 0)])
    assert draft.fresh == [[True] * 3]
    ownership.learn(draft.progress)
    assert ownership.draft([hand(1, 0, 0, 0, 1)]).fresh == [[False] * 3 + [True]]


# -- from seeds ------------------------------------------------------------------------------------

RECORDS = 12


@dataclass
class Table:
    """A table with optimistic commits."""

    version: int = 0
    progress: Progress = field(default_factory=Progress)
    rows: list[tuple[Source, int]] = field(default_factory=list)


@dataclass
class Member:
    """Owns partitions, as it believes; handles records of them in any order."""

    fleet: int
    generation: int = 0
    owned: dict[Source, int] = field(default_factory=dict)
    done: dict[Source, set[int]] = field(default_factory=dict)


class World:
    """Two fleets of one group over one table; the group moves partitions when it likes."""

    def __init__(self, seed: int, ownership: type[Ownership]) -> None:
        self.chance = random.Random(seed)
        self.make = ownership
        self.table = Table()
        self.desks = [(ownership(), 0), (ownership(), 0)]  # with the version that each knows
        self.members = [Member(fleet) for fleet in (0, 0, 1)]
        self.committed = dict.fromkeys((T0, T1), 0)
        self.owner: dict[Source, Member] = {}
        self.generation = 0
        self.claimed: dict[Source, tuple[int, int]] = {}

    def read(self, fleet: int) -> Ownership:
        ownership = self.desks[fleet][0]
        ownership.learn(self.table.progress)
        self.desks[fleet] = ownership, self.table.version
        return ownership

    def assign(self) -> None:
        """The group gives a partition to a member; who had it may not know."""
        source, member = self.chance.choice((T0, T1)), self.chance.choice(self.members)
        self.generation += 1
        self.owner[source], member.generation = member, self.generation
        if self.chance.random() < 0.5:
            for other in self.members:
                other.owned.pop(source, None)
        entry = self.read(member.fleet).claim(source, self.generation)
        assert entry is not None
        member.owned[source] = entry.epoch
        self.claimed[source] = member.fleet, entry.epoch
        held = {n for n in range(RECORDS) if entry.done.has(n)}
        member.done[source] = held | set(range(self.committed[source]))
        self.committed[source] = max(self.committed[source], entry.done.frontier)

    def work(self, member: Member) -> None:
        """Handle some records, hand them over, and commit what the table then has."""
        if not member.owned:
            return
        source = self.chance.choice(sorted(member.owned))
        left = [n for n in range(RECORDS) if n not in member.done[source]]
        picked = sorted(n for n in left if self.chance.random() < 0.4)
        done = member.done[source] | set(picked)
        if not picked:
            return
        frontier = next(n for n in range(RECORDS + 1) if n not in done)
        top = max([n for n in done if n > frontier], default=frontier - 1)
        holes = tuple(n for n in range(frontier, top) if n not in done)
        rows = [(source, n) for n in picked for _ in range(1 + n % 2)]
        if self.chance.random() < 0.1:
            return  # killed before
        epoch = member.owned[source]
        if not self.add(
            member.fleet, Hand(rows, {source: Entry(epoch, Done(frontier, top, holes))})
        ):
            return
        if self.chance.random() < 0.1:
            return  # killed between: the table has them, the group does not
        member.done[source] = done
        if self.owner.get(source) is member:
            self.committed[source] = max(self.committed[source], frontier)

    def add(self, fleet: int, given: Hand) -> bool:
        """As the committer does it."""
        for _ in range(5):
            ownership, version = self.desks[fleet]
            if ownership.stale(given):
                return False
            draft = ownership.draft([given])
            if version != self.table.version:  # another was first
                self.read(fleet)
                continue
            source = next(iter(given.entries))
            by, epoch = self.claimed.get(source, (fleet, 0))
            if by == fleet and given.entries[source].epoch < epoch:
                raise AssertionError("a member that lost its partition added rows")
            fresh = [row for row, new in zip(given.rows, draft.fresh[0], strict=True) if new]
            if fresh:
                self.table.rows += fresh
                self.table.progress = draft.progress
                self.table.version += 1
            if self.chance.random() < 0.1:  # added, and the answer is lost
                self.read(fleet)
                continue
            ownership.learn(self.table.progress)
            self.desks[fleet] = ownership, self.table.version
            return True
        return False

    def run(self) -> None:
        for _ in range(60):
            what = self.chance.random()
            if what < 0.25:
                self.assign()
            elif what < 0.3:  # a driver dies, and its members with it
                fleet = self.chance.choice((0, 1))
                self.desks[fleet] = self.make(), self.table.version
                self.read(fleet)
                for member in self.members:
                    if member.fleet == fleet:
                        member.owned.clear()
            else:
                self.work(self.chance.choice(self.members))
            self.check()
        for _ in range(200):  # in the end all is handled
            self.assign()
            for member in self.members:
                self.work(member)
        self.check()
        assert set(self.committed.values()) == {RECORDS}, f"never done: {self.committed}"
        assert len(self.table.rows) == 2 * (RECORDS + RECORDS // 2)

    def check(self) -> None:
        counts = Counter(self.table.rows)
        twice = [row for row, n in counts.items() if n != 1 + row[1] % 2]
        assert not twice, f"not once: {twice}"
        for source, committed in self.committed.items():
            lost = [n for n in range(committed) if (source, n) not in counts]
            assert not lost, f"committed and not in the table: {lost}"


def test_every_row_once_from_seeds() -> None:
    """Whatever dies, however late; offsets never run ahead of rows; who lost cannot add."""
    each(lambda seed: World(seed, Ownership).run(), range(150))


class Forgetful(Ownership):
    """Takes every row for a new one."""

    def draft(self, hands):
        draft = super().draft(hands)
        return type(draft)(
            [[True] * len(one) for one in draft.fresh], draft.progress, draft.changed
        )


class Open(Ownership):
    """Lets everybody add."""

    def stale(self, hand):
        return []


class Hasty(Ownership):
    """Takes all below the highest offset for done."""

    def draft(self, hands):
        hands = [
            Hand(h.rows, {s: Entry(e, Done(d.top + 1, d.top)) for s, (e, d) in h.entries.items()})
            for h in hands
        ]
        return super().draft(hands)


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (Forgetful, "not once"),
        (Open, "that lost its partition"),
        (Hasty, "committed and not in the table"),
    ],
)
def test_the_seeds_find_what_is_broken(mutant, said) -> None:
    """Each rule left out is found within as many seeds."""
    found = []
    for seed in range(300):
        try:
            World(seed, mutant).run()
        except AssertionError as error:
            found.append(str(error))
            break
    assert found
    assert said in found[0]
