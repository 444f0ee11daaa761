"""exactly_once: outputs are in a budget, and a transaction is as large as its time allows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.unit.core.conftest import ERROR, Desk, offsets

from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.core.gates import TRANSACTION
from perkey.core.work import Work
from perkey.policies import Batch, DeadLetter, Retry

SIZE = 1_000


def exact(limits: Limits, **options) -> Desk:
    """A desk whose outputs weigh 1,000 bytes a record."""
    spec = HandlerSpec("h", ordering="unordered", delivery="exactly_once", **options)
    return Desk(spec, limits=limits, size_bytes=SIZE)


def handled(desk, count: int, **options):
    """So many records are handled while a first transaction is on its way, which is given."""
    (part,) = desk.assign(0)
    desk.poll(part, *range(count), key=None)
    first, *rest = desk.started()
    desk.do("calls_ended", [], [Returned(first, ["out"])])
    (sent,) = desk.take(fx.Transact)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in rest])
    return part, sent


def carried(desk) -> int:
    """How many records the transaction has that was begun last."""
    return sum(len(item.claims) for item in desk.take(fx.Transact)[-1].items)


def test_nothing_starts_while_outputs_are_full():
    """A quarter of the buffer's bytes waits for a transaction: calls would only make more."""
    desk = exact(Limits(buffer_bytes=40 * SIZE), concurrency=5)
    (part,) = desk.assign(0)
    desk.poll(part, *range(100), key=None)
    begun = []
    while works := [work for work in desk.started() if work.partition is part]:
        begun += works
        desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
    assert len(begun) == 10
    assert part.outputs_bytes == 10 * SIZE


def test_stored_outputs_make_room():
    """With the transaction its outputs are gone, and handling goes on."""
    desk = exact(Limits(buffer_bytes=40 * SIZE), concurrency=10)
    part, sent = handled(desk, 30)
    desk.do("transacted", sent.sequence, committed=True)
    assert part.outputs_bytes == 9 * SIZE
    assert desk.engine.state.handlers[0].slots.free < 10


def test_outputs_of_an_ended_epoch_make_room():
    """They are never sent: the other partitions start calls again."""
    desk = exact(Limits(buffer_bytes=40 * SIZE), concurrency=10)
    part, _ = handled(desk, 10)
    (other,) = desk.assign(1)
    desk.poll(other, 0, key=None)
    assert [work for work in desk.started() if work.partition is other] == []
    assert desk.engine.state.handlers[0].gate.reasons == {TRANSACTION}
    desk.do("closed", [part])
    assert offsets(desk.started()) == [0]


def test_refused_outputs_are_in_no_budget():
    """They are gone; the record is tried again."""
    desk = exact(Limits())
    part, sent = handled(desk, 1)
    (work,) = sent.items[0].claims
    desk.do("transacted", sent.sequence, committed=False, refused=[(work, ERROR)])
    assert part.outputs_bytes == 0


@pytest.mark.parametrize(("most", "count"), [(9, 9), (10, 10), (11, 10)])
def test_transaction_is_bounded_by_bytes(most, count):
    """At the limit less one, at it, and at one more of ten that wait."""
    desk = exact(Limits(transaction_bytes=most * SIZE))
    _, sent = handled(desk, 11)
    desk.do("transacted", sent.sequence, committed=True)
    assert carried(desk) == count


def test_slow_transaction_is_halved_and_grows_again():
    """It ran out of time: half of it goes, then more, step by step; all is done in the end."""
    desk = exact(Limits(commit_retry_s=0.01), concurrency=200)
    part, sent = handled(desk, 101)
    desk.do("transacted", sent.sequence, committed=True)
    sizes, slow = [], 3
    while part.outputs_bytes:
        desk.pass_time(0.1)
        effect = desk.take(fx.Transact)[-1]
        sizes.append(sum(len(item.claims) for item in effect.items))
        desk.do("transacted", effect.sequence, committed=not slow, slow=bool(slow))
        slow = max(0, slow - 1)
    assert sizes[:4] == [100, 50, 25, 12]
    assert sizes[4] > 12
    assert sum(sizes[3:]) == 100


