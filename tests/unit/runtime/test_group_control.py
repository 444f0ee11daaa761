"""A member that follows its group's control topic, on the in-memory broker."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.errors import ConfigError
from perkey.kafka.ports import OutMessage, Word
from perkey.observe.group_orders import ANSWER, SILENT_S, command_key, key_of, kind_of, packed
from perkey.observe.orders import Order
from perkey.observe.why import why
from perkey.runtime.run import group_control
from perkey.runtime.run.group_control import GroupControl
from perkey.runtime.run.preflight import _make_control
from perkey.testing import MemoryKafka

LIMIT_S = 60.0
TOPIC = "control"


def order(action: str, number: int = 1, **given: Any) -> Order:
    """A command."""
    return Order(action, "a test", f"id{number}", **given)


class Group:
    """Members of the group g, and its control topic."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.runs: list[Any] = []

    def start(self) -> Any:
        """A member that follows the topic when this returns."""
        app = perkey.App(
            group="g", kafka={"bootstrap.servers": self.kafka.bootstrap}, control=TOPIC
        )

        @app.consume("a")
        def one(record: perkey.Record[Any]) -> None:
            pass

        self.runs.append(app.start())
        return self.runs[-1]

    def write(self, given: Order, *, age_s: float = 0.0, group: str = "g") -> bytes:
        """A command in the topic; its key."""
        key = command_key(group, given)
        at_ms = int((time.time() - age_s) * 1000)
        self.kafka.produce(TOPIC, packed(given), key=key, timestamp_ms=at_ms)
        return key

    def answers(self, order_id: str) -> list[dict[str, Any]]:
        """What members answered."""
        found = []
        for record in self.kafka.records(TOPIC):
            kind = kind_of(record.key)
            if kind is not None and kind[0] == ANSWER and kind[2][0] == order_id:
                found.append(json.loads(record.value))
        return found


def in_force(run: Any) -> list[tuple[str, str | None]]:
    """Actions and topics."""
    return [(one["action"], one["topic"]) for one in run.control.state()["in_force"]]


@pytest.fixture
def group(monkeypatch):
    """Nobody runs yet; members look often."""
    monkeypatch.setattr(group_control, "LOOK_S", 0.01)
    monkeypatch.setattr(group_control, "READY_S", LIMIT_S)
    with MemoryKafka() as kafka:
        kafka.create_topic("a")
        kafka.create_topic(TOPIC)
        made = Group(kafka)
        yield made
        for run in made.runs:
            run.stop("now")
        for run in made.runs:
            run.wait(LIMIT_S)


def test_a_later_member_obeys_what_is_in_force(group):
    """Before it joins; for the time that is left; it answers no one who has gone."""
    group.write(order("pause", 1, topic="a", for_s=3_600.0), age_s=3_000.0)
    group.write(order("set", 2, settings={"concurrency": 5}, for_s=60.0), age_s=61.0)
    group.write(order("retry", 3, topic="a", key="k"))
    group.write(order("pause", 4), group="other")
    run = group.start()
    (force,) = run.control.state()["in_force"]
    assert force["topic"] == "a"
    assert 500.0 < force["until"] - time.time() <= 601.0
    assert [one["id"] for one in run.control.state()["log"]] == ["id1"]
    assert group.answers("id1") == []


def test_what_was_resumed_stays_resumed_for_later_members(group):
    """Also where everything was resumed, and the pause of one topic is still in the topic."""
    group.write(order("pause", 1, topic="a", for_s=86_400.0), age_s=7_200.0)
    group.write(order("resume", 2, for_s=3_600.0), age_s=7_100.0)
    assert in_force(group.start()) == []


def test_a_tombstone_ends_a_pause(group):
    """As a resume does."""
    run = group.start()
    key = group.write(order("pause", topic="a"))
    wait_for(lambda: in_force(run))
    group.kafka.produce(TOPIC, None, key=key)
    wait_for(lambda: not in_force(run))


def test_a_key_that_is_left_out_ends_nothing(group, monkeypatch):
    """The reader keeps a limited number of them."""
    run = group.start()
    group.write(order("pause", topic="a"))
    wait_for(lambda: in_force(run))
    followed = run._outside._followed
    monkeypatch.setattr(followed._words, "last", dict)
    wait_for(lambda: not followed._seen)
    assert in_force(run) == [("pause", "a")]


def test_what_is_no_command_is_counted_and_passed_over(group, caplog):
    """Each is one line in the log; the next command is obeyed."""
    run = group.start()
    key = command_key("g", order("pause"))
    group.kafka.produce(TOPIC, b"{", key=key)
    group.kafka.produce(TOPIC, b"{}", key=key_of("command", "g", "x"))
    group.write(order("pause", 2, topic="a"))
    wait_for(lambda: in_force(run) == [("pause", "a")])
    assert run.snapshot()["control"]["refused"] == 2
    assert caplog.text.count("command record refused") == 2


def test_a_retired_command_is_one_line_that_names_what_replaces_it(group, caplog):
    """An earlier build wrote it to the topic; no record is handled again."""
    run = group.start()
    group.write(order("redo", topic="a", records=((0, 1),)))
    wait_for(lambda: run.snapshot()["control"]["refused"] == 1)
    assert "action 'redo': it is retired: `perkey dlq replay TOPIC`" in caplog.text


