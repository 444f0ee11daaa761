"""`perkey dlq` as a user runs it, on the in-memory broker."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import perkey
from perkey.cli.main import run as command
from perkey.testing import MemoryKafka

TOPIC, DLQ = "orders", "orders.dlq"


@pytest.fixture
def kafka():
    """Eight records of four keys in two partitions; those in BAD are letters of group billing."""
    with MemoryKafka() as made:
        for name in (TOPIC, DLQ):
            made.create_topic(name, 2)
        for number in range(8):
            value = json.dumps({"n": number, "text": "\x1b[31m"}).encode()
            headers = (("tenant", b"acme" if number < 4 else b"other"),)
            made.produce(TOPIC, value, b"k%d" % (number % 4), partition=number % 2, headers=headers)
        handle(made, bad={0, 1, 4, 7})
        yield made


def handle(kafka: MemoryKafka, bad: set[int], group: str = "billing") -> list[int]:
    """Run the app until it is through; the records that it handled well."""
    app = perkey.App(group=group, kafka={"bootstrap.servers": kafka.bootstrap})
    done: list[int] = []

    @app.consume(
        TOPIC,
        value="json",
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.DeadLetter("{topic}.dlq"),
    )
    async def check(record: perkey.Record[Any]) -> None:
        if record.value["n"] in bad:
            raise TimeoutError(f"no answer\nfor {record.value['n']}")
        done.append(record.value["n"])

    assert app.run(until="drained").exit_code == 0
    return done


class Call:
    """What one command printed."""

    def __init__(self, kafka: MemoryKafka, capsys: Any, *words: str) -> None:
        at = ["--bootstrap-servers", kafka.bootstrap]
        capsys.readouterr()
        self.code = command(["dlq", *words, *at])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        """The output of --json."""
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def dlq(kafka, capsys):
    """Runs `perkey dlq WORDS…`."""
    return lambda *words: Call(kafka, capsys, *words)


def refused(call: Call, code: int = 2) -> str:
    """The one line of an error."""
    assert (call.code, call.err.count("\n")) == (code, 1), call.err
    assert call.err.startswith("perkey: ")
    return call.err


def test_ls_lists_letters_without_values(dlq):
    """Where from, why, how often; a value only when asked for, escaped; nothing raw gets out."""
    plain = dlq("ls", DLQ)
    assert plain.code == 0
    assert "4 letters of 4 in orders.dlq" in plain.out
    assert '"n"' not in plain.out
    with_values = dlq("ls", DLQ, "--values")
    assert '"n": 0' in with_values.out
    assert "\x1b" not in with_values.out
    rows = dlq("ls", DLQ, "--json", "--where", 'key == "k1"').json
    assert [(row["key"], row["source"], row["error_type"]) for row in rows] == [
        ("k1", "orders:1:0", "TimeoutError")
    ]
    assert (rows[0]["attempts"], rows[0]["replays"], rows[0]["brought_back"]) == (1, 0, False)


def test_show_shows_one_letter(dlq):
    """Its record's own headers' values only with --values, what failed always."""
    plain = dlq("show", f"{DLQ}:0:0")
    assert "orders:0:0" in plain.out
    assert "__dlq.errors.message = TimeoutError: no answer\\nfor 0" in plain.out
    assert "acme" not in plain.out
    full = dlq("show", f"{DLQ}:0:0", "--values").out
    assert "tenant = acme" in full
    assert '{"n": 0, "text": "\\u001b[31m"}' in full
    assert dlq("show", f"{DLQ}:0:0", "--json").json["source"] == "orders:0:0"
    assert "no letter orders.dlq:0:99" in refused(dlq("show", f"{DLQ}:0:99"))
    assert "write TOPIC, TOPIC:PARTITION or" in refused(dlq("show", "orders.dlq:0:x"))


def test_show_shows_a_topic_or_a_partition(dlq):
    """The newest letters in full, as `ls` lists them; --json is a list."""
    listed = dlq("ls", DLQ, "--json").json
    whole = dlq("show", DLQ, "--json").json
    assert [row["letter"] for row in whole] == [row["letter"] for row in listed]
    assert all(row["headers"] for row in whole)
    assert [row["letter"] for row in dlq("show", DLQ, "--limit", "1", "--json").json] == [
        listed[0]["letter"]
    ]
    first = dlq("show", f"{DLQ}:1", "--json").json
    assert {row["letter"].split(":")[1] for row in first} == {"1"}
    shown = dlq("show", DLQ, "--limit", "2")
    assert shown.out.count("__dlq.errors.message") == 2
    assert shown.out.splitlines()[-1] == f"2 of {len(listed)} letters in {DLQ}"


def test_stats_of_a_topic_without_letters_is_refused(dlq):
    """Its records would count as letters that were not brought back."""
    line = refused(dlq("stats", TOPIC))
    assert f"{TOPIC} is no dead-letter topic: none of its " in line


def test_a_replay_of_nothing_names_its_readers(dlq):
    """The same fields, whether letters go or not."""
    found = dlq("replay", DLQ, "--where", 'key == "nobody"', "--json").json
    assert (found["going"], found["left_out"]) == (0, {"not selected by --where": 4})
    assert list(found["groups"]) == [TOPIC]


def test_stats_counts_by_anything(dlq):
    """By type unless asked otherwise; how many are not back."""
    (row,) = dlq("stats", DLQ, "--json").json
    assert (row["type"], row["letters"], row["not_back"]) == ("TimeoutError", 4, 4)
    by_key = dlq("stats", DLQ, "--by", "key", "--json").json
    assert {row["key"]: row["letters"] for row in by_key} == {"k0": 2, "k1": 1, "k3": 1}
    table = dlq("stats", DLQ).out
    assert "4 not brought back" in table
    assert "TimeoutError" in table  # whole, also at 80 columns
    (row,) = dlq("stats", DLQ, "--by", "handler", "--json", "--where", 'handler == "check"').json
    assert (row["handler"], row["letters"]) == ("check", 4)
    assert dlq("stats", DLQ, "--json", "--where", 'handler == "other"').json == []


def test_a_replay_only_looks_unless_told_yes(kafka, dlq):
    """What would go where, which groups read it, which letters are stale."""
    look = dlq("replay", DLQ)
    assert look.code == 0
    assert "4 letters to send: TimeoutError 4" in look.out
    assert "to orders, which billing reads" in look.out
    assert "1 of 4 letters would run after newer" in look.out
    assert look.err == "Nothing was sent: add --yes to do it.\n"
    assert len(kafka.records(TOPIC)) == 8
    nothing = dlq("replay", DLQ, "--where", 'key == "nobody"')
    assert (nothing.err, "0 letters to send" in nothing.out) == ("", True)


def test_stale_letters_need_a_decision(kafka, dlq):
    """Without a terminal the option is named; then it is done."""
    assert "add --stale skip, --stale replay" in refused(dlq("replay", DLQ, "--yes"))
    assert dlq("replay", DLQ, "--yes", "--stale", "skip", "--json").json["sent"] == 3
    assert sorted(handle(kafka, bad=set())) == [0, 4, 7]
    again = dlq("replay", DLQ, "--yes", "--stale", "replay", "--json").json
    assert (again["brought_back"], again["sent"]) == (3, 1)
    assert dlq("replay", DLQ, "--yes", "--stale", "replay", "--json").json["sent"] == 0
    assert [row["brought_back"] for row in dlq("ls", DLQ, "--json").json] == [True] * 4


def test_a_letter_that_fails_again_counts_its_replays(kafka, dlq):
    """Up to --max-replays; its headers are the new ones alone."""
    for replays in range(1, 3):
        assert dlq("replay", DLQ, "--yes", "--stale", "replay", "--max-replays", "2").code == 0
        handle(kafka, bad={0})
        (left,) = [row for row in dlq("ls", DLQ, "--json").json if not row["brought_back"]]
        assert left["replays"] == replays
    over = dlq("replay", DLQ, "--stale", "replay", "--max-replays", "2", "--json").json
    assert (over["going"], over["left_out"]) == (
        0,
        {"replayed 2 times already (--max-replays)": 1},
    )
    names = [name for name, _ in kafka.records(DLQ)[-1].headers]
    assert len(names) == len(set(names))


def test_another_group_has_to_be_meant(kafka, dlq):
    """It would handle these records again."""
    handle(kafka, bad=set(), group="search")
    assert "which billing, search read" in dlq("replay", DLQ).out
    where = ("--where", 'key == "k3"')
    assert "group search reads the topic, too" in refused(dlq("replay", DLQ, "--yes", *where))
    handle(kafka, bad=set(), group="audit")
    said = refused(dlq("replay", DLQ, "--yes", *where))
    assert "groups audit, search read the topic, too" in said
    assert dlq("replay", DLQ, "--yes", "--other-groups", *where, "--json").json["sent"] == 1


def test_map_repairs_and_shows_what_it_does(kafka, dlq, tmp_path, monkeypatch):
    """The dry run shows three differences; None and Reject leave a letter out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repairs.py").write_text(
        "import json, perkey\n"
        "def fix(record):\n"
        "    value = json.loads(record.value)\n"
        "    if value['n'] == 1: return None\n"
        "    if value['n'] == 7: raise perkey.Reject('hopeless')\n"
        "    return perkey.Produce({**value, 'fixed': True}, headers={'by': b'fix'})\n"
        "def rekey(record): return perkey.Produce(b'x', key=b'other')\n"
        "def breaks(record): 1 / 0\n"
        "def same(record): return record\n"
        "async def waits(record): return b'x'\n"
        "def more(record, error): return b'x'\n"
    )
    look = dlq("replay", DLQ, "--map", "repairs:fix", "--stale", "replay")
    assert look.out.count('+  "fixed": true') == 2
    assert "\x1b" not in look.out
    assert "1 of the first letters: left out by --map" in look.out
    assert "1 of the first letters: rejected by --map: hopeless" in look.out
    done = dlq("replay", DLQ, "--map", "repairs:fix", "--stale", "replay", "--yes", "--json").json
    assert done["sent"] == 2
    assert done["left_out"] == {"left out by --map": 1, "rejected by --map: hopeless": 1}
    new = kafka.records(TOPIC)
    assert [json.loads(one.value).get("fixed") for one in new].count(True) == 2
    assert {dict(one.headers).get("tenant") for one in new if ("by", b"fix") in one.headers} == {
        b"acme",
        b"other",
    }
    assert "under the same key" in refused(dlq("replay", DLQ, "--map", "repairs:rekey"))
    assert "ZeroDivisionError" in refused(dlq("replay", DLQ, "--map", "repairs:breaks"))
    assert "it returned a record: return its value" in refused(
        dlq("replay", DLQ, "--map", "repairs:same")
    )
    assert "is an async function" in refused(dlq("replay", DLQ, "--map", "repairs:waits"))
    assert "def fix(record)" in refused(dlq("replay", DLQ, "--map", "repairs:more"))
    sys.modules.pop("repairs")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("replay", "nowhere"), "topic nowhere does not exist"),
        (("ls", "no/topic"), "cannot be a topic"),
        (("replay", DLQ, "--to", "nowhere"), "topic nowhere, where letter orders.dlq:0:0 belongs"),
        (("replay", DLQ, "--to", DLQ, "--yes"), "is the dead-letter topic itself"),
        (("replay", DLQ, "--to", "wide"), "has 3 partitions and orders has 2"),
        (("replay", DLQ, "--where", "error.type = 3"), "error.type ^= 3"),
        (("ls", DLQ, "--where", "kee == 3"), "did you mean key?"),
        (("replay", DLQ, "--map", "fix"), "write MODULE:FUNCTION"),
        (("replay", DLQ, "--map", "fix.py:f"), "write MODULE:FUNCTION"),
        (("replay", DLQ, "--map", "nothing_here:fix"), "module nothing_here does not exist"),
        (("replay", DLQ, "--map", "json:fix"), "json has no function fix"),
        (("replay", DLQ, "--rate", "0"), "above 0"),
        (("replay", DLQ, "--limit", "0"), "--limit"),
        (("replay", DLQ, "--stale", "maybe"), "--stale"),
        (("stats", DLQ, "--by", "colour"), "for '--by': 'colour' is not"),
        (("stats", DLQ, "--by", "day", "--listen", "127.0.0.1:0"), "--listen counts by type"),
        (("stats", DLQ, "--listen", "9109"), "write HOST:PORT"),
        (("stats", "nowhere", "--listen", "127.0.0.1:0"), "topic nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line(kafka, dlq, words, reason):
    """Each names what to write instead, and nothing is sent."""
    kafka.create_topic("wide", 3)
    assert reason in refused(dlq(*words))
    assert len(kafka.records(TOPIC)) == 8


def test_to_sends_elsewhere_with_a_progress_of_its_own(kafka, dlq):
    """A copy for a test does not count as brought back."""
    kafka.create_topic("copy", 2)
    words = ("replay", DLQ, "--stale", "replay", "--yes", "--json")
    assert dlq(*words, "--to", "copy").json["sent"] == 4
    assert dlq(*words, "--to", "copy").json["sent"] == 0
    assert [one.partition for one in kafka.records("copy")] == [0, 0, 1, 1]
    assert dlq(*words).json["sent"] == 4
    assert dlq(*words, "--to", "copy", "--group", "fresh").json["sent"] == 4


def test_strangers_in_the_topic_are_counted(kafka, dlq):
    """Records without headers of a dead letter are shown as unknown, and never sent."""
    kafka.produce(DLQ, b"what", b"?")
    assert "1 left out: without the headers" in dlq("replay", DLQ).out
    assert dlq("stats", DLQ, "--json").json[-1]["type"] == "?"


def test_letters_whose_topic_is_gone_need_another(kafka, dlq):
    """One line names the letter and --to."""
    kafka.delete_topic(TOPIC)
    assert "give --to another" in refused(dlq("replay", DLQ))
    kafka.create_topic("new", 2)
    assert dlq("replay", DLQ, "--to", "new", "--yes", "--json").json["sent"] == 4


def test_an_empty_topic_is_fine(kafka, dlq):
    """Nothing to list, nothing to send."""
    kafka.create_topic("empty.dlq")
    assert "0 letters of 0" in dlq("ls", "empty.dlq").out
    assert "0 letters sent\n" in dlq("replay", "empty.dlq", "--yes").out


@pytest.mark.parametrize("name", ["ls", "show", "stats", "replay"])
def test_every_command_has_help_with_an_example(capsys, name):
    """`--help` says what it is for and shows one call of it."""
    assert command(["dlq", name, "--help"]) == 0
    assert f"perkey dlq {name} orders.dlq" in capsys.readouterr().out
