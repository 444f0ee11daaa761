"""Replays on the in-memory broker: each letter once, in order, killed at any point."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perkey.dlq import plan as planning
from perkey.dlq.letters import LETTER, POSITION
from perkey.dlq.plan import Rules
from perkey.dlq.replay import Outcome, Replay, Wanted, group_of
from perkey.kafka.connect import connect
from perkey.testing import MemoryKafka
from perkey.testing.crash import Crashed
from perkey.where import parse

TOPIC, DLQ, PARTITIONS = "t", "t.dlq", 2
GROUP = group_of(DLQ, None)
POINTS = ("before_output", "output_stored", "before_commit", "commit_stored")


def connection(kafka: MemoryKafka) -> Any:
    given = {"bootstrap.servers": kafka.bootstrap}
    sizes = {"buffer_records": 1000, "buffer_bytes": 2**20}
    return connect(given, {}, group=GROUP, delivery="exactly_once", **sizes)


def run(kafka: MemoryKafka, **wanted: Any) -> Outcome:
    """One replay, as the command does it."""
    replay = Replay(connection(kafka), Wanted(DLQ, **wanted), GROUP)
    replay.begin()
    replay.look()
    outcome = replay.send(replay.plan())
    replay.close()
    return outcome


def write_letter(kafka: MemoryKafka, partition: int, offset: int, key: bytes | None) -> None:
    headers = (
        ("__dlq.errors.topic", TOPIC.encode()),
        ("__dlq.errors.partition", str(partition).encode()),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.message", b"Odd: x" if offset % 2 else b"Even: x"),
    )
    kafka.produce(DLQ, b"%d" % offset, key, partition=partition, headers=headers)


@st.composite
def logs(draw):
    """Per partition: keys of the source's records, and which are letters, in an order of giving up.

    Letters of one key are in order, as a lane writes them; some are there twice; gaps are between.
    """
    made = []
    for _ in range(PARTITIONS):
        keys = draw(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=12))
        failed = draw(st.sets(st.sampled_from(range(len(keys))))) if keys else set()
        order = draw(st.permutations(sorted(failed)))
        for key in set(keys):
            turns = sorted(at for at in order if keys[at] == key)
            order = [turns.pop(0) if keys[at] == key else at for at in order]
        twice = draw(st.lists(st.sampled_from(order), max_size=2)) if order else []
        made.append((keys, [*order, *twice]))
    return made


def prepared(kafka: MemoryKafka, logs: list[tuple[list[bytes | None], list[int]]]) -> None:
    for name in (TOPIC, DLQ):
        kafka.create_topic(name, PARTITIONS)
    for partition, (keys, letters) in enumerate(logs):
        for offset, key in enumerate(keys):
            kafka.produce(TOPIC, b"%d" % offset, key, partition=partition)
        for place, offset in enumerate(letters):
            write_letter(kafka, partition, offset, keys[offset])
            if place % 3 == 0:
                kafka.leave_gap(DLQ, partition)


def check(kafka: MemoryKafka, expected: list[set[int]], *, runs: int = 1) -> None:
    """Each expected record is there once more, in its own partition; of a run, in order."""
    replayed: list[list[int]] = [[] for _ in expected]
    for record in kafka.records(TOPIC):
        headers = dict(record.headers)
        if LETTER in headers:
            assert record.value == headers[POSITION]
            assert headers[LETTER].startswith(f"{DLQ}:{record.partition}:".encode())
            replayed[record.partition].append(int(record.value))
    for offsets, wanted in zip(replayed, expected, strict=True):
        assert sorted(offsets) == sorted(wanted), "once each"
        falls = sum(after < before for before, after in pairwise(offsets))
        assert falls < runs, "in order"


@settings(max_examples=60, deadline=None)
@given(
    logs(),
    st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=3),
    st.integers(1, 4),
)
def test_each_letter_goes_once_and_in_order_whatever_is_killed(monkeypatch_size, made, kills, size):
    """Killed before and behind every step of a transaction, it continues where it was."""
    monkeypatch_size(size)
    with MemoryKafka() as kafka:
        prepared(kafka, made)
        for point, nth in kills:
            kafka.crash_at(point, nth)
            with suppress(Crashed):
                run(kafka, rules=Rules("replay"))
        kafka.crash_at("before_output", 10**6)  # never: what was not reached is disarmed
        run(kafka, rules=Rules("replay"))
        assert run(kafka, rules=Rules("replay")).sent == 0
        check(kafka, [set(letters) for _, letters in made])


@settings(max_examples=30, deadline=None)
@given(logs(), st.booleans())
def test_filters_share_their_progress(monkeypatch_size, made, forgotten):
    """First the odd ones, then all: each goes once, also when the group's offsets have expired."""
    monkeypatch_size(2)
    with MemoryKafka() as kafka:
        prepared(kafka, made)
        odd = parse('error.type == "Odd"')
        run(kafka, rules=Rules("replay"), where=odd)
        check(kafka, [{one for one in letters if one % 2} for _, letters in made])
        if forgotten:
            kafka.broker.group(GROUP).committed.clear()
        run(kafka, rules=Rules("replay"))
        check(kafka, [set(letters) for _, letters in made], runs=2)


@pytest.fixture(scope="module")
def monkeypatch_size():
    """Sets how many records a transaction has."""
    from perkey.dlq import replay

    with pytest.MonkeyPatch.context() as patch:
        yield lambda size: patch.setattr(replay, "TRANSACTION_RECORDS_MAX", size)


MUTANTS = {
    "order": lambda patch: patch.setattr(planning, "_turn", lambda one: -one.source.offset),
    "twins": lambda patch: patch.setattr(planning.Progress, "has", lambda *_: False),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_check_sees_a_replay_that_is_wrong(monkeypatch, mutant):
    """Another order, and no progress: both turn it red."""
    MUTANTS[mutant](monkeypatch)
    with MemoryKafka() as kafka:
        prepared(kafka, [([b"a", b"a"], [0, 1]), ([], [])])
        run(kafka, rules=Rules("replay"))
        if mutant == "twins":
            monkeypatch.setattr(planning.Guard, "look", lambda *_: None)
            run(kafka, rules=Rules("replay"))
        with pytest.raises(AssertionError):
            check(kafka, [{0, 1}, set()], runs=2 if mutant == "twins" else 1)
