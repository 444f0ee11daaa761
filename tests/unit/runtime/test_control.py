"""Commands to a run on the in-memory broker: obeyed, answered, ended in time."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.core.events import HandlerSpec
from perkey.core.states import InternalError
from perkey.observe.halts import HALTED_BY
from perkey.observe.orders import Order
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.run.control import Control, _calls_most
from perkey.testing import MemoryKafka

LIMIT_S = 60.0


@pytest.fixture
def kafka():
    """Two topics."""
    with MemoryKafka() as made:
        made.create_topic("a")
        made.create_topic("b")
        yield made


class Started:
    """An app of two handlers that runs, and its time."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.done: list[str] = []
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})

        @app.consume("a", concurrency=4)
        def one(record: perkey.Record[Any]) -> None:
            self.done.append(record.topic)

        @app.consume("b", concurrency=8)
        def two(record: perkey.Record[Any]) -> None:
            self.done.append(record.topic)

        self.app, self.now_s = app, 1_000.0
        self.run: Any = app.start()
        self.control: Control = self.run.control
        self.control._time = lambda: self.now_s
        wait_for(lambda: len(app.snapshot()["partitions"]) == 2)

    def obey(self, action: str, **given: Any) -> Any:
        """The answer of the member."""
        return self.control.obey(Order(action, "a test", "id", **given))


@pytest.fixture
def started(kafka):
    """One that is stopped at the end."""
    made = Started(kafka)
    yield made
    made.run.stop("now")
    made.run.wait(LIMIT_S)


def test_a_pause_holds_until_it_expires(kafka, started):
    """Of its topic alone; why says it with the reason; then all that waited is handled."""
    answer = started.obey("pause", topic="a", for_s=60.0)
    assert (answer.outcome, answer.until) == ("done", 1_060.0)
    kafka.produce("a", b"1")
    kafka.produce("b", b"1")
    wait_for(lambda: started.done == ["b"])
    (halt,) = [one for one in started.app.snapshot()["halts"] if one["cause"] == "command"]
    assert (halt["topic"], halt["until"], halt["reason"]) == ("a", 1_060.0, "a test")
    started.now_s = 1_059.9
    started.control.look()
    assert started.control.state()["in_force"]
    started.now_s = 1_060.0
    wait_for(lambda: started.done == ["b", "a"])  # the run looks by itself
    assert started.control.state()["in_force"] == []


def test_the_same_command_again_only_lasts_longer(started):
    """It takes the place of the former."""
    started.obey("pause", for_s=60.0)
    started.obey("pause", for_s=90.0)
    assert [one["until"] for one in started.control.state()["in_force"]] == [1_090.0]
    assert started.obey("resume").outcome == "done"
    assert started.obey("resume").outcome == "unchanged"


def test_resume_ends_what_it_names(started):
    """Another pause stays, and is named."""
    started.obey("pause", topic="a")
    started.obey("pause", handler="two")
    assert "in force: topic a, handler two" in started.obey("resume", topic="b").detail
    assert "still paused: topic a" in started.obey("resume", handler="two").detail
    assert started.obey("resume").outcome == "done"


def test_settings_are_of_one_handler_or_of_all(started):
    """The later one counts; `default` takes it back."""

    def rows() -> dict[str, int]:
        handlers = started.app.snapshot()["handlers"]
        return {name: row["concurrency"] for name, row in handlers.items()}

    started.obey("set", settings={"concurrency": 3})
    assert rows() == {"one": 3, "two": 3}
    started.obey("set", handler="two", settings={"concurrency": 8}, for_s=10.0)
    assert rows() == {"one": 3, "two": 8}
    started.now_s += 10.0
    wait_for(lambda: rows() == {"one": 3, "two": 3})
    started.obey("set", settings={"concurrency": None})
    assert rows() == {"one": 4, "two": 8}