def test_only_partitions_with_outputs_share_a_transaction():
    """One that has nothing to send takes no part of the room."""
    desk = exact(Limits(transaction_bytes=4 * SIZE), concurrency=50)
    full, other = desk.assign(0, 1)
    desk.poll(full, *range(8), key=None)
    desk.poll(other, 0, key=None)
    begun = [effect for effect in desk.effects if isinstance(effect, fx.Start)]
    works = [work for effect in begun for work in effect.works]
    desk.take(object)
    desk.do(
        "calls_ended",
        [work for work in works if work.partition is other],
        [Returned(work, ["out"]) for work in works if work.partition is full],
    )
    (effect,) = desk.take(fx.Transact)
    assert {i.partition.number: len(i.claims) for i in effect.items} == {0: 4, 1: 1}


def test_each_partition_is_the_first_of_a_transaction_in_turn():
    """The first takes something in any case: with little room they go one after another."""
    desk = exact(Limits(transaction_bytes=1, commit_retry_s=0.01), concurrency=50)
    parts = desk.assign(0, 1, 2)
    for part in parts:
        desk.poll(part, *range(4), key=None)
    begun = [effect for effect in desk.effects if isinstance(effect, fx.Start)]
    works = [work for effect in begun for work in effect.works]
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
    led: list[list[int]] = []
    for _ in range(3):
        effect = desk.take(fx.Transact)[-1]
        led.append([item.partition.number for item in effect.items if item.claims])
        desk.do("transacted", effect.sequence, committed=True)
        desk.pass_time(0.1)
    assert sorted(led) == [[0], [1], [2]]


def test_a_partition_of_which_nothing_goes_is_not_in_the_transaction():
    """With nothing new to say it would only have to wait for the answer, and a while after it."""
    desk = exact(Limits(transaction_bytes=1), concurrency=50)
    parts = desk.assign(0, 1, committed=0)
    for part in parts:
        desk.poll(part, 0, 1, key=None)
    begun = [effect for effect in desk.effects if isinstance(effect, fx.Start)]
    works = [work for effect in begun for work in effect.works]
    assert desk.take(fx.Transact) == []
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
    (effect,) = desk.take(fx.Transact)
    assert [len(item.claims) for item in effect.items] == [1]


def test_batch_is_never_parted():
    """Outputs that records share go together, however small the transaction."""
    desk = exact(Limits(transaction_bytes=1), batch=Batch(3, 0.0))
    (part,) = desk.assign(0)
    desk.poll(part, *range(3), key=None)
    (effect,) = desk.take(fx.Start)
    shared = ["out"]
    desk.do("batch_ended", 0, [], [Returned(work, shared) for work in effect.works])
    (sent,) = desk.take(fx.Transact)
    assert offsets(sent.items[0].claims) == [0, 1, 2]


def works_of(desk) -> list[Work]:
    """Records that were started; all other effects are kept."""
    begun = [effect for effect in desk.effects if isinstance(effect, fx.Start)]
    desk.effects = [one for one in desk.effects if one not in begun]
    return [work for effect in begun for work in effect.works]


def test_partitions_with_outputs_share_the_room_equally():
    """None of them fills a transaction that the other waits for."""
    desk = exact(Limits(transaction_bytes=4 * SIZE), concurrency=50)
    for part in desk.assign(0, 1):
        desk.poll(part, *range(8), key=None)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works_of(desk)])
    (effect,) = desk.take(fx.Transact)
    assert [len(item.claims) for item in effect.items] == [2, 2]


def test_records_without_outputs_take_no_room():
    """They go along, up to the output for which there is none left."""
    desk = exact(Limits(transaction_bytes=SIZE), concurrency=50)
    (part,) = desk.assign(0)
    desk.poll(part, *range(5), key=None)
    first, second, third, *others = works_of(desk)
    ended = [Returned(work, ["out"]) for work in (first, *others)]
    desk.do("calls_ended", [second, third], ended)
    (effect,) = desk.take(fx.Transact)
    assert offsets(effect.items[0].claims) == [1, 2, 0]


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_got_nothing_through_reports_nothing_of_its_size(count):
    """However few were in it: the broker was away, and the room stays."""
    desk = exact(Limits(transaction_bytes=100 * SIZE), concurrency=50)
    (part,) = desk.assign(0)
    desk.poll(part, *range(count), key=None)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works_of(desk)])
    (effect,) = desk.take(fx.Transact)
    works = effect.items[0].claims
    desk.do(
        "transacted",
        effect.sequence,
        committed=False,
        slow=True,
        sent=[(work, ()) for work in works],
        stuck=[(work, ERROR) for work in works],
    )
    assert desk.engine.state.portions.most_bytes == 100 * SIZE


