"""What is counted, and that every event brings the time with it."""

from __future__ import annotations

from itertools import groupby

import pytest
from tests.unit.core.conftest import ERROR, offsets

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.policies import DeadLetter, Park, Retry, Skip, Stop
from perkey.types import Record, Sent

COUNTS = ("done", "failures", "retries", "dead_lettered", "skipped", "parked", "superseded")


def counts(desk) -> dict[str, int]:
    """What the handler counts, without zeros."""
    handler = desk.engine.state.handlers[0]
    return {name: getattr(handler, name) for name in COUNTS if getattr(handler, name)}


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        (Park(), {"parked": 1}),
        (Skip(), {"skipped": 1}),
        (DeadLetter("dlq"), {"dead_lettered": 1}),
        (Stop(), {"parked": 1}),
    ],
)
def test_each_record_is_counted_once(make_desk, policy, more):
    """Every failed call, every retry, and how the record ended."""
    retry = Retry(attempts=2, delay_s=1.0, jitter=0.0)
    desk = make_desk(HandlerSpec("h", ordering="unordered", retry=retry, on_exhausted=policy))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    bad, sent, good = desk.started()
    desk.do("calls_ended", [good], [Failed(bad, ERROR), Returned(sent, ["out"])])
    assert counts(desk) == {"done": 1, "failures": 1, "retries": 1}
    desk.do("outputs_answered", [(sent, (), None)])
    desk.pass_time(1.0)
    desk.do("calls_ended", [], [Failed(bad, ERROR)])
    if isinstance(policy, DeadLetter):
        desk.do("outputs_answered", [(bad, (), None)])
    assert counts(desk) == {"done": 2, "failures": 2, "retries": 1, **more}


def test_a_late_completion_is_counted_as_superseded(make_desk):
    """And as nothing else."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    works = desk.started()
    desk.do("closed", [part], lost=True)
    desk.do("calls_ended", works)
    assert counts(desk) == {"superseded": 1}
    state = desk.engine.state
    assert (state.counts["late_completions"], state.counts["partitions_lost"]) == (1, 1)
    desk.assign(0)
    desk.do("closed", list(state.partitions.values()))
    assert state.counts["partitions_revoked"] == 1


def test_a_late_acknowledgement_is_counted(make_desk):
    """The epoch of a record whose outputs were on the way has ended."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    desk.do("closed", [part])
    desk.do("outputs_answered", [(work, (), None)])
    assert desk.engine.state.counts["late_acknowledgements"] == 1
    assert (work.state, counts(desk)) == (states.SUPERSEDED, {})


def test_a_refused_dead_letter_is_the_last_error(make_desk):
    """There is none, and the record says why."""
    spec = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=DeadLetter("dlq"))
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    refusal = ERROR._replace(type="Refused", message="too large")
    desk.do("outputs_answered", [(work, (), refusal)])
    assert work.failure is not None
    assert (work.failure.given_up, work.state) == (None, states.PARKED)
    said = f"dead letter refused: too large; the record failed: {ERROR.line}"
    assert work.failure.error == ("Refused", said, "")
    assert "dead letter refused" in work.story()[-1].what


@pytest.mark.parametrize(("length", "told"), [(199, 199), (200, 200), (201, 200)])
def test_a_long_refusal_of_a_dead_letter_is_reported_shortened(make_desk, length, told):
    """Its first 200 characters stand in the record's story."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=DeadLetter("dlq")))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    desk.do("outputs_answered", [(work, (), ERROR._replace(message="x" * length))])
    assert work.story()[-1].what == f"dead letter refused: {'x' * told}"


@pytest.mark.parametrize(("length", "told"), [(99, 99), (100, 100), (101, 100)])
def test_a_long_error_is_reported_shortened(make_desk, length, told):
    """Its first 100 characters stand in the record's story; the record keeps it whole."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    error = ERROR._replace(message="x" * length)
    desk.do("calls_ended", [], [Failed(work, error)])
    assert f"attempt 1 failed: ValueError: {'x' * told}" in [one.what for one in work.story()]
    assert work.failure.error == error


EVENTS = {
    "assigned": ([],),
    "revoking": ([],),
    "last_commit": ([],),
    "proof_commit": (),
    "closed": ([],),
    "polled": ([],),
    "reached": ([],),
    "calls_ended": ([], []),
    "batch_progressed": ([], []),
    "outputs_answered": ([],),
    "commit_answered": ([],),
    "committed_read": ([],),
    "tick": (),
    "commit_soon": (),
    "stop": ("in_flight",),
}


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_brings_the_time(make_desk, event):
    """Delays and intervals count from the event that begins them."""
    desk = make_desk()
    desk.now = 7.5
    desk.do(event, *EVENTS[event])
    assert desk.engine.state.now == 7.5


def test_halts_pauses_and_transactions_bring_the_time(make_desk):
    """So do those with named arguments."""
    desk = make_desk()
    for now, event, arguments, named in (
        (1.0, "halt", ("outputs",), {"on": True}),
        (2.0, "pause", (None,), {"on": True}),
        (3.0, "transacted", (1,), {"committed": True}),
    ):
        desk.now = now
        desk.do(event, *arguments, **named)
        assert desk.engine.state.now == now


