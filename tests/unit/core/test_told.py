"""What the engine tells of records and commits: outcomes, troubles, what is stored."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, Desk

from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Limits, Returned, Unhandled
from perkey.core.offsets import Offsets
from perkey.core.work import size_bytes
from perkey.policies import DeadLetter, Park, Retry, Skip, Stop
from perkey.types import Record, Sent

ONE = Retry(attempts=1)


def given_up(policy, delivery: str = "at_least_once") -> Desk:
    """A desk whose only record has failed for good; results are read."""
    spec = HandlerSpec("h", delivery=delivery, retry=ONE, on_exhausted=policy)
    desk = Desk(spec)
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    if delivery == "at_most_once":
        for effect in desk.take(fx.CommitOffsets):
            desk.answer(effect)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    return desk


@pytest.mark.parametrize(
    ("policy", "outcome"), [(Park(), "parked"), (Stop(), "failed"), (Skip(), "skipped")]
)
def test_what_is_given_up_is_reported_by_its_policy(policy, outcome):
    """A reader of results knows a parked record from one that ended the run."""
    reported = given_up(policy).take(fx.Finished)
    assert [(one.outcome, one.error) for one in reported] == [(outcome, ERROR)]


@pytest.mark.parametrize(
    ("policy", "told"), [(Park(), ["failed", "parked"]), (Skip(), ["failed", "skipped"])]
)
def test_what_is_given_up_is_reported_to_the_log(policy, told):
    """The attempt that failed, and what became of the record."""
    troubles = given_up(policy).take(fx.Troubled)
    assert [one.outcome for one in troubles] == told
    assert {(one.attempts, one.error) for one in troubles} == {(1, ERROR)}


def test_a_result_names_where_its_outputs_are_stored():
    """Topic, partition and offset of each, as the broker acknowledged them."""
    desk = Desk()
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    stored = (Sent("o", 0, 7, None),)
    desk.do("outputs_answered", [(work, stored, None)])
    assert [(one.outcome, one.outputs) for one in desk.take(fx.Finished)] == [("done", stored)]


def test_a_dead_letter_of_at_most_once_is_sent_and_acknowledged():
    """It is produced, and the record ends as dead-lettered."""
    desk = given_up(DeadLetter("dead"), "at_most_once")
    (letter,) = [one for one in desk.effects if isinstance(one, fx.SendDeadLetter)]
    assert (letter.topic, letter.error) == ("dead", ERROR)
    stored = (Sent("dead", 0, 7, None),)
    desk.do("outputs_answered", [(letter.work, stored, None)])
    told = [(one.outcome, one.outputs) for one in desk.take(fx.Finished)]
    assert told == [("dead_lettered", stored)]


def test_a_dead_letter_of_exactly_once_goes_with_the_transaction():
    """It is no send of its own; with the transaction the record is dead-lettered."""
    desk = given_up(DeadLetter("dead"), "exactly_once")
    (sent,) = [one for one in desk.effects if isinstance(one, fx.Transact)]
    (work,) = sent.items[0].claims
    assert isinstance(work.outputs, fx.SendDeadLetter)
    desk.do("transacted", sent.sequence, committed=True, sent=[(work, ())])
    assert [one.outcome for one in desk.take(fx.Finished)] == ["dead_lettered"]


def test_a_stored_commit_is_reported_and_a_refused_one_is_not():
    """What `on_commit` hears is what the broker holds."""
    desk = Desk(HandlerSpec("h", ordering="unordered"), limits=Limits(commit_retry_s=0.1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.answer(sent, "retry")
    assert desk.take(fx.CommitsStored) == []
    desk.pass_time(1.0)
    (again,) = desk.take(fx.CommitOffsets)
    desk.answer(again)
    (stored,) = desk.take(fx.CommitsStored)
    assert [(one.partition, one.frontier) for one in stored.committed] == [(0, 2)]


def test_a_commit_without_room_for_its_map_reports_that_nothing_beyond_is_done():
    """The frontier alone is committed: nothing past it is claimed."""
    desk = Desk(HandlerSpec("h", ordering="unordered"), limits=Limits(map_chars=3))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    works = desk.started()
    assert [work.record.offset for work in works] == [0]
    desk.do("calls_ended", works)
    desk.poll(part, 2)
    (item,) = desk.commit().items
    assert (item.frontier, item.metadata, item.done_beyond) == (1, "", 0)


def test_outputs_weigh_nothing_for_who_does_not_weigh_them():
    """An engine that is not told how keeps no bytes of them."""
    desk = Desk(HandlerSpec("h", delivery="exactly_once"))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert part.outputs_bytes == 0


def test_a_record_that_has_not_failed_has_no_attempt_behind_it():
    """The account shows none."""
    desk = Desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    assert work.attempts == 0


def test_outputs_of_at_most_once_are_reported_when_they_are_stored():
    """A reader of results hears of the record, with what was sent for it."""
    desk = Desk(HandlerSpec("h", delivery="at_most_once", retry=ONE, on_exhausted=Skip()))
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    for effect in desk.take(fx.CommitOffsets):
        desk.answer(effect)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert desk.take(fx.Finished) == []
    desk.do("outputs_answered", [(work, (), None)])
    assert [one.outcome for one in desk.take(fx.Finished)] == ["done"]


def test_records_of_a_transaction_are_counted_once_each():
    """By their handler, whether somebody reads results or not."""
    for on in (False, True):
        desk = Desk(HandlerSpec("h", delivery="exactly_once", ordering="unordered"))
        desk.engine.report_results(on=on)
        (part,) = desk.assign(0)
        desk.poll(part, 0, 1, 2)
        works = desk.started()
        desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
        (sent,) = desk.take(fx.Transact)
        assert desk.engine.state.handlers[0].done == 0
        desk.do("transacted", sent.sequence, committed=True)
        assert desk.engine.state.handlers[0].done == 3


def test_a_text_weighs_by_its_letters():
    """Beyond ASCII a letter takes up to four bytes; nothing takes nothing."""
    assert size_bytes("") == 0
    assert size_bytes("abcd") - size_bytes("ab") == 2
    assert size_bytes("日本語版") - size_bytes("日本") == 8


def test_what_is_fetched_twice_is_handled_once():
    """After a pause librdkafka may bring again what was there; its times are no offsets."""
    desk = Desk(HandlerSpec("h", ordering="unordered"))
    (part,) = desk.assign(0)
    records = [Record("t", 0, offset, 1_700_000_000_000, b"k", b"v") for offset in (0, 1)]
    desk.do("polled", [(part, records, [10, 10])])
    assert len(desk.started()) == 2
    desk.do("polled", [(part, records, [10, 10])])
    assert desk.started() == []
    assert part.bytes == sum(work.size for work in part.works())


def test_a_restored_hole_that_the_log_no_longer_has_is_no_hole():
    """Compacted since: where nothing is left to read before the position, nothing is waited for."""
    offsets = Offsets(0, not_done=[0, 3], restored_top=5)
    offsets.advance(3)
    assert offsets.frontier == 3
    offsets.advance(10)
    assert (offsets.frontier, offsets.position, list(offsets.incomplete)) == (10, 10, [])


def test_an_attempt_that_is_cancelled_for_its_partition_is_reported():
    """As superseded, and counted, once: not again when its partition goes."""
    desk = Desk(HandlerSpec("h", ordering="unordered"))
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    first, second = desk.started()
    desk.do("calls_ended", [], [Unhandled(first, cancelled=True), Unhandled(second)])
    desk.do("closed", [part], lost=False)
    assert [(one.work, one.outcome) for one in desk.take(fx.Finished)] == [(first, "superseded")]
    assert part.handler.superseded == 1


def test_an_attempt_that_outlives_its_epoch_is_reported_when_it_ends():
    """As superseded, and once: not when its partition goes."""
    desk = Desk()
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    works = desk.started()
    desk.do("closed", [part], lost=True)
    assert desk.take(fx.Finished) == []
    desk.do("calls_ended", works)
    assert [(one.work, one.outcome) for one in desk.take(fx.Finished)] == [(works[0], "superseded")]
