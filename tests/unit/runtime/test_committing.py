"""The way of a commit, with a broker that answers as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count

import pytest
from tests.support.waiting import wait_for

from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.events import Assignment, HandlerSpec, Verdict
from perkey.core.partition import Partition
from perkey.kafka.ports import CommitAnswer, ToCommit
from perkey.runtime import door
from perkey.runtime.calls.aio import AsyncExecutor
from perkey.runtime.calls.threads import ThreadExecutor
from perkey.runtime.door import Door
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.member import committing
from perkey.runtime.member.committing import Committer, MembershipProof
from perkey.runtime.suspension import SUSPENDED_S
from perkey.types import Record


class Broker:
    """A consumer that only commits; `answers` are the verdicts to come, then "stored"."""

    def __init__(self) -> None:
        self.stored: list[list[ToCommit]] = []
        self.answers: list[str] = []
        self._token = 0

    def commit(self, offsets: list[ToCommit]) -> int:
        self.stored.append(offsets)
        self._token += 1
        return self._token

    def commit_and_wait(self, offsets: list[ToCommit], timeout_s: float) -> list[CommitAnswer]:
        verdict = self.answers.pop(0) if self.answers else "stored"
        if verdict == "silence":
            return []
        if verdict == "stored":
            self.commit(offsets)
        return [CommitAnswer(self._token, one.topic, one.partition, verdict, "") for one in offsets]

    def commit_answers(self, timeout_s: float) -> list[CommitAnswer]:
        return []


class Member:
    """As much of a member as a commit needs."""

    def __init__(self) -> None:
        self.engine = Engine([HandlerSpec("handle")])
        self.hours = 0
        self.started: list[fx.Start] = []
        self.fatal: list[fx.Fatal] = []
        self.door = Door(self.engine, self.perform)
        self.consumer = Broker()
        self.clock: Callable[[], float] = time.monotonic
        self.committer = Committer(self, clock=self.now)
        self.proof = MembershipProof(self, self.committer.plan)
        self.committer.on_answered = self.proof.answered
        assignment = Assignment("t", 0, 0, 0)
        (self.partition,) = self.door.call(lambda e, now: e.assigned(now, [assignment]))
        self.partitions = {("t", 0): self.partition}

    def now(self) -> float:
        """The clock of its commits, which a test may replace."""
        return self.clock()

    def wake(self) -> None:
        """Nobody sleeps."""

    def perform(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.CommitOffsets):
                self.committer.plan(effect)
            elif isinstance(effect, fx.Start):
                self.started.append(effect)
            elif isinstance(effect, fx.Fatal):
                self.fatal.append(effect)

    def poll(self, *offsets: int) -> None:
        records = [Record("t", 0, offset, 0, b"%d" % offset, b"v") for offset in offsets]
        batch = (self.partition, records, [1] * len(records))
        self.door.call(lambda e, now: e.polled(now, [batch]))

    def finish(self, offset: int) -> None:
        work = self.partition.offsets.incomplete[offset]
        assert work is not None
        self.door.done.append(work)
        self.door.turn()

    def commit_due(self) -> None:
        """Let the commit interval pass."""
        self.hours += 1
        self.door.call(lambda e, now: e.tick(now + 3600 * self.hours))


@pytest.fixture(autouse=True)
def _nobody_stands_still_by_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that standing still is told by stands still itself."""
    monkeypatch.setattr(door, "since_boot", lambda: 1000.0)
    monkeypatch.setattr(committing, "since_boot", lambda: 1000.0)


@pytest.fixture
def member() -> Member:
    """A member with one partition, of which two records are running and one is done."""
    made = Member()
    made.poll(0, 1, 2)
    made.finish(0)
    return made


def last(member: Member) -> bool:
    """What a revoke does at its end."""
    ours: list[Partition] = [member.partition]
    member.door.call(lambda e, now: e.revoking(now, ours))
    stored = member.committer.send_last(ours)
    member.door.call(lambda e, now: e.closed(now, ours))
    return stored


def test_a_planned_commit_is_sent_once(member: Member) -> None:
    """With the frontier of its snapshot."""
    member.commit_due()
    member.committer.send_planned()
    member.committer.send_planned()
    assert [[one.offset for one in sent] for sent in member.consumer.stored] == [[1]]


def test_a_commit_planned_before_the_last_one_is_not_sent_after_it(member: Member) -> None:
    """It is older, and the partition is another member's by then (found by a storm: S7)."""
    member.commit_due()
    member.finish(1)
    assert last(member)
    member.committer.send_planned()
    assert [[one.offset for one in sent] for sent in member.consumer.stored] == [[2]]


