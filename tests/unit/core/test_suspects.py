"""exactly_once: outputs that nobody acknowledges go alone, and fail where others get through."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR
from tests.unit.core.conftest import offsets as offsets_of
from tests.unit.core.test_partition import partition, received
from tests.unit.core.test_portions import exact

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Limits, Returned
from perkey.core.partition import Partition
from perkey.core.portions import TRIES, Culprits
from perkey.core.work import Work

CULPRIT = 3


class Broker:
    """Takes what transactions bring, but for one record's output; notes what was in them."""

    def __init__(self, *, takes: bool) -> None:
        self.desk = exact(Limits(), concurrency=50)
        (self.part,) = self.desk.assign(0)
        self.takes = takes
        self.sent: list[list[int]] = []
        self.next_offset = 0
        self.culprit: Work | None = None

    def handle(self, count: int) -> None:
        """So many more records return an output."""
        first, self.next_offset = self.next_offset, self.next_offset + count
        self.desk.poll(self.part, *range(first, self.next_offset), key=None)
        begun = [effect for effect in self.desk.effects if isinstance(effect, fx.Start)]
        works = [work for effect in begun for work in effect.works]
        self.desk.effects = [one for one in self.desk.effects if one not in begun]
        for work in works:
            if work.record.offset == CULPRIT:
                self.culprit = work
        self.desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])

    def answer(self) -> None:
        """The transaction on its way ends, and time passes."""
        for effect in self.desk.take(fx.Transact):
            works = [work for item in effect.items for work in item.claims]
            self.sent.append([work.record.offset for work in works])
            held = [w for w in works if w is self.culprit or not self.takes]
            self.desk.do(
                "transacted",
                effect.sequence,
                committed=not held,
                slow=bool(held),
                sent=[(work, ()) for work in works],
                stuck=[(work, ERROR) for work in held],
            )
        self.desk.now += 5.0
        self.desk.do("tick")


def test_others_go_first_and_the_suspect_alone():
    """What was not acknowledged where others were is set aside, and then sent alone."""
    broker = Broker(takes=True)
    broker.handle(10)
    for _ in range(10):
        broker.answer()
    assert sum(CULPRIT in one for one in broker.sent if len(one) > 1) == 1
    assert [CULPRIT] in broker.sent
    done = {offset for one in broker.sent if CULPRIT not in one for offset in one}
    assert done == set(range(10)) - {CULPRIT}


def test_without_others_nothing_is_proved():
    """It alone waits and is not taken: that may be the broker's outage. No attempt is failed."""
    broker = Broker(takes=True)
    broker.handle(CULPRIT)
    broker.answer()
    broker.handle(1)
    for _ in range(30):
        broker.answer()
    assert broker.sent.count([CULPRIT]) > 10
    assert broker.culprit is not None
    assert broker.culprit.state == states.PENDING
    assert broker.culprit.failure is None


def test_a_culprit_fails_where_others_get_through():
    """Alone and not taken twice, with others taken before each time: its attempt has failed."""
    broker = Broker(takes=True)
    broker.handle(10)
    culprit = broker.culprit
    assert culprit is not None
    for _ in range(40):
        broker.answer()
        if culprit.failure is not None:
            break
        broker.handle(1)
    assert broker.sent.count([CULPRIT]) == TRIES
    assert broker.sent[-2] != [CULPRIT]
    assert culprit.failure is not None
    assert culprit.failure.error == ERROR


def test_an_outage_fails_nothing():
    """Nothing at all is acknowledged: however often, no attempt is failed, and all goes on after."""
    broker = Broker(takes=False)
    broker.handle(10)
    for _ in range(20):
        broker.answer()
        broker.handle(1)
    assert broker.desk.engine.state.handlers[0].failures == 0
    broker.takes, broker.culprit = True, None
    for _ in range(60):
        broker.answer()
    assert part_is_done(broker.part)


def test_nothing_through_is_not_too_much():
    """Where nothing got through the next transaction is as large; where something did, half."""
    broker = Broker(takes=False)
    before = broker.desk.engine.state.portions.most_bytes
    broker.handle(10)
    broker.answer()
    broker.answer()
    assert broker.desk.engine.state.portions.most_bytes == before
    broker.takes = True
    for _ in range(3):
        broker.answer()
    assert broker.desk.engine.state.portions.most_bytes < before


