"""Reports of members to their group: what is in them, and who is silent."""

from __future__ import annotations

import json
import time

import pytest
import zstandard

import weft
from weft.cli.sources import Where
from weft.errors import ConfigError
from weft.observe import reports
from weft.observe.reports import (
    FORGOTTEN_S,
    PARTITIONS_MAX,
    SILENT_S,
    Reporter,
    key_of,
    of_group,
    packed,
    unpacked,
)


def shot(member="m1", group="g", at=1000.0, state="running", partitions=()):
    """A member's snapshot."""
    return {
        "state": state, "at": at, "app": {"group": group, "member": member},
        "partitions": list(partitions), "handlers": {}, "blockers": [], "halts": [],
    }  # fmt: skip


def test_a_report_is_the_snapshot():
    """Compressed, and the same again."""
    assert unpacked(packed(shot())) == shot()


def test_of_endless_partitions_those_with_most_left_are_told():
    """A report stays small; what is left out is counted."""
    rows = [{"partition": n, "remaining": n} for n in range(PARTITIONS_MAX + 1)]
    told = unpacked(packed(shot(partitions=rows)))
    assert told is not None
    assert len(told["partitions"]) == PARTITIONS_MAX
    assert (told["partitions"][-1]["remaining"], told["partitions_left_out"]) == (1, 1)


@pytest.mark.parametrize(
    "value",
    [b"", b"nonsense", zstandard.compress(b"[1]"), zstandard.compress(b'{"app": 7}'),
     zstandard.compress(b"{")],
)  # fmt: skip
def test_what_is_no_report_is_none(value):
    """Whoever wrote it."""
    assert unpacked(value) is None


def test_a_bomb_is_not_unpacked(monkeypatch):
    """A few bytes that would fill the memory."""
    monkeypatch.setattr(reports, "REPORT_BYTES_MAX", 1000)
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 10_000_000)
    assert unpacked(bomb) is None


def test_the_last_word_of_each_member_counts():
    """Of this group; who has left is gone, who is silent is marked, for an hour."""
    words = [
        (key_of("g", "m1"), packed(shot("m1", state="starting"))),
        (key_of("g", "m2"), packed(shot("m2", at=1000.0 - SILENT_S))),
        (key_of("g", "m3"), packed(shot("m3"))),
        (key_of("g", "m4"), packed(shot("m4", at=1000.0 - FORGOTTEN_S))),
        (key_of("other", "m1"), packed(shot("m1", "other"))),
        (key_of("g", "m1"), packed(shot("m1"))),
        (key_of("g", "m3"), None),
        (None, b"x"),
    ]
    found = of_group(words, "g", now=1000.5)
    assert [(one["app"]["member"], one["state"], one["silent_s"]) for one in found] == [
        ("m1", "running", 0.0), ("m2", "running", SILENT_S + 0.5),
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
        "weft.reports", lambda: state[0], lambda: shot(state=state[0]), lambda: producer, print
    )

    def wait_for(count):
        deadline = time.monotonic() + 20
        while len(producer.sent) < count:
            assert time.monotonic() < deadline
            time.sleep(0.005)  # between two looks

    wait_for(1)
    state[0] = "running"
    wait_for(2)
    reporter.close()
    told = [None if m.value is None else unpacked(m.value) for m in producer.sent]
    assert [one and one["state"] for one in told] == ["starting", "running", None]
    assert {m.key for m in producer.sent} == {key_of("g", "m1")}
    assert json.loads(producer.sent[0].key) == ["g", "m1"]


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, 7])
def test_topics_that_cannot_be(topic):
    """Refused where the app is made."""
    with pytest.raises(ConfigError, match="cannot be a topic"):
        weft.App(group="g", kafka={"bootstrap.servers": "localhost:9092"}, reports=topic)


def test_options_that_do_not_go_together():
    """One line each, before anybody is asked."""
    with pytest.raises(ConfigError, match="--group goes with --bootstrap-servers"):
        Where(group="g").runs()
    with pytest.raises(ConfigError, match="not with --url"):
        Where(group="g", servers="x:1", url="http://x").runs()
    with pytest.raises(ConfigError, match="is for --group"):
        Where(servers="x:1").runs()
