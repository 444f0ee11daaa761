"""`perkey offsets` as a user runs it: on text, and on groups of a real broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support import command

from perkey import codec
from perkey.broker import LocalBroker
from perkey.kafka import clib, group_offsets

PER_PARTITION = 200


def perkey(*arguments: str) -> CompletedProcess[str]:
    """Run `perkey offsets …`."""
    return command.perkey("offsets", *arguments)


def refused(done: CompletedProcess[str], code: int = 2) -> str:
    """The one line of an error that ended with this exit code and without a traceback."""
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("perkey: ")
    return done.stderr


@pytest.mark.parametrize(
    ("offset", "metadata", "expected"),
    [
        (
            "100",
            "bAAK3AMA",
            {
                "encoding": "BitSet",
                "frontier": 100,
                "highest_seen": 109,
                "not_done": [100, 101, 105],
            },
        ),
        ("7", "", {"encoding": "none", "frontier": 7, "highest_seen": 6, "not_done": []}),
        (
            "50",
            "bgAA",
            {"encoding": "RunLength", "frontier": 50, "highest_seen": 49, "not_done": []},
        ),
    ],
)
def test_decode_prints_the_promised_json(offset: str, metadata: str, expected: dict[str, Any]):
    """`decode --json` prints exactly the four fields, and nothing else."""
    done = perkey("decode", "--offset", offset, metadata, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == expected
    assert list(json.loads(done.stdout)) == ["encoding", "frontier", "highest_seen", "not_done"]


def test_decode_is_readable_without_json():
    """For people, runs of offsets are written as ranges."""
    assert "not done:     100-101, 105" in perkey("decode", "--offset", "100", "bAAK3AMA").stdout


def test_decode_shows_what_a_commit_remembers():
    """A record a line, and as `remembered` in JSON."""
    text, _ = codec.with_rider(
        100,
        "",
        [
            codec.Remembered(
                100, 5, parked=True, exhausted_by="attempts", until_s=1_790_000_060, error=7
            )
        ],
    )
    shown = perkey("decode", "--offset", "100", text).stdout
    assert (
        "record 100: 5 failed attempts, parked (attempts), until 2026-09-21T14:14:20+00:00, "
        "error 00000007\n"
    ) in shown
    (one,) = json.loads(perkey("decode", "--offset", "100", text, "--json").stdout)["remembered"]
    assert (one["offset"], one["parked"], one["held"]) == (100, True, False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--offset", "5", "AQ=="), "Kafka Streams"),
        (("--offset", "5", "bH//"), "claims 32767 offsets"),
        (("--offset", "5", "not a map"), "not Base64"),
        (("--offset", "-1", "bgAA"), "--offset"),
        (("--offset", "five", "bgAA"), "--offset"),
        (("bgAA",), "--offset"),
        (("--offset", "5"), "METADATA"),
    ],
)
def test_decode_refuses_bad_input_in_one_line(arguments: tuple[str, ...], reason: str):
    """Unreadable metadata and wrong options end with exit code 2 and one line that says why."""
    assert reason.lower() in refused(perkey("decode", *arguments, "--json")).lower()


@pytest.mark.parametrize("command", ["decode", "show", "set"])
def test_every_command_has_help_with_an_example(command: str):
    """`--help` says what it is for and shows one call of it."""
    done = perkey(command, "--help")
    assert done.returncode == 0
    assert f"Example: perkey offsets {command}" in done.stdout


@pytest.fixture
def group(kafka_broker: LocalBroker) -> str:
    """A group on a topic of its own name with three partitions of 200 records; 0 and 1 committed.

    Partition 0: 100..109 seen, of which 100, 101, 105 are not done; 1: metadata of a stranger.
    """
    name = f"offsets-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=3)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for number in range(3 * PER_PARTITION):
        producer.produce(name, b"value", partition=number % 3, timestamp=1000 + number // 3)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": name})
    queue = clib.CommitQueue(consumer)
    text = codec.encode(100, 109, [100, 101, 105])
    queue.send([(name, 0, 100, text), (name, 1, 50, '{"some": "JSON"}')])
    assert [answer.error for answer in queue.poll(60)] == [0]
    queue.close()
    consumer.close()
    return name


@pytest.fixture
def at(kafka_broker: LocalBroker) -> list[str]:
    """The option that names the broker."""
    return ["--bootstrap-servers", kafka_broker.bootstrap]


def shown(group: str, at: list[str]) -> list[dict[str, Any]]:
    """What `show --json` says."""
    done = perkey("show", "--group", group, *at, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_show_lists_what_is_committed(group: str, at: list[str]):
    """Maps are decoded, foreign metadata is named, partitions without a commit are left out."""
    first, second = shown(group, at)
    assert first == {
        "topic": group,
        "partition": 0,
        "encoding": "BitSet",
        "frontier": 100,
        "highest_seen": 109,
        "not_done": [100, 101, 105],
        "lag": 100,
    }
    assert (second["encoding"], second["frontier"], second["lag"]) == ("unreadable", 50, 150)
    assert (second["highest_seen"], second["not_done"]) == (49, [])
    assert "not Base64" in second["error"]
    table = perkey("show", "--group", group, *at)
    assert table.returncode == 0
    assert "100-101" in table.stdout


def test_set_reports_first_what_it_would_do(group: str, at: list[str]):
    """Without --yes the repeats and skips are counted with the map, and nothing changes."""
    before = shown(group, at)
    where = ["--group", group, *at, "--topic", group, "--partition", "0"]
    back = perkey("set", *where, "--offset", "90")
    assert back.returncode == 0
    assert "100 -> 90" in back.stdout
    assert "17 done records processed again (7 of them done beyond" in back.stdout
    assert "0 unfinished records skipped" in back.stdout
    assert "add --yes" in back.stderr
    ahead = json.loads(perkey("set", *where, "--offset", "150", "--json").stdout)
    assert ahead == [
        {
            "topic": group,
            "partition": 0,
            "before": 100,
            "after": 150,
            "repeated": 0,
            "repeated_beyond": 0,
            "skipped": 3 + 40,
            "applied": False,
        }
    ]
    inside = json.loads(perkey("set", *where, "--offset", "104", "--json").stdout)[0]
    assert (inside["repeated_beyond"], inside["skipped"]) == (5, 2)
    assert shown(group, at) == before


def test_set_moves_a_group_without_members(group: str, at: list[str]):
    """With --yes the offset is committed, without a map, in each of the four ways to name it."""
    where = ["--group", group, *at, "--topic", group]
    done = perkey("set", *where, "--partition", "0", "--offset", "90", "--yes", "--json")
    assert json.loads(done.stdout)[0]["applied"] is True
    assert shown(group, at)[0] == {
        "topic": group,
        "partition": 0,
        "encoding": "none",
        "frontier": 90,
        "highest_seen": 89,
        "not_done": [],
        "lag": 110,
    }
    for option, frontier in [
        (["--to-latest"], 200),
        (["--to-earliest"], 0),
        (["--to-timestamp", "1150"], 150),
        (["--to-timestamp", "1970-01-01T00:00:01.120Z"], 120),
        (["--to-timestamp", "2030-01-01T00:00:00"], 200),
    ]:
        done = perkey("set", *where, *option, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert [one["frontier"] for one in shown(group, at)] == [frontier] * 3, option


@pytest.fixture
def member(kafka_broker: LocalBroker, group: str) -> Iterator[Consumer]:
    """A live member of the group."""
    # Its own commit, every five seconds, would move what the test looks at.
    config = {"group.id": group, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, **config})
    assigned: list[TopicPartition] = []
    consumer.subscribe([group], on_assign=lambda _consumer, found: assigned.extend(found))
    deadline = time.monotonic() + 60
    while not assigned:
        assert time.monotonic() < deadline
        consumer.consume(1, 0.1)
    yield consumer
    consumer.close()


@pytest.mark.usefixtures("member")
def test_set_refuses_a_group_with_members(group: str, at: list[str]):
    """A live member would undo the change: it must stop first. Showing is allowed."""
    where = ["--group", group, *at, "--topic", group, "--to-earliest"]
    for arguments in (where, [*where, "--yes"]):
        assert "has 1 member: stop them first" in refused(perkey("set", *arguments))
    assert shown(group, at)[0]["frontier"] == 100


def test_set_refuses_bad_input_in_one_line(group: str, at: list[str]):
    """Each wrong or missing option is named, before anything is committed."""
    where = ["--group", group, *at, "--topic", group]
    cases = [
        ([*where], "give one of --offset"),
        ([*where, "--to-earliest", "--to-latest"], "give one of --offset"),
        ([*where, "--offset", "5"], "give --partition too"),
        ([*where, "--partition", "3", "--offset", "5"], "has no partition 3, only 0 to 2"),
        ([*where, "--partition", "0", "--offset", "201"], "holds offsets 0 to 200, not 201"),
        ([*where, "--to-timestamp", "yesterday"], "'yesterday' is not a time"),
        ([*where, "--to-timestamp", "1" * 5000], "is not a time"),
        ([*where, "--to-timestamp", "1767225600000000"], "past the year 9999: give milliseconds"),
        ([*where[:-1], "no-such-topic", "--to-latest"], "topic no-such-topic does not exist"),
    ]
    for arguments, reason in cases:
        assert reason in refused(perkey("set", *arguments, "--yes"))
    assert shown(group, at)[0]["frontier"] == 100


def test_set_creates_a_group(group: str, at: list[str]):
    """One that is to begin elsewhere than at the first record; the dry run says that it is new."""
    where = ("--group", f"new-{group}", *at, "--topic", group)
    dry = perkey("set", *where, "--to-latest")
    assert dry.returncode == 0
    assert f"group new-{group} does not exist yet: --yes creates it" in dry.stderr
    assert "no commit -> " in dry.stdout
    done = perkey("set", *where, "--to-latest", "--yes")
    assert (done.returncode, done.stderr) == (0, f"perkey: group new-{group} is new\n")
    assert [row["lag"] for row in shown(f"new-{group}", at)] == [0, 0, 0]


def test_a_group_that_does_not_exist(at: list[str]):
    """Showing a group nobody ever had is an error, not an empty list."""
    assert "group nobody does not exist" in refused(perkey("show", "--group", "nobody", *at))


def test_properties_are_checked_and_secrets_stay_secret(group: str, at: list[str], tmp_path: Any):
    """Wrong properties end in one line that names them and never a value."""
    secret = "hunter2-canary"
    config = tmp_path / "client.properties"
    config.write_text(f"# of the test\nsasl.password={secret}\nsecurity.protocol=PLAINTEXT\n")
    show = ["show", "--group", group, *at]
    assert perkey(*show, "--config", str(config), "--json").returncode == 0
    for options, reason in [
        (["-X", "sasl.pasword=" + secret], "did you mean sasl.password?"),
        (["-X", "security.protocol=" + secret], "security.protocol"),
        (["-X", "group.id=" + secret], "set by --group"),
        (["-X", "client.id"], "write key=value"),
        (["--config", str(tmp_path / "absent")], "cannot be read"),
    ]:
        line = refused(perkey(*show, *options))
        assert reason in line
        assert secret not in line


def test_absent_brokers_are_named_in_bounded_time(monkeypatch):
    """With nobody at the address the command ends by itself with one line."""
    monkeypatch.setattr(group_offsets, "ANSWER_S", 2.0)
    began = time.monotonic()
    line = refused(perkey("show", "--group", "g", "--bootstrap-servers", "127.0.0.1:1"), code=1)
    assert "Kafka at 127.0.0.1:1: cannot list topics" in line
    assert "Connection refused" in line
    assert time.monotonic() - began < 30


def test_a_refused_login_is_called_so(at: list[str]):
    """A broker that does not take the login is no broker that is away; the password stays unsaid."""
    login = ["security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN"]
    login += ["sasl.username=u", "sasl.password=s3cret"]
    line = refused(perkey("show", "--group", "g", *at, *(x for one in login for x in ("-X", one))))
    assert "check security.protocol and sasl" in line
    assert "s3cret" not in line


def test_a_password_in_the_address_is_not_shown():
    """It is refused before anybody is asked."""
    line = refused(perkey("show", "--group", "g", "--bootstrap-servers", "kafka://u:s3cret@h:9092"))
    assert "user or a password in an address" in line
    assert "s3cret" not in line
