"""`perkey replay` in one process, on a real broker: the app's handler, and no group."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.command import perkey as perkey_command

from perkey.broker import LocalBroker
from perkey.kafka import clib

pytestmark = pytest.mark.broker

BEGIN_MS, MINUTE_MS = 1_772_359_200_000, 60_000  # 2026-03-01T10:00 UTC
APP = """
import perkey
app = perkey.App(group={topic!r}, kafka={{"bootstrap.servers": {servers!r}}})
@app.consume({topic!r}, value="str", output={topic!r} + ".out", delivery={delivery!r},
             retry=perkey.Retry(attempts={attempts}, delay_s=0.01), on_exhausted={policy})
async def shout(record):
    if record.value == "m5":
        raise ValueError(f"cannot shout {{record.attempt}}")
    return record.value + "!"
"""


class Shouting:
    """An app with ten records in two partitions, one a minute, of two keys."""

    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.topic = f"replay-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, 2)
        for name in ("out", "dlq", "other"):
            broker.create_topic(f"{self.topic}.{name}", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(10):
            at = BEGIN_MS + number * MINUTE_MS
            producer.produce(
                self.topic, f"m{number}", f"k{number // 2 % 2}", number % 2, timestamp=at
            )
        assert producer.flush(60) == 0

    def app(self, policy: str = "perkey.Skip()", delivery: str = "at_least_once") -> None:
        """Write the app's module."""
        text = APP.format(
            topic=self.topic, servers=self.broker.bootstrap, policy=policy, delivery=delivery,
            attempts=1 if delivery == "at_most_once" else 2,
        )  # fmt: skip
        # another name each time: the command may run in this process, which keeps modules
        self.module = f"shouting_{uuid.uuid4().hex[:8]}"
        (self.folder / f"{self.module}.py").write_text(text)

    def replay(self, *words: str, begin: str = "10:02", end: str = "10:07") -> tuple[int, Any, str]:
        """Exit code, the JSON, errors."""
        day = "2026-03-01T"
        line = ["--topic", self.topic, "--from", day + begin, "--to", day + end, "--json"]
        done = perkey_command("replay", f"{self.module}:app", *line, *words)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    def values(self, name: str) -> list[str]:
        """All values of one of its other topics."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "x"})
        where = TopicPartition(f"{self.topic}.{name}", 0, 0)
        _, end = consumer.get_watermark_offsets(where, 10)
        consumer.assign([where])
        found: list[str] = []
        while len(found) < end:
            found += [one.value().decode() for one in consumer.consume(end - len(found), 1.0)]
        consumer.close()
        return found

    def commits(self) -> list[Any]:
        """What the app's group has committed."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": self.topic})
        found = clib.committed(consumer, [(self.topic, 0), (self.topic, 1)], 10.0)
        consumer.close()
        return [(one.partition, one.offset, one.metadata) for one in found]


@pytest.fixture
def shouting(kafka_broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An app in the current folder."""
    monkeypatch.chdir(tmp_path)
    made = Shouting(kafka_broker, tmp_path)
    made.app()
    return made


def test_a_range_goes_through_the_handler_and_the_group_is_untouched(shouting: Shouting):
    """From is in, to is not, in order within keys; commits are the same byte for byte."""
    done = perkey_command("run", f"{shouting.module}:app", "--until", "drained")
    assert done.returncode == 0, done.stderr
    before, first = shouting.commits(), len(shouting.values("out"))
    assert [offset for _, offset, _ in before] == [5, 5]
    code, found, err = shouting.replay()
    assert code == 0, err
    counts = [found[name] for name in ("records", "done", "failed", "skipped", "outputs")]
    assert counts == [5, 4, 1, 1, 4]
    assert "ValueError: cannot shout 2" in found["failures"][0]
    assert sorted(shouting.values("out")[first:]) == ["m2!", "m3!", "m4!", "m6!"]
    out = shouting.values("out")[first:]
    assert out.index("m2!") < out.index("m6!")  # one key
    assert shouting.commits() == before


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
def test_other_deliveries_are_replayed(shouting: Shouting, delivery: str):
    """No transaction: nothing is committed; and marks stay in memory."""
    shouting.app(delivery=delivery)
    code, found, err = shouting.replay("--key", "k1", begin="10:00", end="11:00")
    assert (code, found["records"], found["done"]) == (0, 4, 4), err
    assert sorted(shouting.values("out")) == ["m2!", "m3!", "m6!", "m7!"]
    assert [offset for _, offset, _ in shouting.commits()] == [None, None]


def test_dead_letters_and_parked_records_are_those_of_the_app(shouting: Shouting):
    """A dead letter is in its topic; parked ones are exit 3; --output takes the outputs."""
    shouting.app('perkey.DeadLetter("{topic}.dlq")')
    other = f"{shouting.topic}.other"
    code, found, err = shouting.replay("--output", other)
    assert (code, found["dead_lettered"]) == (0, 1), err
    assert (shouting.values("dlq"), len(shouting.values("other"))) == (["m5"], 4)
    assert shouting.values("out") == []
    shouting.app("perkey.Park()")
    code, found, err = shouting.replay()
    assert (code, found["parked"]) == (3, 1), err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--from", "2027-01-01T00:00", "--to", "2027-01-02T00:00"), "has no record between"),
        (("--to", "2026-02-01T00:00"), "is not before --to"),
        (("--topic", "nowhere"), "no handler of the app consumes nowhere"),
        (("--from", "yesterday"), "write a time such as"),
        (("--engine", "flink"), "choose local or spark"),
        (("--master", "local"), "require --engine spark"),
    ],
)
def test_bad_input_is_one_line(shouting: Shouting, words: tuple[str, ...], line: str):
    """With exit code 2."""
    code, _, err = shouting.replay(*words)
    assert (code, err.count("\n"), line in err) == (2, 1, True), err


@pytest.mark.parametrize("whole", [False, True], ids=["inside", "to the end"])
def test_a_range_may_end_in_aborted_records(shouting: Shouting, whole: bool):
    """Of the offsets before its end none may come: markers and aborted records are gaps."""
    settings = {"bootstrap.servers": shouting.broker.bootstrap, "transactional.id": shouting.topic}
    producer = Producer(settings)
    producer.init_transactions(60)
    for minute, commits in ((10, True), (20, False), (40, True), (50, False)):
        producer.begin_transaction()
        for number in range(3):
            at = BEGIN_MS + minute * MINUTE_MS + number
            producer.produce(shouting.topic, f"{minute}.{number}", b"k", 0, timestamp=at)
        assert producer.flush(60) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(60)
    # the first marker has today's time: a range that ends before that ends at the marker
    code, found, err = shouting.replay(
        "--to", "2100-01-01T00:00" if whole else "2026-03-01T10:30", begin="10:10"
    )
    assert (code, found["complete"]) == (0, True), err
    expected = ["10.0!", "10.1!", "10.2!"] + ["40.0!", "40.1!", "40.2!"] * whole
    assert (found["records"], sorted(shouting.values("out"))) == (len(expected), expected)