def test_a_commit_is_in_doubt_when_its_time_is_over_and_not_before(make_desk):
    """`commit_answer_s` from when it was sent."""
    limits = Limits(commit_answer_s=3.0)
    desk = make_desk(HandlerSpec("h", ordering="unordered"), limits=limits)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    desk.now = 10.0
    desk.do("tick")
    assert (part.commit.state, part.commit.at) == (states.SENT, 13.0)
    desk.pass_time(2.9)
    assert desk.take(fx.ReadCommitted) == []
    desk.pass_time(0.1)
    assert len(desk.take(fx.ReadCommitted)) == 1
    assert desk.engine.state.counts["commits_in_doubt"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        HandlerSpec("h", commit_each=True),
        HandlerSpec("h", delivery="at_most_once", retry=Retry(attempts=1), on_exhausted=Skip()),
    ],
)
def test_no_one_waits_for_a_commit_that_is_stored(make_desk, spec):
    """The partition is looked at no more, until it has a claim again."""
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    if spec.commit_each:
        desk.do("calls_ended", desk.started())
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.CommitOffsets)]
    assert list(desk.engine.state.claiming) == [part]
    desk.answer(sent)
    assert desk.engine.state.claiming == {}


def far(part, *places: int) -> None:
    """Records at these offsets wait for room in the map."""
    for offset in places:
        part.wait(part.offsets.incomplete[offset], states.ROOM)


@pytest.mark.parametrize("opened", [[], [2], [1, 3], [3, 1, 2]])
def test_what_waits_for_room_comes_back_by_its_offset(make_desk, opened):
    """In the order in which room is found; the others still wait, the nearest first."""
    desk = make_desk(HandlerSpec("h", ordering="unordered", concurrency=1))
    (part,) = desk.assign(0)
    desk.do("pause", "t", on=True)
    desk.engine.polled(0.0, [(part, [Record("t", 0, o, 0, None, b"") for o in range(4)], [1] * 4)])
    part.lanes.ready.clear()
    far(part, 3, 1, 2)
    for offset in opened:
        part.readmit(part.lanes.far[offset])
    assert offsets(part.lanes.ready) == opened
    waiting = [offset for offset in (1, 2, 3) if offset not in opened]
    assert sorted(part.lanes.far) == waiting
    assert part.lanes.nearest_far == (waiting[0] if waiting else -1)


def test_free_slots_are_shared_in_whole_rounds(make_desk):
    """Equal shares, each in a row; the rest one by one, and what short ones leave is shared again."""
    desk = make_desk(HandlerSpec("h", concurrency=21))
    parts = desk.assign(0, 1, 2, 3)
    batches = [
        (part, [Record("t", part.number, o, 0, None, b"") for o in range(held)], [1] * held)
        for part, held in zip(parts, (99, 2, 99, 99), strict=True)
    ]
    desk.engine.polled(0.0, batches)
    started = [
        work for effect in desk.engine.take_effects() for work in getattr(effect, "works", ())
    ]
    runs = [
        (number, len(list(run))) for number, run in groupby(w.partition.number for w in started)
    ]
    assert runs == [(0, 5), (1, 2), (2, 5), (3, 5), (0, 1), (2, 1), (3, 1), (0, 1)]


@pytest.mark.parametrize("committed", [True, False])
def test_reported_outputs_are_those_that_a_transaction_stored(make_desk, committed):
    """With partition and offset; of an aborted one nothing is reported."""
    desk = make_desk(HandlerSpec("h", delivery="exactly_once"))
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    (sent,) = desk.take(fx.Transact)
    stored = (Sent("out", 0, 17, None),)
    desk.do("transacted", sent.sequence, committed=committed, sent=[(work, stored)])
    told = [effect.outputs for effect in desk.take(fx.Finished)]
    assert told == ([stored] if committed else [])
    assert work.outputs == (stored if committed else ["out"])


@pytest.mark.parametrize(("delivery", "count"), [("at_least_once", 2), ("at_most_once", 0)])
def test_what_no_map_reports_yet_is_under_way(make_desk, delivery, count):
    """Running or being sent; a started-mark is in the map already."""
    policy = {"retry": Retry(attempts=1), "on_exhausted": Skip()}
    desk = make_desk(HandlerSpec("h", ordering="unordered", delivery=delivery, **policy))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    for effect in [one for one in desk.effects if isinstance(one, fx.CommitOffsets)]:
        desk.answer(effect)
    desk.do("calls_ended", [], [Returned(desk.started()[0], ["out"])])
    assert (part.in_flight, part.sending, part._under_way()) == (1, 1, count)


def test_limits_are_what_the_docs_say():
    """Nobody finds other bounds than those that are written down."""
    limits = Limits()
    assert (limits.buffer_records, limits.buffer_bytes) == (50_000, 134_217_728)
    assert (limits.map_chars, limits.transaction_bytes) == (4_096, 8_388_608)
    assert (limits.commit_answer_s, limits.commit_retry_s) == (5.0, 0.2)


NO_TURN = ("revoking", "last_commit", "proof_commit", "stop")
#: positional and named arguments of those that end with a turn
TURNS = {
    **{name: (arguments, {}) for name, arguments in EVENTS.items() if name not in NO_TURN},
    "pause": (("another",), {"on": True}),
    "halt": (("another",), {"on": False}),
    "transacted": ((1,), {"committed": True}),
}


@pytest.mark.parametrize("event", TURNS)
def test_whatever_happens_what_may_start_does(make_desk, event):
    """Every event ends with a turn: nothing waits for the next one."""
    desk = make_desk(HandlerSpec("h", ordering="unordered"))
    (part,) = desk.assign(0)
    desk.engine.state.gate.close("test")
    desk.poll(part, 0)
    assert desk.started() == []
    desk.engine.state.gate.open("test")
    arguments, named = TURNS[event]
    desk.do(event, *arguments, **named)
    assert offsets(desk.started()) == [0]