def test_a_topic_that_cannot_be_read_is_said(group, monkeypatch):
    """What is in force holds; why names the topic and the reason; then it is read again."""
    run = group.start()
    group.write(order("pause", topic="a"))
    wait_for(lambda: in_force(run))
    assert "control" not in {one.about for one in why(run.snapshot())}
    followed = run._outside._followed
    monkeypatch.setattr(followed, "_beat_s", 0.01)
    monkeypatch.setattr(followed, "_send", lambda key, value: followed._failed("no rights"))

    def told():
        """The last beat that was sent may come back after it."""
        monkeypatch.setattr(followed, "_waits_since", time.monotonic() - SILENT_S)
        texts = [one.text for one in why(run.snapshot()) if one.about == "control"]
        return [text for text in texts if "no rights" in text]

    (text,) = wait_for(told)
    assert f"control topic {TOPIC} for" in text
    assert in_force(run) == [("pause", "a")]
    monkeypatch.undo()
    wait_for(lambda: run.snapshot()["control"]["unread_s"] == 0.0)


class Admin:
    """One of whom everything about topics is refused, or that has none."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.made: list[Any] = []

    def describe(self, topics: Any, timeout_s: float) -> dict[str, Any]:
        if self.refuses:
            raise ConfigError("Kafka at b: cannot describe control: Topic authorization failed")
        return {}

    def create_topic(self, *given: Any, **more: Any) -> None:
        self.made.append((*given, more["config"]["message.timestamp.type"]))


def test_the_topic_is_made_where_it_is_missing():
    """One partition, stamped by the broker."""
    admin: Any = Admin(refuses=False)
    _make_control(admin, TOPIC, 1.0)
    assert admin.made == [(TOPIC, 1, "LogAppendTime")]


def test_a_topic_that_is_denied_is_one_line_at_the_start():
    """It names the option and the rights."""
    admin: Any = Admin(refuses=True)
    with pytest.raises(ConfigError, match=r"control='control'.*READ and WRITE") as caught:
        _make_control(admin, TOPIC, 1.0)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("given", ["", "no topic", 7])
def test_an_option_that_is_no_topic_is_refused(given):
    """When the app is made."""
    with pytest.raises(ConfigError, match=r"App\(control="):
        perkey.App(group="g", kafka={}, control=given)


def test_reports_and_control_are_two_topics():
    """Who may report may not command."""
    with pytest.raises(ConfigError, match="two topics"):
        perkey.App(group="g", kafka={}, control="t", reports="t")


def test_the_topic_is_not_copied_for_each_command():
    """It was, and it can contain 10,000 holds."""
    words: dict[bytes, Word] = {}
    copies, before = 0, []

    def last() -> dict[bytes, Word]:
        nonlocal copies
        copies += 1
        return words.copy()

    def send(message: OutMessage, _answered: Any) -> None:
        if message.value is not None:
            words[bytes(message.key or b"")] = Word(message.value, time.time())

    def obey(_order: Order) -> list[Any]:
        before.append(copies)
        return []

    for number in range(20):
        given = order("hold", number, topic="a", key=f"k{number}", for_s=60.0)
        words[command_key("g", given)] = Word(packed(given), time.time())
    followed = SimpleNamespace(last=last, is_read=lambda: True, now=time.time, close=lambda: None)
    producer = SimpleNamespace(send=send, flush=lambda _s: None, close=lambda _s: None)
    clients: Any = SimpleNamespace(
        producer=lambda *_: producer, last_words=lambda *_, **__: followed
    )
    control = GroupControl(TOPIC, "g", "m", clients, obey, beat_s=3_600.0)
    try:
        wait_for(lambda: len(before) == 20)
    finally:
        control.close()
    assert len(set(before)) == 1


def test_a_command_that_expired_while_no_broker_answered_is_not_obeyed(monkeypatch):
    """What is read first after an outage is old, and so is the broker's clock as known by then."""
    monkeypatch.setattr(group_control, "LOOK_S", 0.01)
    words: dict[bytes, Word] = {}
    cut, clock, obeyed = False, time.time(), []

    def send(message: OutMessage, _answered: Any) -> None:
        if not cut and message.value is not None:
            words[bytes(message.key or b"")] = Word(message.value, clock)

    def write(number: int, at: float) -> None:
        given = order("pause", number, topic=f"t{number}", for_s=60.0)
        words[command_key("g", given)] = Word(packed(given), at)

    def obey(given: Order) -> list[Any]:
        obeyed.append(given.id)
        return []

    followed = SimpleNamespace(
        last=words.copy, is_read=lambda: True, now=lambda: clock, close=lambda: None
    )
    producer = SimpleNamespace(send=send, flush=lambda _s: None, close=lambda _s: None)
    clients: Any = SimpleNamespace(
        producer=lambda *_: producer, last_words=lambda *_, **__: followed
    )
    control = GroupControl(TOPIC, "g", "m", clients, obey, beat_s=0.01)
    try:
        control.wait_ready()
        cut = True
        beats = control._beats
        wait_for(lambda: control._beats > beats + 1)
        write(1, clock)  # the consumer is connected again, the producer not yet
        looks = control._beats
        wait_for(lambda: control._beats > looks + 2)
        clock += 600.0
        cut = False
        wait_for(lambda: control._expired == 1)
        write(2, clock)
        wait_for(lambda: obeyed)
    finally:
        control.close()
    assert obeyed == ["id2"]