def test_a_lost_partition_is_not_committed(member: Member) -> None:
    """Nothing of a closed epoch goes out, planned or not."""
    member.commit_due()
    member.door.call(lambda e, now: e.closed(now, [member.partition], lost=True))
    member.committer.send_planned()
    assert member.consumer.stored == []


def test_the_last_commit_is_tried_again(member: Member) -> None:
    """A rebalance may refuse it for a moment."""
    member.consumer.answers = ["retry", "retry"]
    assert last(member)
    assert [[one.offset for one in sent] for sent in member.consumer.stored] == [[1]]


def test_the_last_commit_is_asked_again_where_no_answer_came(member: Member) -> None:
    """One lost answer costs a moment, and not what was done (found by a seed: S6)."""
    member.consumer.answers = ["silence"]
    assert last(member)
    assert [[one.offset for one in sent] for sent in member.consumer.stored] == [[1]]


def test_the_last_commit_is_given_up_where_no_one_answers(member: Member) -> None:
    """The group waits for what is given away: it is asked for three seconds, not longer."""
    seconds = count()
    member.clock = lambda: next(seconds)
    member.consumer.answers = ["silence"] * 100
    assert not last(member)
    assert member.consumer.stored == []
    assert next(seconds) <= committing.LAST_COMMIT_S + 2


def test_the_last_commit_of_a_deleted_topic_is_not_repeated_for_long(member: Member) -> None:
    """Its brokers refuse it for good: the polling thread was blocked for three seconds."""
    tenths = count()
    member.clock = lambda: next(tenths) / 10
    member.consumer.answers = ["missing"] * 100
    assert not last(member)
    assert member.consumer.stored == []
    assert next(tenths) / 10 <= committing.LAST_MISSING_S + 0.3


def test_a_last_commit_is_repeated_for_a_topic_that_a_broker_does_not_know_yet(
    member: Member,
) -> None:
    """Its metadata may be a moment old."""
    member.consumer.answers = ["missing"]
    assert last(member)


