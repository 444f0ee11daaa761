"""What a newcomer does first, as the pages print it: the README's example, from nothing."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import perkey
from tests.support.printed import Shell, blocks, on_port, printed_port, run_the_readme

from perkey.broker import LocalBroker


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Lines with the programs of this environment, whether its scripts are on the path or not."""
    shims = tmp_path / "bin"
    shims.mkdir()
    for name, command in (("perkey", "-m perkey"), ("python", "")):
        shim = shims / name
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        shim.chmod(0o755)
    shell = Shell(tmp_path, shims)
    yield shell
    shell("perkey broker down")


@pytest.fixture
def port() -> Iterator[int]:
    """9092 as it is printed, or a free one."""
    with printed_port() as port:
        yield port


@pytest.mark.timeout(300)
def test_the_readmes_example_works_as_it_is_printed(port, shell):
    """Broker, topics, a record and `python app.py`, line by line: one record done, one alert."""
    run_the_readme(shell, port)
    assert end_of(f"127.0.0.1:{port}", "gps.alerts") == 1
    assert end_of(f"127.0.0.1:{port}", "gps.positions.dlq") == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_page_for_beginners_works_as_it_is_printed(port, shell, tmp_path):
    """Every line of it but pip's: one order billed, two dead letters, all of it committed."""
    page = "docs/getting-started.md"
    (tmp_path / "app.py").write_text(blocks(page, "python")[0].replace("9092", str(port)))
    lines = "".join(blocks(page, "console")).strip().splitlines()
    for line in lines:
        if line.startswith("pip"):
            continue
        if line == "perkey broker down":
            letters = [end_of(f"127.0.0.1:{port}", "orders.dlq", n) for n in range(2)]
            bills = [end_of(f"127.0.0.1:{port}", "invoices", n) for n in range(2)]
        shell.succeed(on_port(line, port))
    assert (sum(letters), sum(bills)) == (2, 1)


def end_of(bootstrap: str, topic: str, partition: int = 0) -> int:
    """How many records a partition has."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks"})
    try:
        return reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
    finally:
        reader.close()


def values_of(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of a topic of one partition."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks"})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        found = reader.consume(count, timeout=60)
        return [(one.key(), one.value()) for one in found]
    finally:
        reader.close()


@pytest.fixture
def at(kafka_broker: LocalBroker) -> list[str]:
    """The option that names the test's broker."""
    return ["--bootstrap-servers", kafka_broker.bootstrap]


def test_topics_are_created_once_and_with_the_partitions_asked_for(at):
    """What exists stays as it is; another number of partitions is refused, exit 2."""
    first, second = f"a-{uuid.uuid4()}", f"b-{uuid.uuid4()}"
    made = perkey("topics", "create", first, second, "--partitions", "3", *at)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout == f"{first}: created, 3 partitions\n{second}: created, 3 partitions\n"
    again = perkey("topics", "create", first, "--json", *at)
    assert json.loads(again.stdout) == [{"topic": first, "partitions": 3, "created": False}]
    other = perkey("topics", "create", first, "--partitions", "4", *at)
    assert (other.returncode, other.stdout) == (2, "")
    assert other.stderr.count("\n") == 1
    assert "already exists with 3 partitions, not 4" in other.stderr


def test_lines_become_records(kafka_broker, at, tmp_path):
    """A record a line, from a file or stdin, with the key given; the number sent is said."""
    topic = f"lines-{uuid.uuid4()}"
    perkey("topics", "create", topic, "--partitions", "1", *at)
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n\ntwo\r\nthr\xffee")
    done = perkey("produce", topic, str(lines), "--key", "k", *at)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"3 records sent to {topic} (1 empty line skipped)\n"
    assert perkey("produce", topic, *at, stdin="four\n").stdout == f"1 record sent to {topic}\n"
    found = values_of(kafka_broker.bootstrap, topic, 4)
    assert found == [(b"k", b"one"), (b"k", b"two"), (b"k", b"thr\xffee"), (None, b"four")]


def test_a_record_the_broker_refuses_is_reported(at):
    """Too large for the broker: one line with the reason, how many were sent, exit 1."""
    topic = f"large-{uuid.uuid4()}"
    perkey("topics", "create", topic, *at)
    done = perkey("produce", topic, *at, stdin="x" * 3_000_000)
    assert done.returncode == 1
    assert done.stdout == f"0 records sent to {topic}\n"
    assert done.stderr.count("\n") == 1
    assert "MSG_SIZE_TOO_LARGE" in done.stderr


def test_a_missing_topic_names_the_command_that_makes_it(at):
    """`perkey produce` makes no topic by itself: a typo would be one."""
    done = perkey("produce", "nobody.made.it", *at, stdin="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"perkey topics create nobody.made.it {' '.join(at)}" in done.stderr