def part_is_done(partition: Partition) -> bool:
    return not partition.offsets.incomplete


class Waiting:
    """Outputs of one partition that wait for a transaction, one a record, and who is suspected."""

    def __init__(self, *offsets: int, ordering: str = "unordered", **options) -> None:
        self.part = partition(ordering=ordering, delivery="exactly_once")
        self.suspects = Culprits()
        self.works: dict[int, Work] = {}
        self.more(*offsets, **options)

    def more(self, *offsets: int, key: bytes | None = b"k") -> None:
        """These are handled, too."""
        received(self.part, *offsets, key=key)
        for offset in offsets:
            work = self.part.offsets.incomplete[offset]
            assert work is not None
            self.works[offset] = work
            work.state = states.PENDING
            work.outputs = [offset]
            self.part.commit.claims.append(work)

    def goes(self) -> list[int]:
        """What the next transaction has."""
        self.sent = self.suspects.choose([self.part])[self.part]
        return offsets_of(self.sent)

    def through(self) -> None:
        """It is committed."""
        self.suspects.ended(self.sent, [], committed=True)
        self.part.commit.remove(self.sent)

    def held(self, *offsets: int) -> list[int]:
        """These were not acknowledged; who has failed by it."""
        stuck = [(self.works[offset], ERROR) for offset in offsets]
        failed = self.suspects.ended(self.sent, stuck, committed=False)
        return offsets_of([work for work, _ in failed])

    def aborted(self) -> list[int]:
        """It fell for something that is in it; who has failed by it."""
        failed = self.suspects.ended(self.sent, [], committed=False, reason=ERROR)
        return offsets_of([work for work, _ in failed])

    def accused(self, *offsets: int) -> bool:
        """These were all of an aborted one, and nobody said why."""
        self.goes()
        return self.suspects._accuse([self.part], [self.works[offset] for offset in offsets])

    def turns(self, *then: str) -> list[list[int]]:
        """What goes in these transactions, which end so."""
        gone = []
        for end in then:
            gone.append(self.goes())
            getattr(self, end)()
        return gone


def test_an_accused_output_that_gets_through_clears_those_accused_after_it():
    """It was the time and not the output: so it may be with the others, which go together again."""
    waiting = Waiting(0, 1, 2, 3)
    for offset in (0, 1, 2):
        assert waiting.accused(offset)
    assert waiting.turns("through", "through") == [[3], [0]]
    assert waiting.goes() == [1, 2]
    assert not waiting.suspects.alone


def test_an_output_that_was_not_acknowledged_and_gets_through_clears_no_one():
    """Its partition has a leader again; that says nothing of those that were refused."""
    waiting = Waiting(0, 1, 2, 3)
    waiting.goes()
    waiting.held(0)
    for offset in (1, 2):
        assert waiting.accused(offset)
    assert waiting.turns("through", "through") == [[3], [0]]
    assert waiting.goes() == [1]
    assert waiting.suspects.alone


def test_who_has_failed_alone_is_not_cleared_by_another():
    """Once it was so with others through in between; it goes alone once more."""
    waiting = Waiting(0, 1, 2)
    assert waiting.accused(0)
    assert waiting.accused(1)
    assert waiting.turns("through", "aborted") == [[2], [0]]
    waiting.more(3)
    assert waiting.turns("through", "through") == [[3], [1]]
    waiting.more(4)
    assert waiting.goes() == [4]


def test_accused_alone_is_no_one():
    """Nothing else waits: it goes on as before."""
    waiting = Waiting(0)
    assert not waiting.accused(0)
    assert waiting.goes() == [0]
    assert not waiting.suspects.alone


def test_all_that_is_not_acknowledged_goes_alone_together():
    """One time-out for all of them, however many there are."""
    waiting = Waiting(0, 1, 2, 3)
    waiting.goes()
    waiting.held(0)
    assert waiting.goes() == [1, 2, 3]
    waiting.held(1)
    assert waiting.turns("through", "through", "through") == [[2, 3], [0, 1], []]


