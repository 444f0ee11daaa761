"""Reports of members to their group: what is in them, and who is silent."""

from __future__ import annotations

import copy
import json
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.waiting import wait_for

import perkey
from perkey.cli.sources import Where
from perkey.codec.zstd import compress
from perkey.errors import ConfigError
from perkey.kafka.ports import Word
from perkey.observe import reports
from perkey.observe.overview import overview
from perkey.observe.page import _event as event
from perkey.observe.reports import (
    FORGOTTEN_S,
    MEMBERS_MAX,
    PARTITIONS_MAX,
    REPORT_BYTES_MAX,
    SILENT_S,
    BadReport,
    GroupReports,
    Reporter,
    key_of,
    packed,
    unpacked,
)
from perkey.observe.why import why
from perkey.testing import run


def shot(member="m1", group="g", at=1000.0, state="running", partitions=()):
    """A member's snapshot."""
    return {
        "state": state, "at": at, "app": {"group": group, "member": member},
        "partitions": list(partitions), "handlers": {}, "blockers": [], "halts": [],
    }  # fmt: skip


def partition(number, **more):
    """A partition's row, of which the others see this much."""
    return {"topic": "t", "partition": number, "remaining": number, **more}


def report(told, **more):
    """What anybody may write."""
    return compress(json.dumps({**told, **more}).encode())


