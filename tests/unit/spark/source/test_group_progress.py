"""A query's progress as a group's offsets: what is committed, and what happens to a failed commit."""

from __future__ import annotations

from confluent_kafka import KafkaError

from perkey.spark.source import stream
from perkey.spark.source.stream import GroupProgress


class LateGroup:
    """A consumer whose broker answers a commit when the test says so."""

    def __init__(self, on_commit):
        self.on_commit = on_commit
        self.commits, self.answers = [], []

    def commit(self, offsets, asynchronous):
        assert asynchronous
        self.commits.append({(p.topic, p.partition): p.offset for p in offsets})

    def poll(self, timeout_s):
        while self.answers:
            self.on_commit(self.answers.pop(0), [])


def test_a_commit_that_fails_late_is_repeated_while_nothing_comes(monkeypatch, caplog):
    """Its answer came after it was waited for; the query is idle, so no new offsets follow."""
    monkeypatch.setattr(stream, "ANSWER_S", 0.0)
    made = []

    class Cluster:
        def group_consumer(self, group, on_commit):
            made.append(LateGroup(on_commit))
            return made[0]

    progress = GroupProgress(Cluster(), "g")
    progress.reached({("t", 0): 2}, wait=False)
    (consumer,) = made
    progress.reached({("t", 0): 2}, wait=False)
    assert consumer.commits == [{("t", 0): 2}], "no second one before the first is answered"
    consumer.answers.append(KafkaError(KafkaError._TIMED_OUT))
    progress.reached({("t", 0): 2}, wait=False)
    assert consumer.commits == [{("t", 0): 2}] * 2
    assert "offsets of group g were not committed" in caplog.text
    consumer.answers.append(None)
    progress.reached({("t", 0): 2}, wait=False)
    progress.reached({("t", 0): 2}, wait=False)
    assert consumer.commits == [{("t", 0): 2}] * 2, "committed once it is answered"
