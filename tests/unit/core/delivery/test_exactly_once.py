"""Exactly once: outputs and offsets in one transaction."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, batches, in_batches, offsets

from perkey.codec import encode
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.policies import Batch, Retry, Skip
from perkey.types import Record

EXACT = HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=3, delay_s=1.0, jitter=0.0))


def test_lane_continues_before_the_transaction_ends(make_desk):
    """The next record starts when the handler returns; its output waits."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert offsets(desk.started()) == [1]


def test_refused_output_is_tried_again_alone_in_its_lane(make_desk):
    """After an abort the refused record waits its turn: its lane runs one at a time."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (first,) = desk.started()
    desk.do("calls_ended", [], [Returned(first, ["out"])])
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.Transact)]
    (second,) = desk.started()
    desk.do("transacted", sent.sequence, committed=False, refused=[(first, ERROR)])
    desk.pass_time(1.5)
    assert desk.started() == []
    desk.do("calls_ended", [second])
    assert offsets(desk.started()) == [0]


def test_committed_transaction_finishes_its_claims(make_desk):
    """Outputs and offsets are stored together, then the records are done."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    (sent,) = desk.take(fx.Transact)
    desk.do("transacted", sent.sequence, committed=True)
    assert (part.commit.committed, work.state) == (1, states.DONE)


def test_exactly_once_cuts_batches_by_partition(make_desk):
    """Outputs are shared by a batch: no partition may be revoked from under a half of them."""
    desk = make_desk(in_batches(4, delivery="exactly_once"))
    desk.poll(desk.assign(0)[0], 0, 1, key=None)
    desk.poll(desk.assign(1)[0], 0, 1, key=None)
    desk.pass_time(0.1)
    effects = [effect for effect in desk.effects if isinstance(effect, fx.Start)]
    assert [{work.partition.number for work in effect.works} for effect in effects] == [{0}, {1}]


def test_outputs_of_a_batch_go_with_its_partition(make_desk):
    """exactly_once: one partition is revoked, what the other sends has nothing of the first."""
    desk = make_desk(in_batches(4, delivery="exactly_once"))
    goes, stays = desk.assign(0, 1)
    desk.poll(goes, 0, key=None)
    desk.poll(stays, 0, key=None)
    desk.pass_time(0.1)
    desk.do("revoking", [goes])
    started = [effect.works for effect in desk.take(fx.Start)]
    desk.do("closed", [goes])
    for works in started:
        desk.do("batch_ended", 0, [], [Returned(work, ["out"]) for work in works])
    assert [claimed(effect) for effect in desk.take(fx.Transact)] == [{(1, 0)}]


def claimed(effect) -> set[tuple[int, int]]:
    """Partition and offset of every record in the transaction."""
    works = [work for item in effect.items for work in item.claims]
    return {(work.partition.number, work.record.offset) for work in works}


def test_exactly_once_batches_may_be_of_one_key(make_desk):
    """`by="key"` is narrower than what exactly_once needs, so it holds there too."""
    spec = HandlerSpec("h", delivery="exactly_once", batch=Batch(10, 0.5, by="key"))
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=b"a")
    desk.poll(part, 1, key=b"b")
    desk.pass_time(0.5)
    assert batches(desk) == [[0], [1]]


@pytest.fixture
def handled(make_desk):
    """Every second of 200 records is handled, and the broker stores a map of so many characters.

    `dirty`: there is something to commit beside the claims.
    """

    def made(map_chars: int, *, dirty: bool):
        spec = HandlerSpec("h", "unordered", 200, delivery="exactly_once")
        desk = make_desk(spec, limits=Limits(commit_retry_s=0.25))
        (part,) = desk.assign(0)
        desk.poll(part, *range(200), key=None)
        if dirty:
            part.offsets.advance(300)
        part.commit.map_limit = map_chars
        works = desk.started()
        desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works[1::2]])
        return desk

    return made


@pytest.mark.parametrize("map_chars", [12, 16, 20, 24])
@pytest.mark.parametrize("dirty", [False, True])
def test_as_many_claims_go_into_a_transaction_as_the_map_tells(handled, map_chars, dirty):
    """The lowest offsets, and not one less than fit."""
    (sent,) = handled(map_chars, dirty=dirty).take(fx.Transact)
    (item,) = sent.items
    claims = offsets(item.claims)
    assert claims == list(range(1, claims[-1] + 1, 2))
    one_more = encode(0, claims[-1] + 2, range(0, claims[-1] + 2, 2))
    assert len(item.metadata) <= map_chars < len(one_more)


def test_claims_of_which_none_fits_are_tried_again_later(handled):
    """With nothing else to commit no transaction is made, and the engine does not look at once."""
    desk = handled(4, dirty=False)
    assert desk.take(fx.Transact) == []
    assert desk.engine.next_deadline() == 0.25


def test_the_longest_map_of_a_transaction_that_was_refused_for_it_is_halved(make_desk):
    """Nobody says whose it was; nothing is finished, and the next one has a shorter map."""
    spec = HandlerSpec("h", "unordered", 400, delivery="exactly_once")
    desk = make_desk(spec, limits=Limits(commit_retry_s=0.25))
    short, long = desk.assign(0, 1)
    for part, count in ((short, 20), (long, 200)):
        desk.poll(part, *range(count), key=None)
    done = [work for work in desk.started() if work.record.offset % 2]
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in done])
    (sent,) = desk.take(fx.Transact)
    chars = {item.partition: len(item.metadata) for item in sent.items}
    assert chars[long] > chars[short]
    desk.do("transacted", sent.sequence, committed=False, maps_too_large=True)
    assert [part.commit.map_limit for part in (short, long)] == [4096, 2048]
    assert {work.state for work in done} == {states.PENDING}
    desk.pass_time(0.25)
    (again,) = desk.take(fx.Transact)
    assert sum(len(item.claims) for item in again.items) == len(done)