def whole():
    """The report of a real run: something runs, something is parked, with its offset map."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    shots = []

    @app.consume("t", concurrency=1, retry=perkey.Retry(attempts=1))
    def handler(record):
        shots.append(vars(app)["_run"].snapshot(mapped=True))
        raise ValueError(record.offset)

    run(app, [(b"a", b"1"), (b"a", b"2"), *[(b"k%d" % n, b"3") for n in range(9)]])
    return max(
        shots, key=lambda shot: sum(len(shot[n]) for n in ("failures", "blockers", "parked"))
    )


def test_a_report_has_every_field_of_a_snapshot():
    """A field that a snapshot gains is added to SHAPE, or the other members do not see it."""
    sent = json.loads(json.dumps(whole()))
    assert sent["blockers"]
    assert sent["parked"]
    assert sent["failures"]
    assert unpacked(packed(sent))[0] == sent


def test_of_endless_partitions_those_with_most_left_are_reported():
    """A report stays small; what is left out is counted."""
    rows = [partition(n) for n in range(PARTITIONS_MAX + 1)]
    told, _ = unpacked(packed(shot(partitions=rows)))
    assert len(told["partitions"]) == PARTITIONS_MAX
    assert (told["partitions"][-1]["remaining"], told["partitions_left_out"]) == (1, 1)


def test_a_report_that_would_be_too_large_has_shorter_lists():
    """Whatever a member holds, its report is one that the others read."""
    rows = [partition(n, handler="h" * 2_000) for n in range(PARTITIONS_MAX)]
    failure = {"handler": "h", "type": "E", "example": {"traceback": "x\n" * 100_000}}
    told, _ = unpacked(packed({**shot(partitions=rows), "failures": [failure] * 50}))
    assert told["partitions"][0]["remaining"] == PARTITIONS_MAX - 1
    assert told["partitions_left_out"] == PARTITIONS_MAX - len(told["partitions"])


BAD = {
    "nothing": b"",
    "no zstd": b"nonsense",
    "a list": compress(b"[1]"),
    "no app": report({"partitions": []}),
    "an app that is a number": report({"app": 7}),
    "half a JSON": compress(b"{"),
    "a deep nest": compress(b"[" * 100_000),
    "NaN": compress(b'{"app": {"group": "g", "member": "m1"}, "at": NaN}'),
    "endless": compress(b'{"app": {"group": "g", "member": "m1"}, "at": 1e999}'),
    "a huge number": report(shot(), at=10**300),
    "partitions that are text": report(shot(), partitions="abc"),
    "a row that is none": report(shot(), partitions=[None]),
    "a row without a topic": report(shot(), partitions=[{"partition": 1}]),
    "a partition that is a fraction": report(shot(), partitions=[partition(0.5)]),
    "a count that is text": report(shot(), partitions=[partition(1, remaining="2")]),
    "a count that is true": report(shot(), partitions=[partition(1, lag=True)]),
    "handlers that are a list": report(shot(), handlers=[1]),
    "a handler that is none": report(shot(), handlers={"h": None}),
    "failures without an example": report(shot(), failures=[{"handler": "h", "type": "E"}]),
    "another member's": report(shot(member="m2")),
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_one_bad_report_is_one_line(value):
    """It costs itself alone: the others are shown, and it is not read a second time."""
    refused = []
    words = {
        key_of("g", "m1"): Word(value, 1000.0),
        key_of("g", "m3"): Word(packed(shot("m3")), 1000.0),
    }
    read = GroupReports("g", refused.append)
    for _ in range(2):
        assert [one["app"]["member"] for one in read.shots(words, 1000.0)] == ["m3"]
    assert len(refused) == 1
    assert refused[0].startswith('["g","m1"]: ')
    assert len(refused[0]) < 200
    assert refused[0].isprintable()


def test_a_report_of_another_version():
    """What it does not have is as good as nothing; what we do not know is left out."""
    told, _ = unpacked(report(
        {"app": {"group": "g", "member": "m1", "moon": "full"}, "new": [[{}]]},
        partitions=[{"topic": "t", "partition": 3, "new": {"a": 1}}],
        blockers=[{"topic": "t", "partition": 3, "offset": 7, "place": "on the moon"},
                  {"topic": "t", "partition": 3, "offset": 8, "place": "running"}],
        halts=[{"cause": "the moon"}, {"cause": "broker"}],
    ))  # fmt: skip
    assert "new" not in json.dumps(told)
    assert "moon" not in json.dumps(told)
    assert told["partitions"][0]["remaining"] is None
    assert [row["offset"] for row in told["blockers"]] == [8]
    assert told["halts"] == [{"cause": "broker"}]
    assert overview([told])["totals"]["partitions"] == 1


#: pieces of JSON that are rarely right, where they are put in place of what was there
PIECES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_is_in_a_report_the_page_and_why_continue(data):
    """A real report with some of its values taken out or replaced: refused, or shown."""
    told = copy.deepcopy(REAL)
    for _ in range(data.draw(st.integers(1, 3))):
        at = told
        while True:
            names = list(at) if isinstance(at, dict) else range(len(at))
            name = data.draw(st.sampled_from(names))
            if isinstance(at[name], dict | list) and at[name] and data.draw(st.booleans()):
                at = at[name]
                continue
            if data.draw(st.booleans()) and isinstance(at, dict):
                del at[name]
            else:
                at[name] = data.draw(PIECES)
            break
        if not told:
            break
    words = {key_of("g", REAL["app"]["member"]): Word(report(told), 1000.0)}
    refused: list[str] = []
    shots = GroupReports("g", refused.append).shots(words, 1000.0)
    assert len(shots) + len(refused) == 1
    seen = overview([*shots, shot("m2")])
    event("page", seen)
    for one in (*shots, {**seen, "state": "running"}):
        why(one)
        why(one, "t")


REAL = json.loads(json.dumps(whole()))


def test_without_the_check_a_bad_report_ends_the_page(monkeypatch):
    """The mutant: what the tests above rest on."""
    monkeypatch.setattr(reports, "_checked", lambda told: told)
    told, _ = unpacked(BAD["a count that is text"])
    with pytest.raises((TypeError, KeyError)):
        overview([told, shot("m2", partitions=[partition(1)])])


def padded(size):
    """A report of exactly so many bytes of JSON, most of them in a field that nobody knows."""
    text = json.dumps({**shot(), "x": ""})
    return compress(json.dumps({**shot(), "x": "x" * (size - len(text))}).encode())


@pytest.mark.parametrize(("more", "fine"), [(-1, True), (0, True), (1, False)])
def test_the_size_of_a_report_is_limited(more, fine):
    """Up to a MiB of JSON."""
    if fine:
        assert unpacked(padded(REPORT_BYTES_MAX + more))[0]["app"]["member"] == "m1"
    else:
        with pytest.raises(BadReport, match="more than 1048576 bytes"):
            unpacked(padded(REPORT_BYTES_MAX + more))


def test_a_bomb_is_not_unpacked():
    """A few KiB that would be 64 MiB of JSON: no more than the limit is made of it, in a moment."""
    bomb = compress(b"[" + b"[]," * (64 * 2**20 // 3) + b"[]]")
    tracemalloc.start()
    begun = time.process_time()
    with pytest.raises(BadReport, match="grows to more than"):
        unpacked(bomb)
    assert time.process_time() - begun < 2.0
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(("more", "shown"), [(-1, -1), (0, 0), (1, 0)])
def test_the_number_of_members_is_limited(more, shown):
    """Those that reported last are shown."""
    words = {
        key_of("g", f"m{n}"): Word(packed(shot(f"m{n}")), 1000.0 + n / 1e4)
        for n in range(MEMBERS_MAX + more)
    }
    shots = GroupReports("g", print).shots(words, 1000.0)
    assert len(shots) == MEMBERS_MAX + shown
    assert ("m0" in {one["app"]["member"] for one in shots}) is (more < 1)


@pytest.mark.parametrize(("less", "shown"), [(-1, 2), (0, 2), (1, 1)])
def test_what_a_group_may_take_is_limited(less, shown, monkeypatch):
    """Of reports that are too large together the latest are shown, and it is said."""
    words = {
        key_of("g", f"m{n}"): Word(packed(shot(f"m{n}", partitions=[partition(1)])), 1000.0 + n)
        for n in (1, 2)
    }
    size = sum(unpacked(word.value)[1] for word in words.values())
    monkeypatch.setattr(reports, "GROUP_BYTES_MAX", size - less)
    refused = []
    shots = GroupReports("g", refused.append).shots(words, 1002.0)
    assert [one["app"]["member"] for one in shots] == ["m1", "m2"][-shown:]
    assert len(refused) == 2 - shown


def test_what_does_not_print_is_escaped():
    """A name or a message in a report cannot write on the terminal."""
    told, _ = unpacked(report(shot(member="\x1b[2J\u202e\x07"), holds=["a\nb"]))
    assert told["app"]["member"] == "\\x1b[2J\\u202e\\x07"
    assert told["holds"] == ["a\\nb"]


def test_the_last_word_of_each_member_counts():
    """Of this group; who is silent is marked, for an hour. The member's own clock does not count."""
    words = {
        key_of("g", "m1"): Word(packed(shot("m1", at=5e9)), 1000.0),
        key_of("g", "m2"): Word(packed(shot("m2")), 1000.0 - SILENT_S),
        key_of("g", "m4"): Word(packed(shot("m4")), 1000.0 - FORGOTTEN_S),
        key_of("other", "m1"): Word(packed(shot("m1", "other")), 1000.0),
    }
    found = GroupReports("g", print).shots(words, 1000.5)
    assert [(one["app"]["member"], one["at"], one["silent_s"]) for one in found] == [
        ("m1", 1000.0, 0.0), ("m2", 1000.0 - SILENT_S, SILENT_S + 0.5),
    ]  # fmt: skip