def test_a_wait_for_a_broker_is_named_where_it_blocks_the_polling_thread(
    member: Member, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until membership is confirmed; the machine is not blamed for it."""
    now = [1000.0]
    for module in (door, committing):
        monkeypatch.setattr(module, "since_boot", lambda: now[0])
    member.proof.renew()
    with member.proof.waits("the last commit"):
        now[0] += SUSPENDED_S + 1
    assert not member.committer.waiting  # a proof now would follow the last commit
    member.proof.renew()
    assert "blocked seconds=2.0 waited_for='the last commit'" in caplog.text
    assert member.proof.waited_for == "the last commit"
    member.committer.send_planned()
    ((sequence, _),) = member.committer._sent.values()
    member.proof.answered(sequence, stored=True)
    assert member.proof.waited_for == ""
    with member.proof.waits("the last commit"):
        assert member.proof.waited_for
    member.proof.renew()
    assert member.proof.waited_for == ""


@pytest.mark.parametrize("verdict", ["gone", "stop"])
def test_the_last_commit_is_given_up_where_it_cannot_be_stored(
    member: Member, verdict: str
) -> None:
    """The group went on without us."""
    member.consumer.answers = [verdict]
    assert not last(member)
    assert member.consumer.stored == []


def test_the_last_commit_waits_for_the_answer_to_an_earlier_one(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Librdkafka may still send that again, and it would put back an older frontier (S2)."""
    sent(member)
    member.finish(1)
    told: list[int] = []

    def answer(timeout_s: float) -> list[CommitAnswer]:
        told.append(len(member.consumer.stored))
        return [CommitAnswer(1, "t", 0, "stored", "")]

    monkeypatch.setattr(member.consumer, "commit_answers", answer)
    assert last(member)
    assert told == [1]
    assert [[one.offset for one in sent] for sent in member.consumer.stored] == [[1], [2]]


def test_an_earlier_commit_is_not_waited_for_for_ever(member: Member) -> None:
    """The last one has a second left to be answered in."""
    seconds = count()
    member.clock = lambda: next(seconds) / 10
    sent(member)
    member.finish(1)
    assert last(member)
    assert [[one.offset for one in sent] for sent in member.consumer.stored] == [[1], [2]]
    assert next(seconds) / 10 <= committing.LAST_COMMIT_S


@pytest.mark.parametrize(("more_s", "waits"), [(-0.1, True), (0.0, False), (0.1, False)])
def test_an_answer_that_does_not_come_is_given_up(
    member: Member, more_s: float, waits: bool
) -> None:
    """Nobody waits for it any longer."""
    now = [100.0]
    member.clock = lambda: now[0]
    sent(member)
    now[0] += committing.ANSWER_S + more_s
    assert member.committer.under_way([("t", 0), ("u", 0)]) is waits
    assert not member.committer.under_way([("u", 0)])


def test_another_consumer_answers_for_nothing_the_former_sent(member: Member) -> None:
    """Its commits count from one again."""
    sent(member)
    member.committer.forget()
    assert not member.committer.under_way([("t", 0)])


def given_up(member: Member) -> None:
    """A commit is not answered in time, and was not stored; the next one is planned."""
    sent(member)
    member.finish(1)
    member.commit_due()
    member.door.call(lambda e, now: e.committed_read(now, [(member.partition, 0, "")]))
    member.commit_due()
    member.committer.send_planned()


def frontiers(member: Member) -> list[int]:
    return [one.offset for sent in member.consumer.stored for one in sent]


def test_a_commit_waits_until_the_former_one_is_answered(member: Member) -> None:
    """A broker that returns gets the former one again, behind it: the frontier would go back (S7)."""
    given_up(member)
    assert frontiers(member) == [1]
    member.committer.take([CommitAnswer(1, "t", 0, "retry", "")])
    member.committer.send_planned()
    assert frontiers(member) == [1, 2]


def test_a_commit_that_waits_keeps_no_one_awake(member: Member) -> None:
    """The polling thread would go round without a pause while a broker is away."""
    given_up(member)
    assert not member.committer.waiting


def test_of_the_commits_that_wait_the_newest_is_sent(member: Member) -> None:
    """Each of them is given up in its turn, and planned anew."""
    given_up(member)
    member.finish(2)
    member.commit_due()
    member.door.call(lambda e, now: e.committed_read(now, [(member.partition, 0, "")]))
    member.commit_due()
    member.committer.send_planned()
    member.committer.take([CommitAnswer(1, "t", 0, "stored", "")])
    member.committer.send_planned()
    assert frontiers(member) == [1, 3]


def test_a_commit_waits_for_those_of_its_partition_alone(member: Member) -> None:
    """What it names of other partitions is sent."""
    assignment = Assignment("t", 1, 0, 0)
    (other,) = member.door.call(lambda e, now: e.assigned(now, [assignment]))
    sent(member)
    member.finish(1)
    member.door.call(lambda e, now: e.reached(now, [(other, 5)]))
    member.commit_due()
    member.door.call(lambda e, now: e.committed_read(now, [(member.partition, 0, "")]))
    member.commit_due()
    member.committer.send_planned()
    assert frontiers(member) == [1, 5]


@pytest.mark.parametrize(("more_s", "waits"), [(-0.1, True), (0.0, False), (0.1, False)])
def test_a_commit_waits_no_longer_than_librdkafka_resends(
    member: Member, more_s: float, waits: bool
) -> None:
    """An answer that never comes does not end the commits of its partition."""
    now = [100.0]
    member.clock = lambda: now[0]
    given_up(member)
    now[0] += committing.RESENT_S + more_s
    member.committer.send_planned()
    assert frontiers(member) == ([1] if waits else [1, 2])


def test_a_commit_that_waits_is_not_sent_by_another_consumer(member: Member) -> None:
    """The epoch has ended with the former one."""
    given_up(member)
    member.door.call(lambda e, now: e.closed(now, [member.partition], lost=True))
    member.committer.forget()
    member.committer.send_planned()
    assert frontiers(member) == [1]


# -- what the broker's answer does -----------------------------------------------------------------


@pytest.fixture
def heard(member: Member) -> list[tuple[int, bool]]:
    """Of each commit that was answered its sequence, and whether it is stored."""
    told: list[tuple[int, bool]] = []
    member.committer.on_answered = lambda sequence, stored: told.append((sequence, stored))
    return told


def sent(member: Member) -> int:
    """A commit that is on the way; its sequence."""
    member.commit_due()
    member.committer.send_planned()
    return member.partition.commit.sequence


@pytest.mark.parametrize(("verdict", "stored"), [("stored", True), ("retry", False)])
def test_an_answer_is_reported_with_its_commit(
    member: Member, heard: list[tuple[int, bool]], verdict: Verdict, stored: bool
) -> None:
    """Whoever waits for it hears which one it was; the engine has it by then."""
    sequence = sent(member)
    member.committer.take([CommitAnswer(1, "t", 0, verdict, "")])
    assert heard == [(sequence, stored)]
    assert member.partition.commit.committed == (1 if stored else -1)


def test_a_commit_is_stored_once_all_of_it_is(
    member: Member, heard: list[tuple[int, bool]]
) -> None:
    """One partition of two was refused."""
    (other,) = member.door.call(lambda e, now: e.assigned(now, [Assignment("t", 1, 0, 0)]))
    member.door.call(lambda e, now: e.reached(now, [(other, 5)]))
    sequence = sent(member)
    answers = [CommitAnswer(1, "t", 0, "stored", ""), CommitAnswer(1, "t", 1, "retry", "")]
    member.committer.take(answers)
    assert heard == [(sequence, False)]
    assert (member.partition.commit.committed, other.commit.committed) == (1, -1)


@pytest.mark.parametrize("token", [1, 7])
def test_an_answer_of_a_stranger_is_reported_no_one(
    member: Member, heard: list[tuple[int, bool]], token: int
) -> None:
    """Of a partition that the commit did not name, or of a commit that was never sent."""
    sent(member)
    member.committer.take([CommitAnswer(token, "t", 5, "stored", "")])
    assert heard == []


def test_the_brokers_reason_is_reported(member: Member) -> None:
    """A commit that may never be stored ends the run, and its last words say why."""
    sent(member)
    member.committer.take([CommitAnswer(1, "t", 0, "stop", "not allowed")])
    (fatal,) = member.fatal
    assert "not allowed" in fatal.reason


# -- standing still --------------------------------------------------------------------------------


def stand_still(member: Member) -> None:
    """The polling thread went round long ago."""
    member.proof.renew()
    member.door.round_at -= SUSPENDED_S + 0.1


def starts(member: Member) -> int:
    return sum(len(effect.works) for effect in member.started)


def test_a_member_that_was_suspended_starts_nothing_before_it_is_proven(member: Member) -> None:
    """Whoever comes through the door first; the proof is a commit that the broker takes."""
    stand_still(member)
    before = starts(member)
    member.poll(3, 4)
    assert starts(member) == before
    member.proof.renew()
    member.committer.send_planned()
    (proof,) = member.consumer.stored
    assert starts(member) == before
    member.committer.take([CommitAnswer(1, "t", 0, "stored", "")])
    assert (proof[0].offset, starts(member)) == (1, before + 2)


def test_a_refused_proof_proves_nothing(member: Member) -> None:
    """The member stays in doubt until its partitions are gone."""
    stand_still(member)
    member.proof.renew()
    member.committer.send_planned()
    before = starts(member)
    member.committer.take([CommitAnswer(1, "t", 0, "gone", "")])
    member.poll(3)
    assert starts(member) == before
    assert member.door.in_doubt
    member.door.call(lambda e, now: e.closed(now, [member.partition], lost=True))
    member.partitions.clear()
    member.proof.renew()
    assert not member.door.in_doubt


def test_a_thread_that_goes_round_in_time_is_never_doubted(member: Member) -> None:
    """At the limit minus a little; and before its first round."""
    member.poll(3)
    member.proof.renew()
    member.door.round_at -= SUSPENDED_S - 0.5
    member.proof.renew()
    member.poll(4)
    assert not member.door.in_doubt
    assert starts(member) == 5


async def others() -> set[asyncio.Task]:
    """The loop's tasks but this one, after a turn of all."""
    await asyncio.sleep(0)
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_what_was_passed_on_before_it_was_suspended_is_given_back(
    member: Member, kind: str
) -> None:
    """A worker that wakes first calls nothing: its records go back into their lanes."""
    called: list[int] = []

    def handle(record: Record) -> None:
        called.append(record.offset)

    async def wait(record: Record) -> None:
        called.append(record.offset)

    loop = asyncio.new_event_loop()
    plan = HandlerPlan(HandlerSpec("handle"), handle if kind == "threads" else wait)
    threads, coroutines = ThreadExecutor(plan, member.door), AsyncExecutor(plan, member.door, loop)
    stand_still(member)
    (threads if kind == "threads" else coroutines).start(member.started[0].works[1:])

    def given_back() -> bool:
        loop.run_until_complete(asyncio.sleep(0))
        return not member.partition.in_flight

    wait_for(given_back)
    threads.close()
    coroutines.close()
    wait_for(lambda: not loop.run_until_complete(others()))
    loop.close()
    assert called == []
    assert member.partition.in_flight == 0