def test_what_else_is_new_is_committed_where_no_claim_fits(handled):
    """The position goes on."""
    (sent,) = handled(4, dirty=True).take(fx.Transact)
    assert [item.claims for item in sent.items] == [[]]


def test_a_long_transaction_is_waited_for(make_desk):
    """However long it takes nobody asks what became of it, or to be woken all the time."""
    desk = make_desk(EXACT, limits=Limits(commit_answer_s=5.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in desk.started()])
    for _ in range(30):
        desk.pass_time(1.0)
        assert desk.engine.next_deadline() > desk.now
    assert desk.take((fx.ReadCommitted, fx.CommitOffsets)) == []


def test_refused_outputs_of_a_batch_take_their_turns_in_the_lane(make_desk):
    """The lane has gone on: each of its records comes again by itself, in halves of its batch."""
    retry = Retry(attempts=3, delay_s=1.0, jitter=0.0)
    desk = make_desk(in_batches(2, 0.0, delivery="exactly_once", retry=retry))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    shared = Shared()
    desk.do("batch_ended", 0, [], [Returned(work, shared) for work in effect.works])
    (sent,) = desk.take(fx.Transact)
    refused = [(work, ERROR) for work in effect.works]
    desk.do("transacted", sent.sequence, committed=False, refused=refused)
    assert [work.failure.shared for work in effect.works] == [1, 1]
    desk.pass_time(2.0)
    again = []
    while calls := desk.take(fx.Start):
        for call in calls:
            again.append(offsets(call.works))
            desk.do("batch_ended", 0, call.works, [])
    assert again == [[0], [1]]


class Shared(list):
    """What a batch of two returns."""

    records = 2


def test_records_that_share_an_output_wait_together_and_their_lanes_behind_them(make_desk):
    """The map has no room for one of them: neither goes, nor what came later in their lanes."""
    spec = HandlerSpec("h", delivery="exactly_once", batch=Batch(100, 0.0))
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    part.commit.map_limit, part.reach.limit = 16, 1_000
    keys = {1: b"k", 3: b"k"}
    records = [Record("t", 0, offset, 0, keys.get(offset), b"") for offset in range(100)]
    desk.do("polled", [(part, records, [1] * 100)])
    works = [work for effect in desk.take(fx.Start) for work in effect.works]
    odd = sorted((work for work in works if work.record.offset % 2), key=offset_of)
    shared = ["of two"]
    ended = [Returned(work, shared if offset_of(work) in (1, 99) else ["own"]) for work in odd]
    desk.do("batch_ended", 0, [], ended)
    (sent,) = desk.take(fx.Transact)
    claims = offsets(sent.items[0].claims)
    assert claims[:3] == [5, 7, 9]
    assert not {1, 3, 99} & set(claims)


def offset_of(work) -> int:
    """Where it stands."""
    return work.record.offset


def test_what_waits_for_a_transaction_on_the_way_wakes_no_one(make_desk):
    """Its turn comes with the answer: until then there is nothing to look at."""
    desk = make_desk(EXACT)
    first, second = desk.assign(0, 1)
    desk.poll(first, 0)
    desk.poll(second, 0)
    for work in desk.started():
        desk.do("calls_ended", [], [Returned(work, ["out"])])
    (sent,) = desk.take(fx.Transact)
    assert [item.partition for item in sent.items] == [first]
    assert desk.engine.next_deadline() > desk.now
    desk.pass_time(0.1)
    desk.do("transacted", sent.sequence, committed=True)
    assert [item.partition for item in desk.take(fx.Transact)[0].items] == [second]


def test_no_map_is_blamed_where_there_is_none(make_desk):
    """A transaction refused for its maps has none: what may be stored is as much as before."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.do("reached", [(part, 5)])
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.Transact)
    assert (sent.items[0].frontier, sent.items[0].metadata) == (5, "")
    desk.do("transacted", sent.sequence, committed=False, maps_too_large=True)
    assert part.commit.map_limit == 4096


def test_the_map_of_another_delivery_is_not_blamed_for_a_transaction(make_desk):
    """However long: it is on its own way, and the longest of the transaction is made shorter."""
    specs = HandlerSpec("a", "unordered"), HandlerSpec("b", "unordered", 9, delivery="exactly_once")
    desk = make_desk(*specs, limits=Limits(commit_answer_s=600.0))
    (plain,) = desk.assign(0, topic="a")
    (exact,) = desk.assign(0, topic="b", handler=1)
    desk.poll(plain, *range(200), key=None)
    desk.poll(exact, 0, 1, key=None)
    works = desk.started()
    desk.do("calls_ended", [w for w in works if w.partition is plain and w.record.offset % 2])
    desk.pass_time(1.0)
    (commit,) = desk.take(fx.CommitOffsets)
    late = [w for w in works if w.partition is exact and w.record.offset]
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in late])
    (sent,) = desk.take(fx.Transact)
    assert 0 < len(sent.items[0].metadata) < len(commit.items[0].metadata)
    desk.do("transacted", sent.sequence, committed=False, maps_too_large=True)
    assert (plain.commit.map_limit, exact.commit.map_limit) == (4096, 2048)


def test_what_a_transaction_skips_is_not_counted_as_done(make_desk):
    """Nobody reads results; the record is given up, and its offset goes with the others."""
    desk = make_desk(HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=1),
                                 on_exhausted=Skip()))  # fmt: skip
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    (sent,) = desk.take(fx.Transact)
    desk.do("transacted", sent.sequence, committed=True)
    handler = desk.engine.state.handlers[0]
    assert (handler.skipped, handler.done, part.frontier) == (1, 0, 1)
