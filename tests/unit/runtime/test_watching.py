"""What is looked at from beside a run, and told when it takes too long."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from perkey.account import begun
from perkey.core.engine import Engine
from perkey.core.events import Assignment, HandlerSpec, Returned
from perkey.errors import ConfigError
from perkey.kafka.failures import Refusals
from perkey.kafka.ports import CommitAnswer, KafkaUnavailable, LoginRefused, Polled
from perkey.observe.halts import halt_sentence
from perkey.runtime.calls.loops import HandlerLoop
from perkey.runtime.door import Door
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.member.member import Member as MemberOfRun
from perkey.runtime.member.run_log import RunLog
from perkey.runtime.run import watching
from perkey.runtime.run.run_snapshot import of_brokers
from perkey.runtime.run.watching import (
    LONG_CALL_S,
    OUTPUTS_LATE_S,
    UNASSIGNED_S,
    Watching,
    why_unassigned,
)
from perkey.types import Record


class Kept(RunLog):
    """Lines that nobody writes."""

    kept: list | None = None

    def write(self, *, last=False):
        if self.kept is not None:
            self.kept += [(line.what, line.fields) for line in self._lines]
            self._lines.clear()


class Member:
    """A member with an engine, at a time that the test sets."""

    def __init__(self, spec=None):
        self.time = 0.0
        self.engine = Engine([spec or HandlerSpec("h")])
        self.door = Door(self.engine, lambda effects: None, self.now)
        self.run_log = Kept()
        self.partitions = {}
        self.leaving = self.ending = False
        self.fatal = None
        self.config = type("C", (), {"plans": [], "topics": []})
        self.executors = []
        self.kafka_answers = False
        self.waits = []

    def calls(self, kind, stack=()):
        """Its handler is called so, and stands there."""
        plan = HandlerPlan(HandlerSpec("h"), lambda record: None, kind=kind)
        self.config.plans = [plan]
        self.executors = [type("E", (), {"stack": lambda self, where: [*stack, f"{where}"]})()]

    def unread(self):
        """Partitions whose start is not known yet."""
        return self.waits

    def answers(self, timeout_s):
        """Whether a broker answers the consumer."""
        return self.kafka_answers

    def now(self):
        return self.time

    def poll(self, count=1):
        """Records of one partition; they start at once."""
        (partition,) = self.engine.assigned(self.time, [Assignment("t", 0, 0, 0)])
        self.partitions["t", 0] = partition
        records = [Record("t", 0, o, 0, b"k%d" % o, b"v") for o in range(count)]
        self.engine.polled(self.time, [(partition, records, [100] * count)])
        return list(partition.offsets.incomplete.values())

    def told(self):
        """The lines that wait."""
        lines = [(line.what, line.fields) for line in self.run_log._lines]
        self.run_log._lines.clear()
        return lines


class Group:
    """An admin client that knows one group."""

    def __init__(self, *answer, error=None):
        self.answer, self.error, self.asked = answer, error, 0
        self.topics = []

    def describe(self, topics, timeout_s):
        if self.error:
            raise self.error
        return [topic for topic in topics if topic in self.topics]

    def matching(self, patterns, timeout_s):
        return [topic for topic in self.topics if any(map(re.match, patterns, [topic]))]

    def group_state(self, group, timeout_s):
        self.asked += 1
        if self.error:
            raise self.error
        return self.answer


def look_at_records(member, watched):
    """As after five seconds."""
    watched._account_at = 0.0
    watched.look(None)


def test_a_long_call_is_reported_at_each_limit():
    """At 30 s, 5 min and 1 h, once each, with how to end it."""
    member = Member()
    member.calls("async")
    member.poll()
    watched = Watching(member, "g", None)
    told = []
    member.run_log.kept = told
    for seconds in (29.9, 30.0, 299.0, 301.0, 3601.0, 9999.0):
        member.time = seconds
        look_at_records(member, watched)
    assert [fields["seconds"] for what, fields in told if what == "a call is slow"] == [
        30, 301, 3601,
    ]  # fmt: skip
    (_, first), *_ = told
    assert (first["topic"], first["offset"], first["key"], first["attempt"]) == ("t", 0, "k0", 1)
    assert "timeout_s" in first["next"]
    assert LONG_CALL_S == (30.0, 300.0, 3600.0)


@pytest.mark.parametrize(
    ("kind", "fix"),
    [("async", "timeout_s"), ("threads", "set a time-out"), ("processes", "worker process")],
)
def test_a_long_call_is_logged_with_its_stack_and_a_cure_that_works(kind, fix):
    """A thread cannot be ended by `timeout_s`, and is not said to be."""
    member = Member()
    member.calls(kind, ["shop.py:12 check: client.get()"])
    member.poll()
    watched = Watching(member, "g", None)
    member.time = 31.0
    look_at_records(member, watched)
    (line,) = member.run_log._lines
    assert line.traceback == "shop.py:12 check: client.get()\n('t', 0, 0)"
    assert fix in line.fields["next"]


def test_of_many_long_calls_some_are_shown_and_all_counted():
    """A thousand hanging calls make five lines."""
    member = Member()
    member.calls("threads")
    member.poll(50)
    watched = Watching(member, "g", None)
    member.time = 31.0
    look_at_records(member, watched)
    told = member.told()
    assert len(told) == watching.LONG_SHOWN_MAX
    assert told[0][1]["more_such_calls"] == "45"


def test_calls_that_wait_behind_others_are_not_long():
    """In a pipe to a worker process (61 such calls were told with concurrency 2)."""
    member = Member(HandlerSpec("h", ahead=9))
    member.calls("processes")
    works = member.poll(3)
    watched = Watching(member, "g", None)
    member.time = 31.0
    begun.waiting(works[1:])
    look_at_records(member, watched)
    ((what, fields),) = member.told()
    assert (what, fields["offset"]) == ("a call is slow", 0)
    begun.begun(works[1:2], member.time - 1.0)
    member.time = 59.0
    look_at_records(member, watched)
    assert member.told() == []


def test_calls_none_of_which_has_begun_are_reported():
    """Workers that do not open, a prefetch that hangs: nobody else would say so."""
    member = Member()
    member.calls("processes")
    works = member.poll(1)
    watched = Watching(member, "g", None)
    member.time = 31.0
    begun.waiting(works)
    look_at_records(member, watched)
    ((what, fields),) = member.told()
    assert what == "a call has not started"
    assert "prefetch" in fields["next"]


def test_unacknowledged_outputs_are_reported():
    """Five seconds after they were given to the producer."""
    member = Member()
    works = member.poll(3)
    member.engine.calls_ended(1.0, [], [Returned(work, ("x",)) for work in works])
    watched = Watching(member, "g", None)
    member.time = OUTPUTS_LATE_S + 0.9
    look_at_records(member, watched)
    assert member.told() == []
    member.time = OUTPUTS_LATE_S + 1.0
    look_at_records(member, watched)
    ((what, fields),) = member.told()
    assert (what, fields["records"], fields["offset"]) == ("outputs are not acknowledged", 3, 0)


def test_no_partition_is_reported_with_the_groups_state():
    """After five seconds, then at longer and longer times; no longer once there is one."""
    member = Member()
    watched = Watching(member, "g", None)
    group = Group("PREPARING_REBALANCE", 2)
    watched.look(group)
    assert member.told() == []
    for seconds in UNASSIGNED_S:
        watched._unassigned_at = time.monotonic() - seconds
        watched._group_asked_at = 0.0
        watched.look(group)
        watched.look(group)
        ((what, fields),) = member.told()
        assert (what, fields["group_state"], fields["members"]) == (
            "no partition yet", "PREPARING_REBALANCE", 2,
        )  # fmt: skip
        assert "session.timeout.ms" in fields["reason"]
    member.poll()
    watched._unassigned_at = 0.0
    watched.look(group)
    assert member.told() == []


def test_an_unreachable_group_is_a_reason_too():
    """What the brokers do not say is said to be that."""
    member = Member()
    watched = Watching(member, "g", None)
    watched._unassigned_at = time.monotonic() - 6
    watched.look(Group(error=RuntimeError("no route")))
    ((_, fields),) = member.told()
    assert fields["reason"] == "the brokers do not answer: no route"


def test_a_partition_whose_start_is_not_known_is_assigned():
    """A line of its own reports it, not "no partition yet"."""
    member = Member()
    member.waits = [("t", 0)]
    watched = Watching(member, "g", None)
    watched._unassigned_at = time.monotonic() - 6
    watched.look(Group(error=RuntimeError("no route")))
    assert member.told() == []


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("STABLE", "no partition left for this one"),
        ("PreparingRebalance", "does not respond"),
        ("PREPARING_REBALANCING", "does not respond"),
        ("EMPTY", "coordinator has not answered"),
        ("x", "unknown"),
    ],
)
def test_what_a_groups_state_means(state, said):
    """Each state has its sentence, in any spelling of it."""
    assert said in why_unassigned(state, 2)


def test_a_lone_member_without_partitions_is_not_told_of_others():
    """Nobody else has them: after a topic was deleted, "none to spare" led astray."""
    assert "the topic was deleted" in why_unassigned("STABLE", 1)


@pytest.mark.parametrize(
    ("topics", "exist", "said"),
    [
        (["t"], ["t"], "still joining"),
        (["^t.*"], ["t1"], "still joining"),
        (["t", "^u"], [], "the topic was deleted"),
    ],
)
def test_a_lone_member_is_still_joining_while_its_topic_is_there(topics, exist, said):
    """On a slow machine the first run ever was told that its topic was deleted."""
    member = Member()
    member.config.topics = topics
    watched = Watching(member, "g", None)
    watched._unassigned_at = time.monotonic() - 6
    group = Group("STABLE", 1)
    group.topics = exist
    watched.look(group)
    ((_, fields),) = member.told()
    assert said in fields["reason"]


@pytest.mark.parametrize("handler", [True, False])
def test_a_loop_that_stands_is_reported_with_its_stack(monkeypatch, handler):
    """What blocks it is found, and where; that it is a handler only where it is one."""
    monkeypatch.setattr(watching, "LOOP_BLOCKED_S", 0.2)
    monkeypatch.setattr(watching, "LOOP_ASKED_EVERY_S", 0.01)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    gate, begun = threading.Event(), threading.Event()
    member = Member()
    member.poll()
    watched = Watching(member, "g", HandlerLoop(loop))

    def blocking_handler():
        begun.set()
        gate.wait(100)

    def call_it():
        blocking_handler()

    def look_until(what):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            watched.look(None)
            for line in member.run_log._lines:
                if line.what == what:
                    return line
        raise AssertionError(what)

    watched.look(None)
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
        if handler:
            monkeypatch.setattr(watching, "CALLERS", (call_it.__code__,))
        loop.call_soon_threadsafe(call_it if handler else blocking_handler)
        assert begun.wait(60)
        line = look_until("the handlers' loop is blocked")
        assert "blocking_handler" in line.traceback
        assert ('executor="threads"' in line.fields["next"]) == handler
        assert watched.loop.blocked_by().startswith("a handler blocks it") == handler
        assert watched.loop.blocked_s() >= 0.2
        gate.set()
        look_until("the handlers' loop runs again")
    finally:
        gate.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


class TestBroker:
    """Whether a broker is there, also when there is nothing to read."""

    def looked(self, quiet_s, group):
        """A member that heard nothing for so long, after one look."""
        member = Member()
        watched = Watching(member, "g", None)
        member.run_log.broker_seen_at = time.monotonic() - quiet_s
        watched.look(group)
        return watched.broker_away_s()

    def test_one_that_was_heard_of_lately_is_not_asked(self):
        """No request beside the records."""
        assert self.looked(1.0, Group(error=KafkaUnavailable("gone"))) is None

    def test_one_that_does_not_answer_is_away_since_it_was_heard_of_last(self):
        """Not only since we asked."""
        away_s = self.looked(watching.BROKER_QUIET_S + 1, Group(error=KafkaUnavailable("gone")))
        assert watching.BROKER_QUIET_S + 1 <= away_s < watching.BROKER_QUIET_S + 20

    @pytest.mark.parametrize("group", [Group("EMPTY", 0), Group(error=ConfigError("no right"))])
    def test_one_that_answers_is_there(self, group):
        """Also when its answer is no."""
        assert self.looked(watching.BROKER_QUIET_S + 1, group) is None

    def test_one_that_answers_another_client_is_there(self):
        """An admin client that gets no answer is no proof: the consumer gets one."""
        member = Member()
        member.kafka_answers = True
        watched = Watching(member, "g", None)
        member.run_log.broker_seen_at = time.monotonic() - 60
        watched.look(Group(error=KafkaUnavailable("gone")))
        assert watched.broker_away_s() is None

    def test_an_answer_that_comes_while_one_is_asked_counts(self):
        """The polling thread has heard of a broker meanwhile."""
        member = Member()
        watched = Watching(member, "g", None)
        member.run_log.broker_seen_at = time.monotonic() - 60

        class Slow(Group):
            def describe(self, topics, timeout_s):
                member.run_log.broker_seen(time.monotonic())
                raise KafkaUnavailable("gone")

        watched.look(Slow())
        assert watched.broker_away_s() is None

    def test_both_edges_of_an_outage_are_logged_once(self):
        """When none answers any more, and for how long none had when one does again."""
        member = Member()
        watched = Watching(member, "g", None)
        member.run_log.broker_seen_at = time.monotonic() - 60
        gone, back = Group(error=KafkaUnavailable("gone")), Group("EMPTY", 0)
        for group in (gone, gone, back, back):
            watched._broker_asked_at = 0.0
            watched.look(group)
        (away, since), (again, after) = member.told()
        assert (away, again) == ("no broker answers", "a broker answers again")
        assert since["seconds"] >= 60
        assert after["away_s"] >= 60

    def test_a_refused_login_is_a_cause_of_its_own(self):
        """Logged once, not also as brokers that do not answer, and over with the first answer."""
        member = Member()
        watched = Watching(member, "g", None)
        member.run_log.broker_seen_at = time.monotonic() - 60
        errors = (
            *(LoginRefused(f"Authentication failed (after {n} ms)") for n in (3, 5)),
            KafkaUnavailable("late"),
        )
        for error in errors:
            watched._broker_asked_at = 0.0
            watched.look(Group(error=error))
        assert [one["cause"] for one in of_brokers(member, [])] == ["refused"]
        ((what, fields),) = member.told()
        assert (what, fields["reason"]) == (
            "the brokers refuse the login", "Authentication failed (after 3 ms)",
        )  # fmt: skip
        member.run_log.broker_seen(time.monotonic())
        assert member.run_log.refused is None

    def test_a_coordinator_that_is_away_is_named_while_a_commit_waits_for_it(self):
        """By the client's error, until a commit is stored; a broker that answers is not enough."""
        member, refusals = Member(), Refusals({})
        away = "GroupCoordinator: b:9092: Connect to ipv4#1.2.3.4:9092 failed: Connection refused"
        refusals.note(KafkaError(KafkaError._TRANSPORT, f"{away} (after 0ms in state CONNECT)"))
        stored = [CommitAnswer(1, "t", 0, "stored", "")]
        part = {"committed": 3, "frontier": 5}
        member.run_log.received(Polled(coordinator=refusals.coordinator))
        member.run_log.broker_seen(time.monotonic())
        for rows in ([], [part]):
            (told,) = [halt_sentence(one) for one in of_brokers(member, rows)]
            assert told.text.startswith(
                "The group's coordinator does not answer: nothing is committed"
            )
            assert told.text.endswith(f"s ago: {away}.")
            assert "kafka-metadata-quorum.sh" in told.next
        assert of_brokers(member, [{**part, "frontier": 3}]) == []
        member.run_log.received(Polled(commits=stored))
        assert of_brokers(member, [part]) == []

    @pytest.mark.parametrize(
        "text",
        [
            "GroupCoordinator: b:9092: Connect to ipv4#1.2.3.4:9092 failed: Connection refused",
            "b:9092/1: Disconnected: connection closed by peer: receive 0 after POLLIN",
        ],
    )
    def test_a_member_that_joins_names_a_broker_whose_connection_failed(self, text):
        """Two seconds after a broker's death it was "wait": that is known at once, and no group is."""
        member, refusals = Member(), Refusals({})
        watched = Watching(member, "g", None)
        waits = {"cause": "unassigned", **watched.unassigned()}
        assert halt_sentence(waits).next.startswith("wait: ")
        refusals.note(KafkaError(KafkaError._TRANSPORT, f"{text} (after 13ms in state UP)"))
        member.run_log.received(Polled(connection=refusals.connection))
        told = halt_sentence({"cause": "unassigned", **watched.unassigned()})
        assert told.text.endswith(f"and a connection failed 0.0 s ago: {text}.")
        assert told.next.startswith("restore a broker")
        assert told.rank < halt_sentence(waits).rank
        member.run_log.connection_lost = time.monotonic() - watching.JOINING_S - 1, text
        assert "reason" not in watched.unassigned()

    def unassigned(self, group, **run_log):
        """A member without a partition for so long that its group is asked, after one look."""
        member = Member()
        watched = Watching(member, "g", None)
        watched._unassigned_at = time.monotonic() - 60
        vars(member.run_log).update(run_log)
        watched.look(group)
        return member

    @pytest.mark.parametrize(
        ("back_s", "asked"), [(watching.SETTLED_S - 5, 0), (watching.SETTLED_S + 1, 1)]
    )
    def test_the_group_is_not_asked_soon_after_an_outage(self, back_s, asked):
        """Describing it while brokers come back can abort the process."""
        group = Group("STABLE", 1)
        member = self.unassigned(group, broker_back_at=time.monotonic() - back_s)
        assert group.asked == asked
        ((_, fields),) = member.told()
        assert ("queried again in a minute" in fields["reason"]) == (not asked)

    def test_the_group_is_not_asked_where_no_broker_answers(self):
        """Also when nobody has noticed yet that they are away."""
        group = Group(error=KafkaUnavailable("gone"))
        member = self.unassigned(group)
        assert group.asked == 0
        assert member.told()[0][1]["reason"] == "the brokers do not answer: gone"

    def test_a_commit_that_failed_is_no_sign_of_a_broker(self):
        """It may have reached nobody; one that was stored is a sign, and ends an outage."""
        run_log = RunLog(lambda: 100.0)
        run_log.broker_lost_at = 50.0
        run_log.received(Polled(commits=[CommitAnswer(1, "t", 0, "retry", "no broker")]))
        assert run_log.broker_lost_at == 50.0
        run_log.received(Polled(commits=[CommitAnswer(2, "t", 0, "stored", "")]))
        assert (run_log.broker_lost_at, run_log.broker_back_at) == (None, 100.0)


