"""`perkey parked` as a user runs it, on the in-memory broker: no member runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perkey.cli.main import run as command
from perkey.cli.parked import _counted
from perkey.codec import Remembered, encode_fitting, with_rider
from perkey.codec.rider import MAGIC, Rider, error_hash
from perkey.codec.wire import from_text
from perkey.kafka.group_rider import Part
from perkey.testing import MemoryKafka

TOPIC, GROUP = "orders", "billing"
TIMEOUT = error_hash("Timeout", "pay.py:7")
#: of partition 0: one that fails, one parked, one held; the rest of the first ten is done
ENTRIES = (
    Remembered(3, 2, until_s=1_900_000_000),
    Remembered(5, 5, parked=True, exhausted_by="attempts", error=TIMEOUT),
    Remembered(8, 0, held=True, until_s=1_900_000_060),
)


@pytest.fixture
def kafka():
    """Twelve records of four keys in each of two partitions, and a commit with a rider."""
    with MemoryKafka() as made:
        made.create_topic(TOPIC, 2)
        for partition in (0, 1):
            for number in range(12):
                headers = (("tenant", b"acme" if number < 6 else b"ot\x1bher"),)
                made.produce(
                    TOPIC, b"v%d" % number, b"k%d" % (number % 4), partition=partition,
                    headers=headers,
                )  # fmt: skip
        text, _ = encode_fitting(3, 9, [3, 5, 8])
        ridden, count = with_rider(3, text, ENTRIES)
        assert count == len(ENTRIES)
        made.commit(GROUP, TOPIC, 0, 3, ridden)
        made.commit(GROUP, TOPIC, 1, 4)
        yield made


@pytest.fixture
def parked(kafka, capsys):
    """Runs `perkey parked WORDS…`; its exit code, what it printed, and what went wrong."""

    def call(*words: str, group: str = GROUP) -> tuple[int, str, str]:
        at = ["--group", group, "--bootstrap-servers", kafka.bootstrap]
        capsys.readouterr()
        code = command(["parked", *words, *at])
        return code, *capsys.readouterr()

    return call


def listed(parked: Any, *words: str) -> list[int]:
    """The offsets that `ls --json` lists."""
    code, out, err = parked("ls", *words, "--json")
    assert (code, err) == (0, "")
    return [row["offset"] for row in json.loads(out)]


def test_ls_lists_what_is_parked_or_held(parked):
    """With the fields of the contract; what only fails waits for no one, and is counted."""
    code, out, _ = parked("ls", "--json")
    assert code == 0
    assert json.loads(out) == [
        {
            "topic": TOPIC, "partition": 0, "offset": 5, "attempts": 5,
            "error_hash": f"{TIMEOUT:08x}", "held_until": None,
        },
        {
            "topic": TOPIC, "partition": 0, "offset": 8, "attempts": 0, "error_hash": None,
            "held_until": 1_900_000_060,
        },
    ]  # fmt: skip
    _, table, _ = parked("ls")
    row = next(line for line in table.splitlines() if "orders:0:5" in line)
    assert row.split()[-3:] == ["attempts", f"{TIMEOUT:08x}", "k1"]  # whole, also at 80 columns
    assert "2030-03-17T17:47:40Z" in table
    assert "1 parked, 1 held in group billing; 1 more failed and will be tried again" in table


def test_ls_keeps_numbers_and_states_whole_at_80_columns(kafka, parked):
    """The name of the record folds, as its topic is known to who asks."""
    kafka.create_topic("gps.positions.of.europe")
    for number in range(3):
        kafka.produce("gps.positions.of.europe", b"v", b"customer-%d" % number, partition=0)
    text, _ = encode_fitting(0, 2, [0, 2])
    entries = [Remembered(0, 5, parked=True, error=TIMEOUT, exhausted_by="attempts")]
    kafka.commit("wide", "gps.positions.of.europe", 0, 0, with_rider(0, text, entries)[0])
    _, table, _ = parked("ls", group="wide")
    words = table.split()
    assert words.count("attempts") == 2  # the column, and how it was given up
    assert f"{TIMEOUT:08x}" in words


def test_what_is_being_given_up_is_not_counted_as_tried_again():
    """Its attempts are used up, and its letter is on the way."""
    known = [Remembered(1, 2), Remembered(2, 5, exhausted_by="attempts")]
    part = Part(TOPIC, 0, 0, 9, frozenset({1, 2}), Rider(tuple(known)))
    assert _counted([], [part], "g") == (
        "0 parked, 0 held in group g; 1 more failed and will be tried again; "
        "1 more are being given up"
    )


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        ((TOPIC,), [5, 8]),
        ((f"{TOPIC}:0",), [5, 8]),
        ((f"{TOPIC}:1",), []),
        ((f"{TOPIC}:0:8",), [8]),
        (("--where", 'state == "parked" and key == "k1"'), [5]),
        (("--where", 'header.tenant == "acme" or attempts == 0'), [5, 8]),
        (("--where", f'error.hash == "{TIMEOUT:08x}"'), [5]),
        (("--where", "time < 2020-01-01"), []),
    ],
)
def test_ls_lists_only_what_is_asked_for(parked, words, offsets):
    """A topic, a partition, a record, or what a condition says of the record."""
    assert listed(parked, *words) == offsets


def test_a_table_is_cut_and_says_so(parked):
    """--limit is of the table alone."""
    _, out, _ = parked("ls", "--limit", "1")
    assert "orders:0:8" not in out
    assert "and 1 more: --limit 2" in out


def test_show_shows_the_record_escaped(parked):
    """Key and time always, values only when asked for."""
    _, plain, _ = parked("show", "orders:0:8")
    assert "tenant = …" in plain
    assert "v8" not in plain
    code, out, _ = parked("show", "orders:0:8", "--values", "--json")
    row = json.loads(out)
    assert (code, row["key"], row["value"], row["state"]) == (0, "k0", "v8", "held")
    assert row["headers"] == [["tenant", "ot\\x1bher"]]


def test_show_shows_all_that_is_asked_for(parked):
    """A topic, a partition, or all of the group; --json is a list then."""
    for words in ((), (TOPIC,), (f"{TOPIC}:0",)):
        code, out, err = parked("show", *words, "--json")
        assert (code, err) == (0, "")
        assert [(row["offset"], row["key"]) for row in json.loads(out)] == [(5, "k1"), (8, "k0")]
    _, out, _ = parked("show")
    assert out.count("error_hash:") == 2
    assert out.splitlines()[-1].startswith("1 parked, 1 held in group billing")
    assert json.loads(parked("show", f"{TOPIC}:1", "--json")[1]) == []


def test_a_record_that_retention_took_is_reported(kafka, parked):
    """It is still parked, and cannot be read any more."""
    kafka.delete_before(TOPIC, 0, 6)
    _, out, err = parked("show", "orders:0:5")
    assert "in_log:       False" in out
    assert "retention or compaction deleted the record: skip it" in err
    assert "deleted" in parked("ls")[1]
    assert listed(parked, "--where", 'key == "k1"') == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("show", "orders:0:2"), "orders:0:2 is done in group billing"),
        (("show", "orders:0:6"), "orders:0:6 is done in group billing"),
        (("show", "orders:0:3"), "is neither parked nor held"),
        (("show", "orders:0:99"), "is neither parked nor held"),
        (("show", "orders:0:x"), "write TOPIC, TOPIC:PARTITION or"),
        (("show", "orders:2:0"), "topic orders has no partition 2, only 0 to 1"),
        (("ls", "nowhere"), "topic nowhere does not exist"),
        (("ls", "orders:x"), "write TOPIC, TOPIC:PARTITION"),
        (("ls", "--where", 'error.type == "Timeout"'), "did you mean error.hash?: ^error.type"),
        (("ls", "--limit", "0"), "Invalid value for '--limit'"),
    ],
)
def test_bad_input_is_one_line(parked, words, reason):
    """Exit 2, and the line names the cure."""
    code, out, err = parked(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        (["billing"], None),
        (["billing", "billing"], None),
        ([], "give --group NAME: no Perkey app runs on this machine"),
        (["billing", "geo"], "members of 2 groups run here: give --group, one of billing, geo"),
    ],
)
def test_without_a_group_it_is_the_one_that_runs_here(kafka, capsys, monkeypatch, groups, reason):
    """Two groups or none: one line that says what to give."""
    runs = [Path(f"/run/{number}.sock") for number in range(len(groups))]
    monkeypatch.setattr("perkey.observe.local.runs", lambda: runs)
    monkeypatch.setattr(
        "perkey.observe.local.ask", lambda path, question: {"group": groups[runs.index(path)]}
    )
    capsys.readouterr()
    code = command(["parked", "ls", "--json", "--bootstrap-servers", kafka.bootstrap])
    out, err = capsys.readouterr()
    if reason is None:
        assert (code, [row["offset"] for row in json.loads(out)]) == (0, [5, 8])
    else:
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert reason in err


def test_a_group_that_has_committed_nothing(parked):
    """One line, exit 2."""
    code, _, err = parked("ls", group="nobody")
    assert code == 2
    assert "group nobody has committed nothing yet at memory://" in err


def test_no_rider_is_nothing_parked(kafka, parked):
    """An empty list, exit 0."""
    kafka.commit(GROUP, TOPIC, 0, 3)
    assert listed(parked) == []
    assert "0 parked, 0 held in group billing" in parked("ls")[1]


def _with_frame(kafka: MemoryKafka, content: bytes) -> None:
    """Commit a map with this rider, as anything that may commit could have written it."""
    from perkey.codec import wire, zstd

    text, _ = encode_fitting(3, 9, [3, 5, 8])
    encoding, body, _ = from_text(text)
    encoding = wire.COMPRESSED.get(encoding.name, encoding)
    frame = MAGIC.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content
    kafka.commit(GROUP, TOPIC, 0, 3, wire.to_text(encoding, zstd.compress(body) + frame))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x01\x00\x00\x04\x05\xff", "rider ignored: cut off"),
        (b"\x07\x00", "rider version 7 is not known"),
        (b"", "rider version missing is not known"),
    ],
)
def test_a_rider_that_cannot_be_read_is_a_warning(kafka, parked, content, reason):
    """What others say still holds; a record is not reported as not parked."""
    _with_frame(kafka, content)
    code, out, err = parked("ls", "--json")
    assert (code, json.loads(out)) == (0, [])
    assert err == f"perkey: warning: orders[0]: {reason}\n"
    code, _, err = parked("show", "orders:0:5")
    assert code == 2
    assert f"orders:0:5: not known: {reason}" in err


def test_a_full_rider_is_a_warning(kafka, parked):
    """Beyond its last entry there may be more."""
    offsets = range(0, 4_000, 2)
    kafka.create_topic("many")
    for number in range(4_000):
        kafka.produce("many", b"v", b"k%d" % number, partition=0)
    entries = [Remembered(one, 5, parked=True, error=TIMEOUT) for one in offsets]
    text, top = encode_fitting(0, 3_999, offsets)
    ridden, count = with_rider(0, text, entries)
    assert 0 < count < len(entries), top
    kafka.commit(GROUP, "many", 0, 0, ridden)
    code, out, err = parked("ls", "many", "--json")
    assert (code, len(json.loads(out))) == (0, count)
    assert f"no room for more: records after offset {2 * count - 2} may be missing" in err


@pytest.mark.parametrize("name", ["ls", "show"])
def test_every_command_has_help_with_an_example(capsys, name):
    """`--help` shows one call."""
    assert command(["parked", name, "--help"]) == 0
    assert f"perkey parked {name} orders" in capsys.readouterr().out
