"""Letters that are not back, counted again and again: what is new is read, what is back forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from tests.property.test_dlq_replay import DLQ, GROUP, connection, prepared, run, write_letter

from perkey.dlq import not_back
from perkey.dlq.not_back import NotBack
from perkey.dlq.replay import Box
from perkey.errors import FatalError
from perkey.kafka.ports import KafkaUnavailable
from perkey.testing import MemoryKafka
from perkey.where import parse


@pytest.fixture
def kafka():
    """Letters of the offsets 0 to 4 (three are of type Even, two of type Odd) and 0."""
    with MemoryKafka() as made:
        prepared(made, [([b"a"] * 5, [0, 1, 2, 3, 4]), ([b"a"], [0])])
        yield made


def counted(kafka: MemoryKafka, **options) -> tuple[NotBack, list[int]]:
    """The counts, and the offsets that were read for them."""
    box = Box(connection(kafka), DLQ)
    seen: list[int] = []
    reader: Any = box.reader
    read = reader.read

    def noted(ranges):
        for records in read(ranges):
            seen.extend(one.offset for one in records)
            yield records

    reader.read = noted
    return NotBack(box, GROUP, **options), seen


def test_letters_are_counted_by_type_until_they_are_back(kafka):
    """All of them before the first replay; then those that did not go; new ones are added."""
    counts, _ = counted(kafka)
    assert counts.measure() == {"other": 0, "Even": 4, "Odd": 2}
    run(kafka, where=parse('error.type == "Odd"'))
    assert counts.measure() == {"other": 0, "Even": 4, "Odd": 0}
    write_letter(kafka, 1, 7, b"a")
    assert counts.measure()["Odd"] == 1


def test_each_letter_is_read_once(kafka):
    """A look reads what is new since the one before."""
    counts, seen = counted(kafka)
    counts.measure()
    assert len(seen) == 6
    counts.measure()
    assert len(seen) == 6
    write_letter(kafka, 0, 9, b"a")
    counts.measure()
    assert len(seen) == 7


@pytest.mark.parametrize(("limit", "other"), [(5, 1), (6, 0), (7, 0)])
def test_letters_beyond_the_limit_are_counted_as_other(kafka, limit, other):
    """By their offsets, gaps included; they are read when others went back."""
    kafka.create_topic("plain.dlq")
    for _ in range(6):
        kafka.produce("plain.dlq", b"x", b"k")
    box = Box(connection(kafka), "plain.dlq")
    counts = NotBack(box, GROUP, letters_max=limit)
    assert counts.measure() == {"other": other, "?": 6 - other}
    assert counts.measure() == {"other": other, "?": 6 - other}
    kafka.commit(GROUP, "plain.dlq", 0, 4)
    assert counts.measure() == {"other": 0, "?": 2}


def typed(kafka: MemoryKafka, *names: bytes) -> None:
    """A letter of each type."""
    for name in names:
        kafka.produce(DLQ, b"x", b"k", partition=0, headers=(
            ("__dlq.errors.topic", b"t"), ("__dlq.errors.partition", b"0"),
            ("__dlq.errors.offset", b"1"), ("__dlq.errors.message", name + b": x"),
        ))  # fmt: skip


@pytest.mark.parametrize(("more", "other"), [(47, 0), (48, 0), (49, 1)])
def test_the_number_of_types_is_bounded(kafka, more, other):
    """At 50 the next one is counted as other; a type without letters makes room for it."""
    assert not_back.TYPES_MAX == 50
    counts, _ = counted(kafka)
    counts.measure()
    typed(kafka, *(b"T%d" % number for number in range(more)))
    found = counts.measure()
    assert (found["other"], len(found) - 1) == (other, min(more + 2, 50))
    run(kafka, where=parse('error.type == "Odd"'))
    assert counts.measure()["Odd"] == 0
    typed(kafka, b"Late")
    found = counts.measure()
    assert found["Late"] == 1
    assert len(found) <= 51


def test_hostile_types_are_cut_and_safe(kafka):
    """Bytes that are no text, and a name of megabytes: what comes out is short, and is text."""
    counts, _ = counted(kafka)
    typed(kafka, b"x" * 100_000)
    assert counts.measure()["x" * 100] == 1


def test_a_condition_chooses_letters(kafka):
    """Of others nothing is kept."""
    counts, _ = counted(kafka, where=parse("offset >= 3"))
    assert counts.measure() == {"other": 0, "Odd": 1, "Even": 1}


def test_what_retention_takes_is_not_counted(kafka):
    """Nor is what a topic had before it was recreated."""
    counts, _ = counted(kafka)
    counts.measure()
    kafka.delete_before(DLQ, 0, 4)
    assert sum(counts.measure().values()) == 3
    kafka.delete_topic(DLQ)
    kafka.create_topic(DLQ, 2)
    write_letter(kafka, 0, 1, b"a")
    assert {name: count for name, count in counts.measure().items() if count} == {"Odd": 1}


def test_brokers_that_are_away_are_the_problem(kafka, monkeypatch):
    """One line for /letters; the counts stay for the next look."""
    counts, _ = counted(kafka)
    counts.measure()

    def away(*_):
        raise KafkaUnavailable("no broker answers")

    with monkeypatch.context() as patch:
        patch.setattr(counts._box.reader, "committed", away)
        with pytest.raises(FatalError, match="no broker answers"):
            counts.measure()
    assert counts.measure()["Even"] == 4
