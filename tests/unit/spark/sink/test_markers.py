"""The markers of `transactional=true` as offsets with metadata, and what a row is recognised by."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, TopicPartition

from perkey.spark.sink import plain
from perkey.spark.sink.columns import Rows
from perkey.spark.sink.options import sink_options
from perkey.spark.sink.protocol import Own, Shared, SinkError
from perkey.spark.sink.transactions import digests_of, marks_of, own_of, shared_of


def test_the_shared_marker_is_read_as_it_was_written():
    """Also with text behind it, which confluent-kafka may give."""
    spans = {("t", 0): (5, 9), ("t", 1): (0, 3), ("u", 0): (7, 7)}
    shared = Shared(3, "s3", ("s1", "s2"), True, 2, 8, 41, 42, 100, False, "why", spans)
    marks = [
        TopicPartition(m.topic, m.partition, m.offset, metadata=f"{m.metadata}{{garbage")
        for m in marks_of(shared, "t")
    ]
    assert shared_of(marks, "t") == (shared, set(spans))


def test_a_marker_read_without_its_spans_still_names_the_topics():
    """What most tasks need is in one offset."""
    marks = marks_of(Shared(1, "s", spans={("t", 0): (5, 9), ("u", 0): (7, 7)}), "t")
    shared, needed = shared_of([m for m in marks if m.topic == "t"], "t")
    assert shared.topics == {"t", "u"}
    assert needed == {("t", 0), ("u", 0)}


def test_too_many_topics_for_a_marker_are_refused():
    """Brokers take 4,096 characters."""
    with pytest.raises(SinkError, match="writes to 200 topics, more than its marker can hold"):
        marks_of(Shared(spans={(f"a-rather-long-name-{n}", 0): (0, 0) for n in range(200)}), "t")


def test_a_task_that_has_committed_nothing_has_no_marker():
    """Kafka has no offset for its group."""
    assert own_of(TopicPartition("t", 0, -1001)) == Own()


@pytest.mark.parametrize(
    "other",
    [
        ("u", b"v", b"k", -1, None),
        ("t", None, b"k", -1, None),
        ("t", b"", b"k", -1, None),
        ("t", b"v", None, -1, None),
        ("t", b"k", b"v", -1, None),
        ("t", b"v", b"k", 0, None),
        ("t", b"v", b"k", -1, [("a", None)]),
    ],
)
def test_rows_that_differ_in_anything_are_reported_apart(other):
    """Topic, value, key, chosen partition, headers; null and empty are two things."""
    (one,) = _digests(("t", b"v", b"k", -1, None))
    (two,) = _digests(other)
    assert one != two
    assert _digests(("t", b"v", b"k", -1, [])) == [one], "no headers are no headers"


def _digests(row):
    topic, value, key, partition, headers = row
    return digests_of(Rows([topic], [value], [key], [partition], [headers]))


class Metadata:
    """A producer that knows these topics."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.asked = known, 0

    def list_topics(self, topic, _timeout_s):
        self.asked += 1
        error = None if topic in self.known else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = type("Topic", (), {"error": error})
        return type("Metadata", (), {"topics": {topic: found}})


def test_a_missing_topic_is_one_line_before_anything_starts(monkeypatch):
    """And one that exists is asked for once in a process."""
    metadata = Metadata({"here"})
    monkeypatch.setattr(plain, "Producer", lambda _config: metadata)
    monkeypatch.setattr(plain, "TOPIC_WAIT_S", 0.0)
    kafka = {"kafka.bootstrap.servers": "x:1"}
    with pytest.raises(plain.ConfigError, match="topic 'nope' does not exist at x:1: create it"):
        plain.check_topic(sink_options({**kafka, "topic": "nope"}))
    before = metadata.asked
    for _ in range(3):
        plain.check_topic(sink_options({**kafka, "topic": "here"}))
    assert metadata.asked == before + 1