def test_suspects_that_fall_together_go_one_by_one():
    """Only one of them need be at fault."""
    waiting = Waiting(0, 1, 2)
    waiting.goes()
    waiting.held(0, 1)
    assert waiting.turns("through", "aborted") == [[2], [0, 1]]
    waiting.more(3)
    assert waiting.turns("through", "aborted") == [[3], [0]]
    waiting.more(4)
    assert waiting.turns("through", "through") == [[4], [1]]


@pytest.mark.parametrize("end", ["held", "aborted"])
def test_a_suspect_fails_the_second_time_it_is_proved(end):
    """With others through before each time."""
    waiting = Waiting(0, 1)
    waiting.goes()
    waiting.held(0)
    failed = []
    for offset in (2, 3):
        assert waiting.turns("through") == [[offset - 1]]
        assert waiting.goes() == [0]
        failed.append(waiting.held(0) if end == "held" else waiting.aborted())
        waiting.more(offset)
    assert failed == [[], [0]]


def test_a_suspect_without_others_fails_never():
    """Once others were through, and then nobody else came: that was once."""
    waiting = Waiting(0, 1)
    waiting.goes()
    waiting.held(0)
    assert waiting.turns("through") == [[1]]
    for _ in range(5):
        assert waiting.goes() == [0]
        assert waiting.aborted() == []


def test_one_of_several_that_is_not_acknowledged_fails_no_one_yet():
    """Those that go alone together: some were taken, the others are tried again."""
    waiting = Waiting(0, 1, 2)
    waiting.goes()
    waiting.held(0, 1)
    assert waiting.turns("through") == [[2]]
    assert waiting.goes() == [0, 1]
    assert waiting.held(0) == []


def test_no_one_is_suspected_where_nothing_was_acknowledged():
    """All that was in it and all that waits: the broker is away."""
    waiting = Waiting(0, 1)
    waiting.goes()
    waiting.held(0, 1)
    assert waiting.goes() == [0, 1]
    assert not waiting.suspects.alone


def test_a_suspect_that_went_another_way_is_forgotten():
    """Its partition was taken away, or it was refused for itself: nobody waits for it."""
    waiting = Waiting(0, 1)
    assert waiting.accused(0)
    waiting.part.commit.remove([waiting.works[0]])
    waiting.works[0].state = states.RETRYING
    waiting.more(2)
    assert waiting.turns("through", "through") == [[1, 2], []]
    assert not waiting.suspects.alone


def test_others_and_suspects_take_turns():
    """Whatever keeps coming, a suspect has its turn after one of the others, and they after it."""
    waiting = Waiting(0, 1)
    assert waiting.accused(0)
    gone = []
    for offset in (2, 3, 4):
        gone.append(waiting.goes())
        if waiting.suspects.alone:
            waiting.aborted()
        else:
            waiting.through()
        waiting.more(offset)
    assert gone == [[1], [0], [2, 3]]


@pytest.mark.parametrize(("ordering", "others"), [("unordered", [1, 2]), ("key", [2])])
def test_what_stands_behind_a_suspect_in_its_lane_waits_for_it(ordering, others):
    """Or an output would be seen before an earlier one of its key."""
    waiting = Waiting(0, 1, ordering=ordering)
    waiting.more(2, key=b"other")
    assert waiting.accused(0)
    assert waiting.goes() == others


def test_a_suspect_that_gets_through_begins_again():
    """Those that were not acknowledged are one group: who joins it later has failed nothing yet."""
    waiting = Waiting(0, 1, 2)
    waiting.goes()
    waiting.held(0, 1)
    assert waiting.turns("through") == [[2]]
    assert waiting.goes() == [0, 1]
    assert waiting.held(0, 1) == []
    waiting.more(3)
    assert waiting.turns("through") == [[3]]
    assert waiting.goes() == [0, 1]
    waiting.suspects.ended(waiting.sent[:1], [], committed=True)
    waiting.part.commit.remove([waiting.works[0]])
    waiting.more(4)
    assert waiting.turns("through") == [[4]]
    assert waiting.goes() == [1]
    assert waiting.held(1) == []
