"""Replays by a button: the dry run, the choices without a default, one at a time, and their end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.property.test_dlq_replay import (
    DLQ,
    GROUP,
    TOPIC,
    check,
    connection,
    prepared,
    write_letter,
)

from perkey.dlq.replay import Limits, Replay
from perkey.errors import ConfigError, FatalError
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe import replays as replaying
from perkey.observe.replays import Replays
from perkey.testing import MemoryKafka

LIMIT_S = 60


@pytest.fixture
def kafka():
    """Letters of the offsets 0 to 4 (three are of type Even, two of type Odd) and 0."""
    with MemoryKafka() as made:
        prepared(made, [([b"a"] * 5, [0, 1, 2, 3, 4]), ([b"a"], [0])])
        yield made


@pytest.fixture
def noted() -> list[tuple[str, str, str]]:
    """Of each replay its reason, outcome and detail."""
    return []


@pytest.fixture
def replays(kafka, noted):
    """Those of an app that reads one topic and has one for its dead letters."""

    def connected(group: str) -> Any:
        assert group == GROUP
        return connection(kafka)

    def note(order: Any, answer: Any) -> None:
        assert order.action == "replay"
        noted.append((order.reason, answer.outcome, answer.detail))

    made = Replays(connected, lambda: [DLQ], lambda topic: topic == TOPIC, lambda: "m1", note)
    yield made
    made.close()


def ended(replays: Replays, **given: Any) -> dict[str, Any]:
    """What it answers once it has ended."""
    told = replays.answered({"topic": DLQ, **given})
    assert told["member"] == "m1"
    assert replays._job is not None
    assert replays._job.thread is not None
    replays._job.thread.join(LIMIT_S)
    told = replays.answered({"action": "state", "job": told["job"]["job"]})
    assert told["job"]["state"] != "running"
    return dict(told["job"])


def go(replays: Replays, **more: Any) -> dict[str, Any]:
    """A replay with a reason."""
    return ended(replays, action="go", reason="mended", **more)


def test_a_dry_run_sends_nothing_and_shows_what_would_go(replays, kafka, noted):
    """How many, of which types and keys, and where to."""
    job = ended(replays, action="look")
    assert (job["state"], job["goes"], job["going"], job["stale"]) == ("done", False, 6, 0)
    assert job["lines"] == [
        "6 letters of 6 to send: Even 4, Odd 2", "of 1 key: a 6", "to t, which no group reads",
    ]  # fmt: skip
    check(kafka, [set(), set()])
    assert noted == []


def test_letters_go_home_once_and_are_noted(replays, kafka, noted):
    """First those of a condition; then the others; then none."""
    odd = go(replays, where='error.type == "Odd"')
    assert odd["lines"][0] == "2 letters sent to t"
    check(kafka, [{1, 3}, set()])
    assert go(replays, stale="replay")["sent"] == 4
    assert go(replays)["sent"] == 0
    check(kafka, [{0, 1, 2, 3, 4}, {0}], runs=2)
    assert [one[:2] for one in noted] == [("mended", "done")] * 3
    assert noted[0][2].startswith("2 letters sent to t")


def test_stale_letters_need_a_choice(replays, kafka, noted):
    """There is no default: without one nothing goes."""
    kafka.produce(TOPIC, b"newer", b"a", partition=1)
    job = ended(replays, action="look")
    assert job["stale"] == 1
    assert "1 of 6 letters would run after newer records of their key: choose" in job["lines"]
    refused = go(replays)
    assert (refused["state"], refused["sent"]) == ("failed", 0)
    assert "choose what becomes of those" in refused["error"]
    check(kafka, [set(), set()])
    assert noted[0][1] == "refused"
    assert go(replays, stale="skip")["sent"] == 5
    check(kafka, [{0, 1, 2, 3, 4}, set()])


def test_other_groups_must_be_known(replays, kafka):
    """A group that reads the target, too, would handle the records again: it is named first."""
    for name in ("audit", "billing"):
        kafka.commit(name, TOPIC, 0, 5)
    assert ended(replays, action="look")["other_groups"] == ["audit", "billing"]
    refused = go(replays, groups=["billing"])
    assert "group audit reads the topic, too" in refused["error"]
    check(kafka, [set(), set()])
    assert go(replays, groups=["audit", "billing"])["sent"] == 6


def test_only_letters_of_topics_that_the_app_reads(replays, kafka):
    """A letter's headers could name any topic that the app's login may write to."""
    kafka.create_topic("payroll", 2)
    headers = (
        ("__dlq.errors.topic", b"payroll"), ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"0"), ("__dlq.errors.message", b"X: y"),
    )  # fmt: skip
    kafka.produce(DLQ, b"1000000", b"a", partition=0, headers=headers)
    kafka.produce(DLQ, b"no letter", b"a", partition=0)
    job = ended(replays, action="look")
    assert job["going"] == 6
    assert (
        "1 left out: not meant by the condition, or of topics that this app does not read"
        in (job["lines"])
    )
    assert "1 left out: without the headers of a dead letter" in job["lines"]
    assert go(replays)["sent"] == 6
    assert kafka.records("payroll") == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "a JSON object"),
        ({"action": "replay"}, "one of look, go, stop, state"),
        ({"action": "look", "topic": "t"}, "'t' is no dead-letter topic of this app's handlers: t.dlq"),
        ({"action": "look", "topic": DLQ, "where": "error.type ="}, r"\^"),
        ({"action": "look", "topic": DLQ, "where": 3}, "where must be text"),
        ({"action": "look", "topic": DLQ, "stale": "no"}, "one of skip, replay, only-if-newest"),
        ({"action": "look", "topic": DLQ, "groups": "g"}, "groups is a list"),
        ({"action": "look", "topic": DLQ, "groups": ["g"] * 1001}, "groups is a list"),
        ({"action": "look", "topic": DLQ, "claimed_by": "x" * 301}, "claimed_by"),
        ({"action": "look", "topic": DLQ, "to": "x"}, "no field 'to'"),
        ({"action": "go", "topic": DLQ}, "a reason is required"),
        ({"action": "stop", "job": 1}, "repeat the dry run"),
        ({"action": "state", "job": None}, "repeat the dry run"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(replays, noted, given, reason):
    """One line; nothing has begun."""
    with pytest.raises(ConfigError, match=reason):
        replays.answered(given)
    assert noted == []


class Slow:
    """Holds a replay where it sends, or looks, until it may go on."""

    def __init__(self, monkeypatch: Any, method: str) -> None:
        self.there, self.on = threading.Event(), threading.Event()
        real = getattr(Replay, method)

        def held(*given: Any, **more: Any) -> Any:
            self.there.set()
            assert self.on.wait(LIMIT_S)
            return real(*given, **more)

        monkeypatch.setattr(Replay, method, held)


def test_one_replay_at_a_time(replays, kafka, monkeypatch):
    """While one sends, a dry run shows that one, and another one is refused."""
    slow = Slow(monkeypatch, "send")
    first = replays.answered({"action": "go", "topic": DLQ, "reason": "mended"})["job"]
    assert slow.there.wait(LIMIT_S)
    shown = replays.answered({"action": "look", "topic": DLQ})["job"]
    assert (shown["job"], shown["goes"], shown["reason"]) == (first["job"], True, "mended")
    with pytest.raises(ConfigError, match=r"a replay of t.dlq runs \(mended\)"):
        replays.answered({"action": "go", "topic": DLQ, "reason": "again"})
    slow.on.set()
    replays._job.thread.join(LIMIT_S)
    assert replays.answered({"action": "state", "job": first["job"]})["job"]["sent"] == 6
    check(kafka, [{0, 1, 2, 3, 4}, {0}])


def test_a_dry_run_gives_way_to_the_next_question(replays, monkeypatch):
    """Its asker finds that another one has taken its place."""
    slow = Slow(monkeypatch, "look")
    first = replays.answered({"action": "look", "topic": DLQ})["job"]
    assert slow.there.wait(LIMIT_S)
    slow.on.set()
    assert ended(replays, action="look", where='error.type == "Odd"')["going"] == 2
    with pytest.raises(ConfigError, match="another dry run or replay has replaced it"):
        replays.answered({"action": "state", "job": first["job"]})


def test_a_stopped_replay_is_continued_by_the_next_one(replays, kafka, noted, monkeypatch):
    """It ends between two batches; each letter goes once, by both together."""
    monkeypatch.setattr("perkey.dlq.replay.BATCH_RECORDS_MAX", 2)
    slow = Slow(monkeypatch, "send")
    job = replays.answered({"action": "go", "topic": DLQ, "reason": "mended"})["job"]
    assert slow.there.wait(LIMIT_S)
    replays.answered({"action": "stop", "job": job["job"]})
    slow.on.set()
    replays._job.thread.join(LIMIT_S)
    stopped = replays.answered({"action": "state", "job": job["job"]})["job"]
    assert (stopped["state"], stopped["sent"]) == ("stopped", 2)
    assert noted == [("mended", "stopped", "2 letters sent to t")]
    assert go(replays)["sent"] == 4
    check(kafka, [{0, 1, 2, 3, 4}, {0}], runs=2)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        # of the letters' topic: six, and a gap behind each third one
        (Limits(8, 6), "t.dlq holds 9 offsets, more than the 8 that are read here"),
        (Limits(9, 5), "t behind the oldest letter holds 6 offsets, more than the 5"),
        (Limits(9, 6), ""),
        (Limits(10, 7), ""),
    ],
)
def test_what_is_read_beside_handlers_has_limits(replays, monkeypatch, limits, reason):
    """Beyond them the answer names the command, which has none."""
    monkeypatch.setattr(replaying, "LIMITS", limits)
    job = ended(replays, action="look")
    assert reason in job["error"]
    assert job["state"] == ("failed" if reason else "done")
    assert ("use `perkey dlq replay t.dlq`" in job["error"]) == bool(reason)


@pytest.mark.parametrize(
    "error", [KafkaUnavailable("no broker answers"), FatalError("not allowed"), ValueError("a bug")]
)
@pytest.mark.threads_may_die
def test_what_goes_wrong_is_one_line(replays, noted, monkeypatch, error):
    """The next one may start all the same."""

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(Replay, "look", fail)
    job = go(replays)
    assert job["state"] == "failed"
    assert ("see the log" if isinstance(error, ValueError) else str(error)) in job["error"]
    assert noted[0][1] == "refused"
    monkeypatch.undo()
    assert go(replays)["sent"] == 6


def test_closing_ends_what_runs(replays, monkeypatch):
    """The app stops: nothing more is sent by this process."""
    slow = Slow(monkeypatch, "send")
    replays.answered({"action": "go", "topic": DLQ, "reason": "mended"})
    assert slow.there.wait(LIMIT_S)
    closing = threading.Thread(target=replays.close)
    closing.start()
    assert replays._job.stop.wait(LIMIT_S)
    slow.on.set()
    closing.join(LIMIT_S)
    replays._job.thread.join(LIMIT_S)
    assert replays._job.state == "stopped"


def test_keys_are_shown_as_text_and_cut(replays, kafka):
    """A key is another program's bytes."""
    write_letter(kafka, 1, 7, b"\x1b[31m" + b"x" * 100)
    (line,) = [one for one in ended(replays, action="look")["lines"] if one.startswith("of ")]
    assert "\x1b" not in line
    assert "\\x1b[31m" in line
    assert "…" in line
