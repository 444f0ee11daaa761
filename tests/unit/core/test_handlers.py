"""Several handlers in one engine: slots, counts and commits of their own."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, in_batches, offsets

from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.policies import Commit, DeadLetter, Retry, Skip

ONE_ATTEMPT = {"retry": Retry(attempts=1), "on_exhausted": Skip()}


@pytest.fixture
def two(make_desk):
    """A desk with two handlers, a partition for each, and two records of each that run."""

    def made(**other):
        specs = [HandlerSpec("a", "unordered", 2, **ONE_ATTEMPT)]
        specs.append(HandlerSpec("b", "unordered", 2, **{**ONE_ATTEMPT, **other}))
        desk = make_desk(*specs, limits=Limits(commit_answer_s=600.0))
        parts = [desk.assign(0, topic=name, handler=n)[0] for n, name in enumerate("ab")]
        for part in parts:
            desk.poll(part, 0, 1, 2)
        return desk, parts, desk.started()

    return made


def test_each_handler_has_its_own_slots_and_counts(two):
    """Done and failed, in one event: what ends of one starts the next of the same."""
    desk, parts, works = two()
    first, second = ([w for w in works if w.partition is part] for part in parts)
    desk.do("calls_ended", [*first, second[0]], [Failed(second[1], ERROR)])
    a, b = desk.engine.state.handlers
    assert [(one.done, one.skipped, one.slots.taken) for one in (a, b)] == [(2, 0, 1), (1, 1, 1)]
    assert sorted((w.partition.topic, w.record.offset) for w in desk.started()) == [
        ("a", 2),
        ("b", 2),
    ]


@pytest.mark.parametrize("ended", ["done", "failed"])
def test_the_slots_of_what_ends_are_those_of_its_handler(two, ended):
    """All of one handler at once, and nothing of the other."""
    desk, parts, works = two()
    mine = [work for work in works if work.partition is parts[1]]
    if ended == "done":
        desk.do("calls_ended", mine)
    else:
        desk.do("calls_ended", [], [Failed(work, ERROR) for work in mine])
    assert [one.slots.free for one in desk.engine.state.handlers] == [0, 1]


def test_a_transaction_reports_nothing_of_the_commits_of_others(two):
    """One handler is exactly_once, the other is not: each waits for its own answer."""
    desk, parts, works = two(delivery="exactly_once")
    plain, exact = ([w for w in works if w.partition is part] for part in parts)
    desk.do("calls_ended", plain)
    desk.pass_time(1.0)
    (commit,) = desk.take(fx.CommitOffsets)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in exact])
    (transaction,) = desk.take(fx.Transact)
    desk.do("transacted", transaction.sequence, committed=True)
    assert [part.commit.committed for part in parts] == [-1, 2]
    assert desk.engine.state.counts["late_commit_answers"] == 0
    desk.answer(commit)
    assert [part.commit.committed for part in parts] == [2, 2]


@pytest.mark.parametrize("end", ["calls", "outputs", "batch"])
def test_what_may_be_fetched_again_is_looked_at_as_records_end(make_desk, end):
    """Every 64 of them, however they end: nobody waits for the next tick."""
    spec = in_batches(200, 0.0) if end == "batch" else HandlerSpec("h", concurrency=200)
    desk = make_desk(spec, limits=Limits(buffer_records=100, commit=Commit(interval_s=600.0)))
    (part,) = desk.assign(0)
    desk.poll(part, *range(100), key=None)
    assert part.intake_paused
    calls = desk.take(fx.Start)
    works = [work for call in calls for work in call.works]
    if end == "calls":
        desk.do("calls_ended", works)
    elif end == "batch":
        desk.do("batch_ended", 0, works, [])
    else:
        desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
        assert part.intake_paused
        desk.do("outputs_answered", [(work, (), None) for work in works])
    assert [effect.partitions for effect in desk.take(fx.ResumeIntake)] == [[part]]


def test_a_dead_letter_that_a_transaction_does_not_take_is_none(make_desk):
    """The record is parked with what was said, and keeps nothing that it has to produce."""
    policy = DeadLetter("dead")
    desk = make_desk(
        HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=1), on_exhausted=policy)
    )
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    (sent,) = desk.take(fx.Transact)
    refusal = ERROR._replace(message="too large")
    desk.do("transacted", sent.sequence, committed=False, refused=[(work, refusal)])
    said = f"dead letter refused: too large; the record failed: {ERROR.line}"
    assert (part.parked, work.outputs, work.failure.error.message) == (1, None, said)
    assert work.story()[-1].what == "dead letter refused: too large"


@pytest.mark.parametrize(
    ("event", "delivery", "found"),
    [
        (None, "at_least_once", True),
        ("revoking", "at_least_once", False),
        ("last_commit", "at_least_once", False),
        (None, "exactly_once", False),
    ],
)
def test_a_proof_is_of_an_open_partition_with_no_commit_on_the_way(
    make_desk, event, delivery, found
):
    """It says what is stored already, for the broker takes it from a member of the group alone."""
    desk = make_desk(HandlerSpec("h", delivery=delivery))
    (part,) = desk.assign(0, start=7, committed=7)
    if event == "last_commit":
        desk.do("reached", [(part, 8)])
    if event:
        desk.do(event, [part])
    proof = desk.do("proof_commit")
    assert (proof is not None) == found
    if proof is not None:
        assert [(item.frontier, offsets(item.claims)) for item in proof.items] == [(7, [])]


def test_the_number_of_records_counts_each_of_a_transaction_once(make_desk):
    """Every third record: two of exactly_once and one of another handler."""
    specs = HandlerSpec("a", "unordered"), HandlerSpec("b", "unordered", delivery="exactly_once")
    desk = make_desk(*specs, limits=Limits(commit=Commit(interval_s=60.0, max_records=3)))
    (plain,) = desk.assign(0, topic="a")
    (exact,) = desk.assign(0, topic="b", handler=1)
    desk.poll(plain, 0)
    desk.poll(exact, 0, 1)
    done, *others = desk.started()
    desk.do("calls_ended", [done])
    told = []
    for work in others:
        desk.do("calls_ended", [], [Returned(work, ["out"])])
        told.append([item.frontier for one in desk.take(fx.CommitOffsets) for item in one.items])
    assert told == [[], [1]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"commit_each": True},
        {"delivery": "at_most_once", **ONE_ATTEMPT},
        {"delivery": "exactly_once"},
    ],
    ids=["at_least_once", "each", "at_most_once", "exactly_once"],
)
@pytest.mark.parametrize("handlers", [1, 2])
def test_a_record_without_outputs_is_counted_and_reported_once(make_desk, options, handlers):
    """When it is done, by the rules of its delivery: not when its call ends, and then again."""
    others = [HandlerSpec("other")] * (handlers - 1)
    desk = make_desk(HandlerSpec("h", **options), *others)
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    told = list(desk.effects)
    for effect in desk.take(fx.CommitOffsets):
        desk.answer(effect)
    told += desk.effects
    desk.do("calls_ended", [one.works[0] for one in told if isinstance(one, fx.Start)])
    told += desk.effects
    for effect in desk.take(fx.CommitOffsets | fx.Transact):
        if isinstance(effect, fx.Transact):
            desk.do("transacted", effect.sequence, committed=True)
        elif options.get("commit_each"):
            desk.answer(effect)
    told += desk.effects
    assert [one.outcome for one in told if isinstance(one, fx.Finished)] == ["done"]
    assert desk.engine.state.handlers[0].done == 1