class Slow:
    """Transactions of one partition with a backlog, of which the room is asked for."""

    def __init__(self, most_bytes: int, backlog: int) -> None:
        limits = Limits(transaction_bytes=most_bytes, commit_retry_s=0.01)
        self.desk = exact(limits, concurrency=500)
        self.part, self.sent = handled(self.desk, backlog + 1)
        self.end(committed=True)

    @property
    def room(self) -> int:
        """Bytes that one transaction takes at most."""
        return self.desk.engine.state.portions.most_bytes

    def end(self, *, committed: bool, slow: bool = False) -> int:
        """The one on the way ends so; how many records the next one has."""
        self.desk.do("transacted", self.sent.sequence, committed=committed, slow=slow)
        self.desk.pass_time(0.1)
        (self.sent,) = self.desk.take(fx.Transact)
        return sum(len(item.claims) for item in self.sent.items)


def test_the_room_of_a_slow_transaction_is_half_of_what_was_in_it():
    """Not of what it might have had: ten records were too many, so five are tried, then two."""
    slow = Slow(100 * SIZE, 10)
    assert [slow.end(committed=False, slow=True) for _ in range(4)] == [5, 2, 1, 1]
    assert slow.room >= 1


def test_the_room_grows_by_an_eighth_where_it_was_used():
    """Back to what is allowed, and no further."""
    slow = Slow(16 * SIZE, 200)
    slow.end(committed=False, slow=True)
    rooms = [slow.room]
    for _ in range(8):
        slow.end(committed=True)
        rooms.append(slow.room)
    assert all(a < b <= a * 9 // 8 + 1 for a, b in pairwise(rooms[:7]))
    assert rooms[0] == 8 * SIZE
    assert rooms[-1] == 16 * SIZE


def test_the_room_stays_where_it_was_not_used():
    """A transaction with little in it says nothing of one with much."""
    slow = Slow(64 * SIZE, 64)
    slow.end(committed=False, slow=True)
    slow.end(committed=False)
    assert slow.room == 32 * SIZE
    slow.desk.poll(slow.part, 65, key=None)
    last = works_of(slow.desk)
    for _ in range(3):
        slow.desk.do("transacted", slow.sent.sequence, committed=True)
        slow.desk.pass_time(0.1)
        slow.sent = (slow.desk.take(fx.Transact) or [slow.sent])[-1]
    room = slow.room
    slow.desk.do("calls_ended", [], [Returned(work, ["out"]) for work in last])
    slow.desk.pass_time(0.1)
    (sent,) = slow.desk.take(fx.Transact)
    slow.desk.do("transacted", sent.sequence, committed=True)
    assert slow.room == room < 64 * SIZE


@pytest.mark.parametrize("share", ["one", "each"])
def test_a_second_partition_waits_where_the_first_has_taken_the_room(share):
    """Whether its records share one output or have one each: only the first goes over the room."""
    options = {"batch": Batch(2, 0.0)} if share == "one" else {}
    desk = exact(Limits(transaction_bytes=1), concurrency=50, **options)
    for part in desk.assign(0, 1, 2):
        desk.poll(part, 0, 1, key=None)
    for effect in desk.take(fx.Start):
        shared = ["out"]
        if share == "one":
            desk.do("batch_ended", 0, [], [Returned(work, shared) for work in effect.works])
        else:
            desk.do("calls_ended", [], [Returned(work, ["out"]) for work in effect.works])
    (first,) = desk.take(fx.Transact)
    desk.do("transacted", first.sequence, committed=True)
    desk.pass_time(1.0)
    (second,) = desk.take(fx.Transact)
    assert len([item for item in second.items if item.claims]) == 1


def test_dead_letters_that_take_too_long_go_in_smaller_transactions():
    """As outputs do: each is as large as its record."""
    policy = {"retry": Retry(attempts=1), "on_exhausted": DeadLetter("dlq")}
    desk = exact(Limits(), **policy)
    (part,) = desk.assign(0)
    desk.poll(part, *range(5), key=None)
    failed = [Failed(work, ERROR) for work in desk.started()]
    desk.do("calls_ended", [], failed)
    counts = []
    for _ in range(3):
        (sent,) = desk.take(fx.Transact)
        claims = [work for item in sent.items for work in item.claims]
        counts.append(len(claims))
        works = [(work, ()) for work in claims]
        desk.do("transacted", sent.sequence, committed=False, slow=True, sent=works)
        desk.pass_time(1.0)
    assert counts == [5, 2, 1]