class Producer:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, message, on_delivery):
        self.sent.append(message)

    def flush(self, timeout_s):
        return 0

    def close(self, timeout_s):
        self.closed = True


def test_a_member_reports_changes_and_takes_its_word_back(monkeypatch):
    """At the start, when the state changes, and a tombstone when it leaves."""
    monkeypatch.setattr(reports, "LOOK_S", 0.005)
    monkeypatch.setattr(reports, "EVERY_S", 1000.0)
    producer, state = Producer(), ["starting"]
    reporter = Reporter(
        "perkey.reports", lambda: state[0], lambda: shot(state=state[0]), lambda: producer, print
    )

    wait_for(lambda: len(producer.sent) == 1)
    state[0] = "running"
    wait_for(lambda: len(producer.sent) == 2)
    reporter.close()
    told = [None if m.value is None else unpacked(m.value)[0] for m in producer.sent]
    assert [one and one["state"] for one in told] == ["starting", "running", None]
    assert {m.key for m in producer.sent} == {key_of("g", "m1")}
    assert json.loads(producer.sent[0].key) == ["g", "m1"]


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, 7])
def test_topics_that_cannot_be(topic):
    """Refused where the app is made."""
    with pytest.raises(ConfigError, match="cannot be a topic"):
        perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"}, reports=topic)


def test_options_that_do_not_go_together():
    """One line each, before anybody is asked."""
    with pytest.raises(ConfigError, match="excludes --url"):
        Where(group="g", servers="x:1", url="http://x").runs()
    with pytest.raises(ConfigError, match="requires --group"):
        Where(servers="x:1").runs()
    with pytest.raises(ConfigError, match="-X and --config require --bootstrap-servers"):
        Where(properties={"client.id": "x"}).runs()
    with pytest.raises(ConfigError, match="--reports requires --bootstrap-servers"):
        Where(reports="mine").runs()
    with pytest.raises(ConfigError, match="--token-file requires --url"):
        Where(token_file=Path("token")).runs()
