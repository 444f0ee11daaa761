"""Which answers of brokers the source waits out, once they have answered before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from perkey.spark.source.cluster import Cluster, is_final, may_come_back
from perkey.spark.source.options import source_options


@pytest.mark.parametrize(
    ("code", "waits"),
    [
        (KafkaError._TIMED_OUT, True),
        (KafkaError.LEADER_NOT_AVAILABLE, True),
        # Fenced while it stood still, a broker has new epochs, which the client learns in a moment.
        (KafkaError.FENCED_LEADER_EPOCH, True),
        (KafkaError.UNKNOWN_LEADER_EPOCH, True),
        # "Failed to query partition leaders: No leaders found", while a broker starts.
        (KafkaError._NOENT, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_what_passes_by_itself_is_waited_for(code, waits):
    """A query ended where its only broker had stood still for longer than its session."""
    error = KafkaException(KafkaError(code))
    assert may_come_back(error) is waits
    assert is_final(error) is not waits


def test_an_answer_that_no_one_thought_of_is_waited_out():
    """A query that runs ends at once only where waiting cannot help, such as rights."""
    assert not is_final(KafkaException(KafkaError(KafkaError.UNKNOWN)))
    assert not is_final(TimeoutError())
    assert is_final(KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED)))


@pytest.mark.parametrize("code", [KafkaError._NOENT, KafkaError.FENCED_LEADER_EPOCH])
def test_leaders_that_are_not_known_are_looked_up_again(monkeypatch, code):
    """The admin client keeps the leaders it knows: after an outage it found none for 150 s."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    cluster = Cluster(source_options(given))
    answers = iter([KafkaException(KafkaError(code)), 5])
    heard = []
    monkeypatch.setattr(cluster, "retry_pause", lambda: None)
    monkeypatch.setattr(cluster, "_hear_again", lambda: heard.append(code))

    def question():
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    cluster._answered = True
    assert (cluster._asked(question), heard) == (5, [code])


def test_a_committed_offset_that_is_not_known_is_asked_for_again(monkeypatch):
    """It comes as a partition's error without an offset: taken for none, all was read again."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    cluster = Cluster(source_options(given))
    unknown = SimpleNamespace(
        topic="t", partition=0, offset=OFFSET_INVALID,
        error=KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    )  # fmt: skip
    answers = [[unknown], [TopicPartition("t", 0, 3)]]
    consumer = SimpleNamespace(
        committed=lambda asked, timeout_s: answers.pop(0), close=lambda: None
    )
    monkeypatch.setattr(cluster, "group_consumer", lambda group: consumer)
    monkeypatch.setattr(cluster, "retry_pause", lambda: None)
    monkeypatch.setattr(cluster, "_hear_again", lambda: None)
    assert cluster.committed("g", [("t", 0)]) == {("t", 0): 3}


def test_a_client_that_knows_no_broker_is_replaced(monkeypatch):
    """A broker that is fenced names no broker, and the client that heard it asked nobody for minutes."""
    cluster = Cluster(source_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}))
    former = cluster._admin
    monkeypatch.setattr(cluster, "_timeout_s", 0.01)
    cluster._hear_again()
    assert cluster._admin is not former
