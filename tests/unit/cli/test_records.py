"""`perkey key`, `perkey record`, `perkey parked release|skip|export`: on runs by their sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.cli.test_control import BECAUSE, Member, called, members
from tests.unit.cli.test_parked import GROUP, TOPIC, kafka
from tests.unit.observe.test_local import own_folder

from perkey.codec import Remembered, encode_fitting, with_rider
from perkey.observe.orders import RECORDS_MAX, Answer

__all__ = ["kafka", "members", "own_folder"]  # fixtures


class Owner(Member):
    """A run that owns these partitions of every topic."""

    def __init__(self, name: str, *partitions: int) -> None:
        super().__init__(name, GROUP)
        self.owns = partitions

    def control(self, order: Any) -> list[Answer]:
        self.orders.append(order)
        wanted = order.records or [(0, 17)]
        rows = [
            {
                "topic": order.topic, "partition": one[0], "offset": one[1], "detail": "",
                "outcome": "released" if one[0] in self.owns else "not here",
            }
            for one in wanted
        ]  # fmt: skip
        here = any(one["outcome"] == "released" for one in rows)
        return [Answer(self.name, "done" if here else "not here", "as asked", None, rows)]


def test_a_key_is_held_by_whoever_has_it(members, capsys):
    """One owner is enough; where no member has it the exit code is 1."""
    one, two = members(Owner("m1", 0), Owner("m2"))
    words = ("key", "hold", "--topic", TOPIC, "--key", "cust-17", "--for", "2h", *BECAUSE)
    code, _, err = called(capsys, *words)
    assert (code, err) == (0, "")
    order = one.orders[0]
    assert (order.action, order.topic, order.key, order.for_s) == ("hold", TOPIC, "cust-17", 7200.0)
    one.owns = ()
    code, _, err = called(capsys, *words)
    assert code == 1
    assert err == (
        "perkey: no member that was reached has key cust-17: is its owner on another machine?\n"
    )
    assert len(two.orders) == 2


def test_keys_are_selected_by_a_condition(members, capsys):
    """In place of a key; where no member has such a record the exit code is 1."""
    (one,) = members(Owner("m1", 0))
    words = ("key", "retry", "--topic", TOPIC, "--where", 'error.type == "Timeout"', *BECAUSE)
    assert called(capsys, *words)[0] == 0
    assert (one.orders[0].key, one.orders[0].where) == (None, 'error.type == "Timeout"')
    one.owns = ()
    code, _, err = called(capsys, *words)
    assert (code, "has a record where error.type ==" in err) == (1, True)


def test_records_of_several_topics_are_one_command_each(members, capsys):
    """Each record once; what no member has is named."""
    (one,) = members(Owner("m1", 0))
    code, _, err = called(
        capsys, "record", "skip", "a:0:5", "b:0:1", "a:1:7", "a:0:5", *BECAUSE
    )  # fmt: skip
    assert code == 1
    assert "no member that was reached has a:1:7:" in err
    assert [(o.topic, list(o.records)) for o in one.orders] == [
        ("a", [(0, 5), (1, 7)]), ("b", [(0, 1)]),
    ]  # fmt: skip


def test_parked_records_are_released(kafka, members, capsys):
    """Those that the group's commits remember, and that the condition means."""
    (one,) = members(Owner("m1", 0))
    at = ("--group", GROUP, "--bootstrap-servers", kafka.bootstrap, *BECAUSE)
    code, _, err = called(capsys, "parked", "release", *at)
    assert (code, err) == (0, "")
    assert list(one.orders[-1].records) == [(0, 5), (0, 8)]
    code, _, err = called(capsys, "parked", "release", "--where", 'state == "held"', *at)
    assert (code, list(one.orders[-1].records)) == (0, [(0, 8)])
    code, _, _ = called(capsys, "parked", "skip", f"{TOPIC}:0:5", *at)
    assert (one.orders[-1].action, list(one.orders[-1].records)) == ("skip", [(0, 5)])
    before = len(one.orders)
    code, out, _ = called(capsys, "parked", "release", "--where", 'key == "none"', *at)
    assert (code, out) == (0, "0 records: nothing to do\n")
    code, _, err = called(capsys, "parked", "skip", *at)
    assert (code, "it cannot be undone" in err) == (2, True)
    assert len(one.orders) == before


