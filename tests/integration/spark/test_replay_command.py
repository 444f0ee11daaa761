"""`perkey replay`: a stretch of time through the same handler, into the same topics."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.integration.spark.sink_kit import messages, values
from tests.support.command import perkey as perkey_command

import perkey
from perkey.spark.replaying import Stretch, replay_stretch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

APP = """
import perkey
app = perkey.App(group="g", kafka={{"bootstrap.servers": {bootstrap!r}, "session.timeout.ms": 9000}})

@app.consume({source!r}, value="str", output={target!r}, retry=perkey.Retry(attempts=1),
             on_exhausted=perkey.DeadLetter({dead!r}))
async def shout(record):
    if record.value == "bad":
        raise ValueError("cannot shout")
    return record.value + "!"
"""
BEGIN_MS = 1_772_359_200_000  # 2026-03-01T10:00 UTC
MINUTE_MS = 60_000


@pytest.fixture
def fill(produce):
    """Fill a topic of ten minutes, with a record a minute."""

    def write(source):
        for minute in range(10):
            value = "bad" if minute == 4 else f"m{minute}"
            at = BEGIN_MS + minute * MINUTE_MS
            produce(source, [value], partition=minute % 2, key=b"k%d" % (minute % 3), timestamp=at)

    return write


@pytest.fixture
def replay(kafka_broker, topic, fill, tmp_path):
    """An app with such a topic; run `perkey replay` on it."""
    source, target, dead = topic(2), topic(), topic()
    fill(source)
    text = APP.format(bootstrap=kafka_broker.bootstrap, source=source, target=target, dead=dead)
    (tmp_path / "shouting.py").write_text(text)

    def run(*arguments, topic_=source):
        env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.run(
            [sys.executable, "-m", "perkey.cli.main", "replay", "shouting:app", "--topic", topic_,
             "--engine", "spark", "--master", "local[2]", "--conf", "spark.ui.enabled=false", *arguments],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    run.target, run.dead, run.broker = target, dead, kafka_broker
    return run


@pytest.fixture
def shouting(kafka_broker, topic):
    """An app, and the topics that it writes to."""
    target, dead = topic(), topic()
    app = perkey.App(group="g", kafka={"bootstrap.servers": kafka_broker.bootstrap})

    def on(source):
        @app.consume(
            source,
            value="str",
            output=target,
            retry=perkey.Retry(attempts=1),
            on_exhausted=perkey.DeadLetter(dead),
        )
        async def shout(record):
            if record.value == "bad":
                raise ValueError("cannot shout")
            return record.value + "!"

        return app

    on.target, on.dead = target, dead
    return on


def test_records_of_a_time_go_through_the_handler(spark, kafka_broker, topic, fill, shouting):
    """From is in, to is not; outputs and dead letters are in their topics; failures are told."""
    source = topic(2)
    fill(source)
    stretch = Stretch(source, BEGIN_MS + 2 * MINUTE_MS, BEGIN_MS + 6 * MINUTE_MS)
    reach = {"kafka.bootstrap.servers": kafka_broker.bootstrap}
    found = replay_stretch(spark, shouting(source), stretch, reach)
    assert (found.records, found.failed, found.outputs) == (4, 1, 4)
    assert "ValueError: cannot shout" in found.failures[0]
    assert values(kafka_broker, shouting.target) == ["m2!", "m3!", "m5!"]
    (letter,) = messages(kafka_broker, shouting.dead)
    assert letter.value() == b"bad"


@pytest.mark.long
def test_a_stretch_of_time_is_handled_again(replay):
    """From is in, to is not; outputs and dead letters are in their topics; failures are told."""
    ended = replay("--from", "2026-03-01T10:02", "--to", "2026-03-01T11:06+01:00", "--json")
    assert ended.returncode == 3, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert (found["records"], found["done"], found["failed"], found["outputs"]) == (4, 3, 1, 4)
    assert "ValueError: cannot shout" in found["failures"][0]
    assert values(replay.broker, replay.target) == ["m2!", "m3!", "m5!"]
    (letter,) = messages(replay.broker, replay.dead)
    assert letter.value() == b"bad"


@pytest.mark.long
def test_only_one_key(replay):
    """--key leaves the others out."""
    ended = replay("--from", str(BEGIN_MS), "--to", "2026-03-01T12:00", "--key", "k0")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout == "4 records: 4 done, 0 failed; 4 outputs\n"
    assert values(replay.broker, replay.target) == ["m0!", "m3!", "m6!", "m9!"]


@pytest.fixture
def refused(kafka_broker, topic, tmp_path, monkeypatch):
    """An app with a topic; what `perkey replay` refuses in this process, and the topic."""
    source = topic()
    names = {"source": source, "target": f"{source}.out", "dead": f"{source}.dlq"}
    text = APP.format(bootstrap=kafka_broker.bootstrap, **names)
    (tmp_path / "refused_app.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))

    def run(*arguments, topic_=source):
        ended = perkey_command("replay", "refused_app:app", "--topic", topic_, *arguments)
        sys.modules.pop("refused_app", None)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count("\n") == 1
        return ended.stderr

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "2026-03-01", "--to", "2026-03-01"], "is not before --to"),
        (["--from", "yesterday", "--to", "2026-03-01"], "--from 'yesterday': write a time"),
        (["--from", "1" * 17, "--to", "1" * 18], "not a time in milliseconds"),
    ],
)
def test_bad_times_are_one_line(refused, arguments, says):
    """Exit code 2, and nothing is started."""
    assert says in refused(*arguments)


def test_a_topic_without_a_handler_is_reported(refused):
    """With the topics that there are."""
    told = refused("--from", "0", "--to", "1", topic_="nope")
    assert "no handler of the app consumes nope: there are t-" in told
