"""What only the cluster can show to be wrong: one line that names it, before anything is consumed."""

from __future__ import annotations

import socket
import time

import pytest

import perkey


def refused(kafka, app, *words, error=perkey.ConfigError, **how):
    """The app refuses to run, in one line with these words; its group never was."""
    with pytest.raises(error) as caught:
        app.run(**how)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_a_topic_that_does_not_exist(kafka):
    """Named with the brokers, and where to correct it."""
    app = kafka.app()
    app.consume([kafka.topic(), "no-such-topic"])(print)
    refused(kafka, app, "'no-such-topic' does not exist", kafka.bootstrap, "@app.consume")


def test_an_output_that_does_not_exist(kafka):
    """Named with its handler."""
    app = kafka.app()
    app.consume(kafka.topic(), output="no-such-output")(print)
    refused(kafka, app, "'no-such-output' (output= of print) does not exist")


def test_a_dead_letter_topic_that_does_not_exist(kafka):
    """Named as it comes out of its pattern, with the way to have it made."""
    source, app = kafka.topic(), kafka.app()
    app.consume(source, on_exhausted=perkey.DeadLetter("{topic}.dlq"))(print)
    refused(
        kafka, app, f"'{source}.dlq' (DeadLetter of print) does not exist", 'on_missing="create"'
    )


def test_a_dead_letter_topic_that_a_pattern_reads_too(kafka):
    """Its letters would come back as records for ever."""
    stem = kafka.name("p")
    kafka.topic(name=f"{stem}.a")
    kafka.topic(name=f"{stem}.dead")
    app = kafka.app()
    app.consume(f"^{stem}", on_exhausted=perkey.DeadLetter(f"{stem}.dead"))(print)
    refused(kafka, app, f"{stem}.dead", "which it reads")


@pytest.mark.broker
def test_a_pattern_that_only_python_understands(kafka):
    """Librdkafka matches it, too, and wants the brace closed: exit code 2."""
    stem, app = kafka.name("p"), kafka.app()
    app.consume(f"^{stem}x{{2")(print)
    report = kafka.start(app).wait(60)
    assert report.exit_code == 2
    assert "POSIX extended regular expression" in report.reason
    assert stem in report.reason


def test_brokers_that_do_not_answer(kafka):
    """After a bounded wait, with their address; that is no bad input, so the exit code is 1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        app = perkey.App(group="g", kafka={"bootstrap.servers": address}, start_timeout_s=2.0)
        app.consume("t")(print)
        began = time.monotonic()
        refused(kafka, app, f"no answer from {address}", error=perkey.FatalError)
        assert time.monotonic() - began < 30


def test_an_app_that_was_refused_may_be_started_again(kafka):
    """Once its topic is there; who reads its results is told of the end."""
    source = kafka.name()
    app = kafka.app()
    app.consume(source)(print)
    stream = app.results()
    refused(kafka, app, "does not exist")
    assert list(stream) == []
    assert app.snapshot()["state"] == "failed"
    kafka.topic(name=source)
    assert kafka.drain(app).exit_code == 0


def test_a_drain_of_nothing(kafka):
    """A pattern that matches no topic has nothing to drain, now or ever."""
    app = kafka.app()
    app.consume("^no-such-topic-")(print)
    refused(kafka, app, "'^no-such-topic-'", "nothing to drain", until="drained")