def test_what_a_commit_has_no_room_for_is_asked_of_the_members(kafka, members, capsys):
    """By a condition, after those that it names; a condition that no member knows is an exit 1."""
    text, _ = encode_fitting(0, 3_999, range(0, 4_000, 2))
    entries = [Remembered(one, 5, parked=True, error=7) for one in range(0, 4_000, 2)]
    kafka.create_topic("many")
    for number in range(4_000):
        kafka.produce("many", b"v", b"k%d" % number, partition=0)
    kafka.commit(GROUP, "many", 0, 0, with_rider(0, text, entries)[0])
    (one,) = members(Owner("m1", 0))
    at = ("many", "--group", GROUP, "--bootstrap-servers", kafka.bootstrap, *BECAUSE)
    assert called(capsys, "parked", "release", *at)[::2] == (0, "")
    named, rest = one.orders
    assert (len(named.records) > 100, named.where) == (True, None)
    assert rest.where == '(state == "parked" or state == "held")'
    one.orders.clear()
    assert called(capsys, "parked", "release", "--dry-run", "--where", "offset < 9", *at)[0] == 0
    assert [order.where for order in one.orders] == [f"{rest.where} and (offset < 9)"]
    where = ("--where", 'error.hash == "00000007"')
    code, _, err = called(capsys, "parked", "release", *where, *at)
    assert (code, err.count("\n")) == (1, 1)
    assert "perkey: many[0]: its commit has no room for more" in err
    assert f"perkey parked ls many --group {GROUP} lists the rest" in err
    assert called(capsys, "parked", "skip", *at)[0] == 1


def test_more_than_a_commit_names_is_skipped_by_one_command(kafka, members, capsys):
    """What is skipped makes room: the commit then names the next ones, until none remains."""
    left = list(range(0, 4_000, 2))
    kafka.create_topic("many")
    for number in range(4_000):
        kafka.produce("many", b"v", b"k%d" % number, partition=0)

    def commit():
        text, _ = encode_fitting(0, 3_999, left)
        entries = [Remembered(one, 5, parked=True, error=7) for one in left]
        kafka.commit(GROUP, "many", 0, 0, with_rider(0, text, entries)[0])

    class Commits(Owner):
        """Skips what it is given, and commits that."""

        def control(self, order: Any) -> list[Answer]:
            for _, offset in order.records:
                left.remove(offset)
            commit()
            return super().control(order)

    commit()
    (one,) = members(Commits("m1", 0))
    at = ("many", "--group", GROUP, "--bootstrap-servers", kafka.bootstrap, *BECAUSE)
    code, _, err = called(capsys, "parked", "skip", *at)
    assert (code, err, left) == (0, "", [])
    assert len(one.orders) > 1


class Keyed(Owner):
    """Of the key that is meant its first record is 0:3; of another one it runs."""

    def control(self, order: Any) -> list[Answer]:
        if not order.dry_run:
            return super().control(order)
        self.orders.append(order)
        rows = [
            {"topic": order.topic, "partition": 0, "offset": at, "outcome": outcome, "detail": "d"}
            for at, outcome in ((3, "skipped"), (4, "refused"))
        ]
        return [Answer(self.name, "refused", "as asked", None, rows)]


def test_the_first_record_of_a_key_is_skipped_by_its_offset(members, capsys):
    """So two owners do not skip two; what is refused is one line and an exit 1."""
    (one,) = members(Keyed("m1", 0))
    words = ("key", "skip", "--topic", TOPIC, "--where", "attempts > 3", *BECAUSE)
    code, _, err = called(capsys, *words)
    assert [(o.dry_run, o.where, list(o.records)) for o in one.orders] == [
        (True, "attempts > 3", []), (False, None, [(0, 3)]),
    ]  # fmt: skip
    assert (code, err) == (1, f"perkey: {TOPIC}:0:4 refused: d\n")


@pytest.mark.parametrize(("words", "count"), [((), 0), (("a:0:5",), 1), (("a:0:5", "b:0:1"), 2)])
def test_json_is_one_document(kafka, members, capsys, words, count):
    """Also of several commands, and of none."""
    members(Owner("m1", 0))
    given = ("record", "retry", *words)
    if not words:
        at = ("--group", GROUP, "--bootstrap-servers", kafka.bootstrap)
        given = ("parked", "release", "--where", 'key == "none"', *at)
    code, out, _ = called(capsys, *given, "--json", *BECAUSE)
    found = json.loads(out)
    assert (code, len(found["answers"]), found["dry_run"]) == (0, count, False)
    assert len({one["id"] for one in found["answers"]}) == count


@pytest.mark.parametrize("count", [RECORDS_MAX - 1, RECORDS_MAX, RECORDS_MAX + 1])
def test_many_records_go_in_pieces(members, capsys, count):
    """Of at most a thousand."""
    (one,) = members(Owner("m1", 0))
    words = [f"a:0:{offset}" for offset in range(count)]
    assert called(capsys, "record", "retry", *words, *BECAUSE)[0] == 0
    sizes = [len(order.records) for order in one.orders]
    assert (sum(sizes), max(sizes)) == (count, min(count, RECORDS_MAX))