def test_what_a_setting_brings_about_names_its_command(started):
    """`perkey why` names the command of a colleague, not the number in the code; the last one counts."""

    def causes(handler="one"):
        halts = [{"cause": one, "handler": handler} for one in ("slots", "rate_limit", "buffers")]
        return [one.get("value") for one in started.control.with_settings(halts)]

    assert causes() == [None, None, None]
    started.obey("set", settings={"concurrency": 1.0}, for_s=60.0)
    started.obey("set", settings={"rate_limit_per_s": 2.0}, handler="one", for_s=60.0)
    assert causes() == ["concurrency=1", "rate_limit_per_s=2", None]
    assert causes("two") == ["concurrency=1", None, None]
    started.obey("set", settings={"concurrency": None}, handler="one", for_s=60.0)
    assert causes() == [None, "rate_limit_per_s=2", None]
    (halt, *_) = started.control.with_settings([{"cause": "slots", "handler": "two"}])
    assert (halt["until"], halt["reason"], halt["why"]) == (1_060.0, "a test", "all")
    # Its replacement is in force for as long as any, so nothing of it comes back
    text, after = HALTED_BY["slots"](halt)
    assert "a command has set concurrency=1 until" in text
    assert after == "`perkey set concurrency=default --reason TEXT`"
    started.obey("set", settings={"concurrency": None}, for_s=1.0)
    started.now_s += 2.0
    started.control.look()
    assert causes("two") == [None, None, None]


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_more_calls_than_declared_can_be_set(kafka, kind):
    """Three run at once where one was declared, without a restart."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
    begun: list[bytes] = []
    go_on = threading.Event()

    async def waits(record: perkey.Record[Any]) -> None:
        begun.append(record.value)
        await asyncio.to_thread(go_on.wait, LIMIT_S)

    def stays(record: perkey.Record[Any]) -> None:
        begun.append(record.value)
        go_on.wait(LIMIT_S)

    app.consume("a", concurrency=1)(waits if kind == "async" else stays)
    run: Any = app.start()
    for number in range(4):
        kafka.produce("a", b"%d" % number)
    wait_for(lambda: len(begun) == 1)
    answer = run.control.obey(Order("set", "r", "i", settings={"concurrency": 3}))
    assert answer.outcome == "done"
    wait_for(lambda: len(begun) == 3)
    (row,) = app.snapshot()["handlers"].values()
    assert row["in_flight"] == 3
    go_on.set()
    wait_for(lambda: len(begun) == 4)
    run.stop("now")
    run.wait(LIMIT_S)


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_a_time_out_that_is_set_ends_attempts(kafka, kind):
    """The error has the number that was set."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
    options: dict[str, Any] = {"retry": perkey.Retry(attempts=1), "on_exhausted": perkey.Skip()}
    limit_s = 0.05

    async def waits(record: perkey.Record[Any]) -> None:
        await asyncio.sleep(LIMIT_S)

    def stays(record: perkey.Record[Any]) -> None:
        time.sleep(4 * limit_s)  # a call that cannot be cancelled

    app.consume("a", **options)(waits if kind == "async" else stays)
    results = app.results()
    run: Any = app.start()
    wait_for(lambda: app.snapshot()["partitions"])
    answer = run.control.obey(Order("set", "r", "i", settings={"timeout_s": limit_s}))
    assert (answer.outcome, "timeout_s=0.05" in answer.detail) == ("done", True)
    kafka.produce("a", b"1")
    (error,) = [next(iter(results)).error]
    run.stop("now")
    run.wait(LIMIT_S)
    assert error is not None
    assert "timeout_s=0.05" in error.message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "processes"}, "has 2 worker processes until a restart"),
        ({"kind": "async", "ledger": object()}, "has a ledger with connections for 2 calls"),
    ],
)
def test_what_a_restart_must_open_is_not_set(options, reason):
    """Workers and connections: as many as declared, and the line says which."""
    most, why = _calls_most(HandlerPlan(HandlerSpec("h", concurrency=2), print, **options))
    assert (most, reason in why) == (2, True)


@pytest.mark.parametrize(
    ("action", "given", "reason"),
    [
        ("pause", {"topic": "c"}, "topic 'c' has no handler"),
        ("pause", {"handler": "three"}, "handler three does not exist: one of one, two"),
        ("set", {"handler": "one", "settings": {"concurrency": 1_001}}, "give 1000 or less"),
        ("set", {"settings": {"concurrency": 1_001}}, "one runs at most 1,000 calls (threads)"),
    ],
)
def test_what_a_member_cannot_do_is_refused(started, action, given, reason):
    """With a line that says why; nothing is in force."""
    answer = started.obey(action, **given)
    assert answer.outcome == "refused"
    assert reason in answer.detail
    assert started.control.state()["in_force"] == []


def test_a_dry_run_changes_nothing(kafka, started):
    """It counts what is concerned, and is in the log."""
    answer = started.obey("pause", topic="a", dry_run=True)
    assert (answer.outcome, answer.detail) == (
        "would", "pause topic a: 1 of its partitions, 0 records here",
    )  # fmt: skip
    assert started.obey("stop", dry_run=True).outcome == "would"
    kafka.produce("a", b"1")
    wait_for(lambda: started.done == ["a"])
    assert [row["outcome"] for row in started.control.state()["log"]] == ["would", "would"]