def test_a_look_is_quiet_where_nothing_has_happened():
    """No call has ended since the look before, and nothing is to be logged."""
    member = Member()
    watch = Watching(member, "g", None)
    plan = HandlerPlan(HandlerSpec("h"), lambda _: None)
    member.config.plans = [plan]
    member.run_log = run_log = RunLog()  # type: ignore[assignment]  # one that is written
    quiet = []
    for happens in (lambda: None, lambda: plan.latency.add(0.1), lambda: None):
        happens()
        watch.look(None)
        quiet.append(watch.quiet)
    run_log.line("info", "something")
    watch.look(None)
    assert [*quiet, watch.quiet] == [True, False, True, False]


def test_a_thread_past_its_time_out_is_logged_with_a_cure():
    """`timeout_s` does not end it: the line says what does."""
    member = Member(HandlerSpec("h", timeout_s=5.0))
    member.calls("threads")
    member.poll()
    watched = Watching(member, "g", None)
    member.time = 31.0
    look_at_records(member, watched)
    (line,) = member.run_log._lines
    assert "set a time-out" in line.fields["next"]


@pytest.mark.parametrize(
    ("topics", "asked"), [(["^o.*", "orders"], [("orders", 0)]), (["^o.*"], [])]
)
def test_a_member_in_reserve_asks_for_a_topic_of_its_own(topics, asked):
    """One admin client that hangs is no outage for it either; of a pattern no topic is known."""
    questions = []
    consumer = SimpleNamespace(committed=lambda where, timeout_s: questions.extend(where))
    member = SimpleNamespace(
        partitions={}, ended=threading.Event(), config=SimpleNamespace(topics=topics),
        membership=SimpleNamespace(consumer=consumer),
    )  # fmt: skip
    assert (MemberOfRun.answers(member, 1.0), questions) == (bool(asked), asked)
