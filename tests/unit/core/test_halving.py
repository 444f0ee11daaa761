"""exactly_once: a transaction that is aborted again and again, and nobody says for which output."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, Desk
from tests.unit.core.test_partition import partition, received
from tests.unit.core.test_portions import SIZE, exact

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import HandlerSpec, Limits, Returned
from perkey.core.partition import Partition
from perkey.core.portions import TRIES, UNSPLIT_TRIES, Culprits
from perkey.core.work import Work
from perkey.policies import Batch, Park, Retry


class Broker:
    """Aborts each transaction with an output of a culprit; notes what was in them."""

    def __init__(self, *culprits: int, partitions: int = 1, **options) -> None:
        options = {"concurrency": 50, "retry": Retry(attempts=1), "on_exhausted": Park(), **options}
        self.desk = exact(Limits(commit_retry_s=0.01), **options)
        self.parts = self.desk.assign(*range(partitions))
        self.culprits = set(culprits)
        #: nothing gets through, and the same is said of it
        self.down = False
        #: whose offsets are refused
        self.refused_partition = -1
        #: of each transaction, what was in it and whether it was committed
        self.sent: list[tuple[list[int], bool]] = []

    def handle(self, *offsets: int, part: int = 0, outputs: bool = True) -> None:
        """These records are handled, each with an output."""
        self.desk.poll(self.parts[part], *offsets, key=None)
        begun = [effect for effect in self.desk.effects if isinstance(effect, fx.Start)]
        works = [work for effect in begun for work in effect.works]
        self.desk.effects = [one for one in self.desk.effects if one not in begun]
        if outputs:
            self.desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
        else:
            self.desk.do("calls_ended", works)

    def answer(self, times: int = 1) -> None:
        """So many transactions end, as far as there are so many."""
        for _ in range(times):
            for effect in self.desk.take(fx.Transact):
                self._end(effect)
            self.desk.pass_time(0.5)

    def _end(self, effect: fx.Transact) -> None:
        works = [work for item in effect.items for work in item.claims]
        sent = [work for work in works if work.outputs is not None]
        falls = any(work.record.offset in self.culprits for work in sent)
        falls |= any(i.partition.number == self.refused_partition for i in effect.items)
        committed = not (falls or self.down)
        self.sent.append(([work.record.offset for work in works], committed))
        self.desk.do(
            "transacted",
            effect.sequence,
            committed=committed,
            sent=[(work, ()) for work in sent],
            reason=None if committed else ERROR,
        )

    def parked(self) -> list[int]:
        """Who has failed."""
        return [w.record.offset for p in self.parts for w in p.works() if w.state == states.PARKED]

    def left(self) -> list[int]:
        """What is not done."""
        return [offset for part in self.parts for offset in part.offsets.incomplete]


def test_it_is_halved_until_what_is_healthy_is_through():
    """First once more as it is, then in halves; all but the culprit are done."""
    broker = Broker(5)
    broker.handle(0, outputs=False)
    broker.answer()
    broker.handle(*range(1, 17))
    broker.answer(40)
    sizes = [len(what) for what, _ in broker.sent if what]
    assert sizes[1 : UNSPLIT_TRIES + 2] == [*[16] * UNSPLIT_TRIES, 8]
    assert broker.left() == [5]


def test_a_culprit_fails_with_the_reason_where_others_get_through():
    """Alone twice, with others through before each time: its attempt fails with what was said."""
    broker = Broker(5)
    broker.handle(*range(16))
    offset = 16
    while not broker.parked():
        broker.answer()
        broker.handle(offset)
        offset += 1
        assert offset < 200
    assert broker.parked() == [5]
    (failed,) = [w for w in broker.parts[0].works() if w.record.offset == 5]
    assert failed.failure is not None
    assert failed.failure.error == ERROR
    alone = [place for place, (what, _) in enumerate(broker.sent) if what == [5]]
    for before, after in zip(alone[-TRIES:], alone[-TRIES + 1 :], strict=False):
        assert any(through for what, through in broker.sent[before:after] if what)


def test_each_of_several_culprits_fails_and_no_one_else():
    """They are found one after another, in several partitions."""
    broker = Broker(3, 4, 9, partitions=2)
    broker.handle(*range(12))
    broker.handle(*range(20, 30), part=1)
    offset = 30
    while sorted(broker.parked()) != [3, 4, 9]:
        broker.answer()
        broker.handle(offset, part=1)
        offset += 1
        assert offset < 400
    broker.answer(10)
    assert sorted(broker.left()) == [3, 4, 9]


def test_after_the_last_culprit_all_goes_together_again():
    """The limit is no longer there than the trouble."""
    broker = Broker(5)
    broker.handle(*range(16))
    for offset in range(16, 60):
        broker.answer()
        broker.handle(offset)
    assert broker.parked() == [5]
    broker.answer(3)
    broker.desk.effects.clear()
    broker.handle(100)
    broker.handle(*range(101, 140))
    broker.answer(2)
    assert broker.sent[-1] == (list(range(101, 140)), True)


def test_after_trouble_is_over_one_abort_is_one_again():
    """The first of a new row is tried once more as it is."""
    broker = Broker()
    broker.handle(0)
    broker.answer()
    broker.handle(*range(1, 9))
    broker.down = True
    broker.answer(UNSPLIT_TRIES)
    broker.down = False
    broker.answer(6)
    assert broker.left() == []
    broker.handle(9)
    broker.handle(*range(10, 18))
    broker.answer()
    broker.down = True
    broker.answer()
    broker.down = False
    broker.answer()
    assert broker.sent[-2:] == [(list(range(10, 18)), False), (list(range(10, 18)), True)]


def test_an_outage_fails_nothing_and_all_is_done_after_it():
    """Every transaction is aborted, whatever is in it: nothing is proved of any of them."""
    broker = Broker()
    broker.down = True
    broker.handle(*range(6))
    broker.answer(60)
    assert broker.desk.engine.state.handlers[0].failures == 0
    broker.down = False
    broker.answer(40)
    assert broker.left() == []
    assert broker.desk.engine.state.handlers[0].failures == 0


def test_an_abort_that_passes_costs_nothing():
    """The second try is with the same records, and all are through."""
    broker = Broker()
    broker.handle(0)
    broker.answer()
    broker.handle(*range(1, 10))
    broker.down = True
    broker.answer()
    broker.down = False
    broker.answer()
    assert broker.sent[-2:] == [(list(range(1, 10)), False), (list(range(1, 10)), True)]


def test_without_others_nothing_is_proved():
    """Alone from the first on: it is tried for ever, and its attempt does not fail."""
    broker = Broker(0)
    broker.handle(0)
    broker.answer(50)
    assert len(broker.sent) > 40
    assert broker.desk.engine.state.handlers[0].failures == 0


def test_records_without_outputs_are_not_held_up():
    """They are others: the one output goes alone, and they are through."""
    broker = Broker(0)
    broker.handle(0)
    broker.handle(1, 2, outputs=False)
    broker.answer(10)
    assert broker.left() == [0]


def test_a_refused_partition_holds_up_no_other():
    """What is refused may be the partition's offset: the others' are committed without it."""
    broker = Broker(partitions=2)
    broker.refused_partition = 0
    broker.handle(0)
    broker.handle(*range(1, 10), outputs=False)
    broker.handle(*range(10, 20), part=1)
    broker.answer(60)
    assert not broker.parts[1].offsets.incomplete
    assert broker.parts[1].commit.committed == 20


def test_a_batch_is_never_parted():
    """Its outputs are one: its records fail together, in halves, as any batch does."""
    spec_batch = Batch(4, 0.0)
    broker = Broker(2, batch=spec_batch)
    desk, part = broker.desk, broker.parts[0]
    desk.poll(part, *range(8), key=None)
    for effect in desk.take(fx.Start):
        shared = _Shared()
        desk.do("batch_ended", 0, [], [Returned(work, shared) for work in effect.works])
    broker.answer(10)
    assert broker.sent
    assert all(len(what) % 4 == 0 for what, _ in broker.sent)


class _Shared(list):
    """What a batch returns."""

    records = 4


def test_suspects_wait_for_what_is_before_them_in_their_lanes():
    """Others went, and not all of them: those that are still there go on, and then the suspects."""
    limits = Limits(commit_retry_s=0.01, transaction_bytes=SIZE)
    spec = HandlerSpec("h", delivery="exactly_once", concurrency=50)
    desk = Desk(spec, limits=limits, size_bytes=SIZE)
    (part,) = desk.assign(0)
    for offset in range(6):
        desk.poll(part, offset, key=b"k")
        desk.do("calls_ended", [], [Returned(work, ["out"]) for work in _begun(desk)])
    desk.poll(part, 6, key=b"other")
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in _begun(desk)])
    first = True
    for _ in range(30):
        for effect in desk.take(fx.Transact):
            works = [work for item in effect.items for work in item.claims]
            sent = [(work, ()) for work in works]
            held = [(work, ERROR) for work in part.works() if work.record.offset == 5]
            desk.do(
                "transacted",
                effect.sequence,
                committed=not first,
                sent=[*sent, *((work, ()) for work, _ in held)] if first else sent,
                stuck=held if first else [],
            )
            first = False
        desk.pass_time(0.5)
    assert not part.offsets.incomplete


def _begun(desk: Desk) -> list[Work]:
    begun = [effect for effect in desk.effects if isinstance(effect, fx.Start)]
    desk.effects = [one for one in desk.effects if one not in begun]
    return [work for effect in begun for work in effect.works]


def test_reason_is_of_no_account_where_an_output_was_named():
    """One that was refused fails at once; the others go together as before."""
    desk = exact(Limits(commit_retry_s=0.01), concurrency=50)
    (part,) = desk.assign(0)
    desk.poll(part, *range(8), key=None)
    works = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
    for _ in range(UNSPLIT_TRIES + 1):
        effect = desk.take(fx.Transact)[-1]
        claims = effect.items[0].claims
        desk.do(
            "transacted",
            effect.sequence,
            committed=False,
            sent=[(work, ()) for work in claims],
            refused=[(claims[0], ERROR)],
        )
        desk.pass_time(0.1)
    assert len(desk.take(fx.Transact)[-1].items[0].claims) == 8 - UNSPLIT_TRIES - 1


@pytest.mark.parametrize("part", [0, 1])
def test_a_closed_partitions_culprit_is_forgotten(part):
    """With its partition a suspect goes; the other partition is committed as ever."""
    broker = Broker(5, partitions=2)
    broker.handle(*range(8), part=part)
    broker.answer(12)
    gone: Partition = broker.parts[part]
    desk: Desk = broker.desk
    desk.do("revoking", [gone])
    desk.do("closed", [gone])
    broker.handle(*range(50, 60), part=1 - part)
    broker.answer(5)
    assert not broker.parts[1 - part].offsets.incomplete


@pytest.mark.parametrize("down", [False, True])
def test_what_is_found_out_goes_without_what_is_only_new(down):
    """A partition that merely read on goes along, but not where a culprit is looked for."""
    broker = Broker(partitions=2)
    broker.handle(0)
    broker.handle(*range(1, 9))
    broker.answer()
    broker.down = down
    broker.answer(UNSPLIT_TRIES - 1)
    broker.handle(9)
    broker.handle(10)
    broker.desk.do("reached", [(broker.parts[1], 50)])
    together = []
    for _ in range(4):
        for effect in broker.desk.take(fx.Transact):
            claims = {item.partition: len(item.claims) for item in effect.items}
            together.append(len(claims) == 2 and any(claims.values()))
            broker.desk.now += 2.0
            broker._end(effect)
        broker.desk.pass_time(1.0)
    assert any(together) != down


def pending(*outputs) -> list[Work]:
    """Records of one partition with these outputs; equal ones are the same object."""
    part, known = partition(ordering="unordered"), {}
    received(part, *range(len(outputs)))
    works = list(part.offsets.works())
    for work, output in zip(works, outputs, strict=True):
        work.state = states.PENDING
        work.outputs = None if output is None else known.setdefault(output, [output])
    return works


def halved(*outputs: str) -> tuple[Culprits, list[Work]]:
    """These fell twice together, and nobody said why."""
    halving, works = Culprits(), pending(*outputs)
    for _ in range(UNSPLIT_TRIES):
        assert halving.most is None
        halving.ended(works, [], committed=False, reason=ERROR)
    return halving, works


@pytest.mark.parametrize(
    ("outputs", "first"),
    [
        ("abcd", "ab"),
        ("aabb", "aa"),
        ("aaaa", "aaaa"),
        ("abbbcd", "abbb"),
        ((None, "a", None, "b", None, "c", "d"), (None, "a", None, "b", None)),
        ((None, None), (None, None)),
    ],
)
def test_half_of_the_outputs_go_and_what_has_none_goes_along(outputs, first):
    """All records of one output count once."""
    halving, _ = halved(*"abcd") if len(set(outputs)) > 2 else halved(*"ab")
    halving.choose([])
    works = pending(*outputs)
    assert halving.first(works) == works[: len(first)]


def test_the_second_partition_has_what_the_first_has_left():
    """And nothing at all where that is nothing: its offset alone may be what is refused."""
    halving, _ = halved(*"abcdef")
    halving.choose([])
    assert len(halving.first(pending("a"))) == 1
    assert len(halving.first(pending(None))) == 1
    assert len(halving.first(pending("b", "c"))) == 1
    assert halving.first(pending("d")) == halving.first(pending(None)) == []
    halving.choose([])
    assert len(halving.first(pending("b", "c", "d", "e"))) == 3


def test_more_go_again_as_those_that_fell_get_through():
    """Twice as many each time, all once none of them is left; others say nothing of them."""
    halving, works = halved(*"abcdefgh")
    assert halving.most == 4
    halving.ended(works[:4], [], committed=False, reason=ERROR)
    assert halving.most == 2
    halving.ended(pending("x"), [], committed=True)
    assert halving.most == 2
    halving.ended(works[:2], [], committed=True)
    assert halving.most == 4
    halving.ended(works[2:6], [], committed=True)
    assert halving.most == 8
    halving.ended(works[6:], [], committed=True)
    assert halving.most is None


def test_those_that_went_another_way_are_not_waited_for():
    """Their partition did, or they were set aside: all goes together again."""
    halving, works = halved(*"abcd")
    works[0].state = states.RETRYING
    works[1].outputs = ["another"]
    halving.ended([], [(works[2], ERROR)], committed=False)
    halving.ended(works[3:], [], committed=True)
    assert halving.most is None


def test_one_alone_that_falls_is_the_culprit():
    """It was looked for, and nothing else was in the transaction: the others go without it."""
    halving, works = halved(*"ab")
    part = works[0].partition
    part.commit.claims += works
    assert halving.choose([part])[part] == works
    halving.ended(works, [], committed=False, reason=ERROR)
    assert halving.most == 1
    assert halving.choose([part])[part] == works
    halving.ended(works[:1], [], committed=False, reason=ERROR)
    assert halving.choose([part])[part] == works[1:]


def test_an_abort_for_another_reason_reports_nothing():
    """An output was named, or the time was over."""
    halving, works = Culprits(), pending(*"ab")
    for _ in range(2 * UNSPLIT_TRIES):
        assert not halving.ended(works, [], committed=False)
    assert halving.most is None