def test_a_dry_run_names_the_first_records(kafka, started):
    """Five of what is not done, with their keys, in words and as rows."""
    started.obey("pause")
    for number in range(7):
        kafka.produce("a", b"1", b"k%d" % number)
    wait_for(lambda: sum(row["buffered"] for row in started.app.snapshot()["partitions"]) == 7)
    given = [("pause", {"topic": "a"}), ("stop", {}), ("set", {"settings": {"concurrency": 2}})]
    for action, more in (*given, ("resume", {})):
        answer = started.obey(action, dry_run=True, **more)
        assert "7 records here; first: a:0:0 queued, key k0; a:0:1 queued, key k1" in answer.detail
        assert [row["offset"] for row in answer.rows] == [0, 1, 2, 3, 4]
    assert started.obey("pause", topic="b", dry_run=True).rows == []


def test_stop_stops(started):
    """As a signal does."""
    assert started.obey("stop").outcome == "done"
    assert started.run.wait(LIMIT_S).exit_code == 0


def test_a_run_that_starts_asks_to_come_again():
    """There is no engine yet."""
    shot = {"app": {"member": "m"}, "partitions": []}
    run: Any = SimpleNamespace(member=None, snapshot=lambda worst: shot)
    answer = Control(run, SimpleNamespace(), [], SimpleNamespace).obey(Order("pause", "r", "i"))
    assert (answer.outcome, answer.detail) == ("refused", "it is starting: ask again")


@pytest.mark.parametrize(("dry_run", "outcome"), [(True, "would"), (False, "done")])
def test_a_start_that_waits_is_stopped(dry_run, outcome):
    """For brokers, or a database, it may wait for long: a command ends it as a signal does."""
    stops: list[str] = []
    shot = {"app": {"member": "m"}, "partitions": []}
    run: Any = SimpleNamespace(member=None, snapshot=lambda worst: shot, stop=stops.append)
    order = Order("stop", "r", "i", mode="now", dry_run=dry_run)
    answer = Control(run, SimpleNamespace(), [], SimpleNamespace).obey(order)
    assert answer.outcome == outcome
    assert stops == ["now"] * (not dry_run)


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("pause", {}),
        ("set", {"settings": {"rate_limit_per_s": 1.0}}),
        ("resume", {}),  # of a handler in an outage: nothing else changes
        ("pause", {"dry_run": True}),
        ("hold", {"topic": "a", "key": "k"}),
        ("skip", {"topic": "a", "where": "offset == 1"}),
    ],
)
def test_a_failed_engine_is_one_line(action, given):
    """Whichever action meets it: the answer is a refusal, and it is in the log of commands."""

    def call(_ask: Any) -> None:
        raise InternalError("a bug")

    member = SimpleNamespace(
        door=SimpleNamespace(call=call), membership=SimpleNamespace(answered=[]),
        config=SimpleNamespace(plans=[]),
    )  # fmt: skip
    halts = [{"cause": "outage", "handler": "one"}]
    shot = {"app": {"member": "m"}, "partitions": [], "halts": halts}
    run: Any = SimpleNamespace(member=member, snapshot=lambda worst: shot)
    routes: Any = SimpleNamespace(options_of=lambda topic: None)
    control = Control(run, routes, ["one"], SimpleNamespace)
    answer = control.obey(Order(action, "r", "i", **given))
    assert (answer.outcome, answer.detail) == (
        "refused", "the engine has failed: this run is ending",
    )  # fmt: skip
    assert len(control.state()["log"]) == 1


def test_a_command_to_a_key_takes_no_snapshot(kafka, started, monkeypatch):
    """One grows with the partitions: 10,000 commands were answered more than a minute late."""
    first = started.obey("hold", topic="a", key="k", for_s=60.0)
    monkeypatch.setattr(started.run, "snapshot", lambda **_: pytest.fail("a snapshot"))
    again = started.obey("hold", topic="a", key="k2", for_s=60.0)
    assert (again.outcome, again.member) == ("done", first.member)


def test_commands_from_many_threads(started):
    """None is lost: at the end what came last is in force."""
    threads = [
        threading.Thread(target=started.obey, args=("pause",), kwargs={"topic": topic})
        for topic in ("a", "b") * 8
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LIMIT_S)
    assert sorted(one["topic"] for one in started.control.state()["in_force"]) == ["a", "b"]
    assert len(started.control.state()["log"]) == 16