def test_exports_are_lines_of_json(kafka, capsys):
    """Text as it is, other bytes as base64; a record that is not there is one line."""
    at = ("--group", GROUP, "--bootstrap-servers", kafka.bootstrap)
    code, out, err = called(capsys, "parked", "export", *at)
    assert (code, err) == (0, "")
    first, second = map(json.loads, out.splitlines())
    assert (first["offset"], first["key"], first["value"], first["attempts"]) == (5, "k1", "v5", 5)
    assert first["headers"] == [{"name": "tenant", "value": "acme"}]
    assert (second["offset"], second["held"]) == (8, True)
    kafka.produce(TOPIC, b"\xff", None, partition=1)
    code, out, err = called(capsys, "record", "export", f"{TOPIC}:1:12", *at)
    assert code == 0, err
    line = json.loads(out)
    assert (line["key"], line["value_base64"]) == (None, "/w==")
    code, _, err = called(capsys, "record", "export", f"{TOPIC}:1:99", *at)
    assert (code, f"{TOPIC}:1:99 is not in its topic (any more)" in err) == (2, True)
    code, _, err = called(capsys, "record", "export", f"{TOPIC}:7:0", *at)
    assert (code, "has no partition 7" in err) == (2, True)
    code, out, _ = called(capsys, "key", "export", "--topic", TOPIC, "--key", "k0", *at)
    assert [json.loads(one)["offset"] for one in out.splitlines()] == [8]
    code, out, err = called(capsys, "key", "export", "--topic", TOPIC, "--key", "none", *at)
    assert (code, out) == (0, "")
    assert err == f"perkey: no such record is parked or held in group {GROUP}\n"
    kafka.delete_before(TOPIC, 0, 6)
    code, out, err = called(capsys, "parked", "export", *at)
    assert (code, len(out.splitlines())) == (0, 1)
    assert err == "perkey: 1 of 2 records are in their topic no more: not printed\n"


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (("parked", "export"), [5, 8]),
        (("key", "export", "--topic", TOPIC, "--key", "k0"), [8]),
        (("record", "export", f"{TOPIC}:0:5"), [5]),
    ],
)
def test_an_export_takes_the_options_of_its_family(kafka, capsys, words, offsets):
    """--json is one list, --dry-run the places alone, --reason a line with the count."""
    at = ("--group", GROUP, "--bootstrap-servers", kafka.bootstrap)
    code, out, err = called(capsys, *words, *at, "--json", *BECAUSE)
    count = "1 record" if len(offsets) == 1 else f"{len(offsets)} records"
    assert (code, err) == (0, f"perkey: {count}: {BECAUSE[1]}\n")
    assert [(row["offset"], row["value"]) for row in json.loads(out)] == [
        (offset, f"v{offset}") for offset in offsets
    ]
    code, out, err = called(capsys, *words, *at, "--dry-run")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"topic": TOPIC, "partition": 0, "offset": offset} for offset in offsets
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("record", "skip", "orders:1", *BECAUSE), "write TOPIC:PARTITION:OFFSET"),
        (("record", "retry", *BECAUSE), "Missing argument"),
        (("key", "hold", "--key", "k", *BECAUSE), "Missing option '--topic'"),
        (("key", "hold", "--topic", "t", "--key", "k"), "Missing option '--reason'"),
        (("key", "hold", "--topic", "t", *BECAUSE), "give --key KEY, or --where CONDITION"),
        (("key", "hold", "--topic", "t", "--where", "key", *BECAUSE), "expected"),
        (("key", "export", "--topic", "t", "--group", "g"), "give --key KEY, or --where CONDITION"),
        (("key", "hold", "--topic", "t", "--key", "k" * 17_000, *BECAUSE), "at most 16,384"),
    ],
)
def test_bad_input_is_one_line(members, capsys, words, reason):
    """Exit 2, and no member is asked."""
    (one,) = members(Owner("m1"))
    code, out, err = called(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert not one.orders


@pytest.mark.parametrize(
    ("app", "name"),
    [("key", one) for one in ("hold", "release", "retry", "skip", "export")]
    + [("record", one) for one in ("retry", "skip", "export")]
    + [("parked", one) for one in ("release", "skip", "export")],
)
def test_every_command_has_help_with_an_example(capsys, app, name):
    """`--help` shows one call."""
    code, out, _ = called(capsys, app, name, "--help")
    assert code == 0
    assert f"Example: perkey {app} {name}" in out
