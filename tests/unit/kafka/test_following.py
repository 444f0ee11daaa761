"""The last words of a topic, without a broker: what is kept, and by whose clock."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
)

from perkey.errors import ConfigError
from perkey.kafka import following
from perkey.kafka.following import Kept, LastWords
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import client_settings


class Message:
    """One that was read."""

    def __init__(self, key, value, kind=TIMESTAMP_CREATE_TIME, at=1000.0, offset=0, error=None):
        self._key, self._value, self._stamp = key, value, (kind, int(at * 1000))
        self._offset, self._error = offset, error

    def error(self):
        return self._error

    def topic(self):
        return "t"

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def key(self):
        return self._key

    def value(self):
        return self._value

    def timestamp(self):
        return self._stamp


class Reading:
    """A consumer of one partition that is given these messages, and then is over."""

    def __init__(self, words, *messages):
        self.words, self.messages, self.assigned = words, list(messages), []

    def list_topics(self, topic, timeout):
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def get_watermark_offsets(self, partition, timeout_s):
        return self.words.marks

    def assign(self, partitions):
        self.assigned = [(one.partition, one.offset) for one in partitions]

    def consume(self, count, timeout_s):
        given, self.messages = self.messages, []
        if not given:
            self.words._over.set()
        return given


def end():
    """The end of the partition."""
    return Message(None, None, error=KafkaError(KafkaError._PARTITION_EOF))


def kept_of(monkeypatch, wanted, kept, **options):
    """A reader with these limits whose thread does nothing; its failures are in `failed`."""
    monkeypatch.setattr(LastWords, "_run", lambda self: None)
    failed = []
    made = LastWords({}, "t", wanted, failed.append, kept=kept, **options)
    made.failed, made.marks = failed, (0, 100)
    return made


@pytest.fixture
def words(monkeypatch):
    """A reader whose thread does nothing; what it could not keep is in `failed`."""
    return kept_of(monkeypatch, lambda key: key != b"other", Kept())


@pytest.fixture
def whole(monkeypatch):
    """The same of a whole topic."""
    return kept_of(monkeypatch, lambda key: True, Kept(), whole=True)


def test_the_last_word_of_each_key_is_kept(words):
    """What was taken back is gone, what is not wanted was never there."""
    for key, value in [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"other", b"4"),
                       (None, b"5")]:  # fmt: skip
        words._take(Message(key, value))
    assert {key: word.value for key, word in words.last().items()} == {b"a": b"3"}
    assert words._bytes == 1


@pytest.mark.parametrize(("more", "kept"), [(-1, True), (0, True), (1, False)])
def test_the_number_of_keys_is_limited(monkeypatch, more, kept):
    """The key that was written least lately goes, and it is said."""
    words = kept_of(monkeypatch, lambda _: True, Kept(keys_max=10))
    for number in range(10 + more):
        words._take(Message(b"%d" % number, b"x"))
    assert (b"0" in words.last()) is kept
    assert bool(words.failed) is not kept


@pytest.mark.parametrize(("more", "kept"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("kind", ["lasts", "now", "tombstone"])
def test_what_is_of_now_takes_no_room_from_what_lasts(monkeypatch, more, kept, kind):
    """Each has a limit; only what lasts is missed when it is over."""
    limits = Kept(keys_max=10, lasting_max=20)
    now = {"of_now": lambda key: key.startswith(b"now")}
    whole = kept_of(monkeypatch, lambda _: True, limits, whole=True, **now)
    counts = {"lasts": 20, "now": 0, "tombstone": 0}
    counts[kind] = more + (20 if kind == "lasts" else 10)
    for name, count in counts.items():
        for number in range(count):
            value = None if name == "tombstone" else b"x"
            whole._take(stamped(b"%s%d" % (name.encode(), number), value, number))
    last = whole.last()
    assert (kind.encode() + b"0" in last) is kept
    assert bool(whole.failed) is (kind == "lasts" and not kept)
    assert sum(key.startswith(b"lasts") for key in last) == min(20, counts["lasts"])


@pytest.mark.parametrize(("more", "kept"), [(-1, True), (0, True), (1, False)])
def test_bytes_are_limited(monkeypatch, more, kept):
    """Of one value, and of all together."""
    words = kept_of(monkeypatch, lambda _: True, Kept(value_bytes_max=10, bytes_max=20))
    words._take(Message(b"large", b"x" * (10 + more)))
    assert (b"large" in words.last()) is kept
    words._take(Message(b"second", b"x" * 10))
    words._take(Message(b"third", b"x"))
    assert sum(len(word.value) for word in words.last().values()) <= 20
    assert b"third" in words.last()


def test_a_broker_that_stamps_is_the_clock(words):
    """Whatever the clocks of the members and ours say; it goes on between two messages."""
    words._take(Message(b"a", b"1", TIMESTAMP_LOG_APPEND_TIME, 5000.0))
    assert words.last()[b"a"].at == 5000.0
    assert 5000.0 <= words.now() < 5060.0


@pytest.mark.parametrize("kind", [TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE])
def test_without_one_no_word_is_from_the_future(words, kind):
    """A writer whose clock is ahead would never be silent."""
    words._take(Message(b"a", b"1", kind, time.time() + 1e6))
    assert words.last()[b"a"].at <= words.now() < time.time() + 60


def stamped(key, value, offset):
    """A message with the broker's time."""
    return Message(key, value, TIMESTAMP_LOG_APPEND_TIME, 5000.0, offset)


def test_a_whole_topic_is_read_from_its_beginning_to_its_end(whole):
    """Then it is known what stands there; after an error it goes on where it was."""
    consumer = Reading(whole, stamped(b"a", b"1", 7))
    whole._begin(consumer)
    assert consumer.assigned == [(0, OFFSET_BEGINNING)]
    whole._follow(consumer)
    assert not whole.is_read()
    whole._over.clear()
    again = Reading(whole, stamped(b"a", b"2", 9), end())
    whole._begin(again)
    assert again.assigned == [(0, 8)]
    whole._follow(again)
    assert whole.is_read()
    assert whole.last()[b"a"].value == b"2"
    assert whole.failed == []


@pytest.mark.parametrize(("last", "is_read"), [(8, False), (9, True), (10, True)])
def test_a_whole_topic_to_which_others_write_is_read_to_its_first_end(whole, last, is_read):
    """While records keep coming, Kafka signals no end."""
    whole.marks = (3, 10)
    consumer = Reading(whole, stamped(b"a", b"1", 7), stamped(b"b", b"2", last))
    whole._begin(consumer)
    whole._follow(consumer)
    assert whole.is_read() is is_read


def test_a_whole_topic_without_records_is_read(whole):
    """New, or everything in it has expired."""
    whole.marks = (10, 10)
    whole._begin(Reading(whole))
    assert whole.is_read()


def test_in_a_whole_topic_a_record_without_a_key_is_seen(whole):
    """As an empty key, so that it is refused like any other record that is no command."""
    seen = []
    whole._wanted = lambda key: bool([seen.append(key)])
    whole._take(stamped(None, b"1", 0))
    assert (seen, whole.last()) == ([b""], {})


def test_in_a_whole_topic_a_tombstone_is_an_empty_word(whole):
    """So a key that was left out is not taken for one."""
    whole._take(stamped(b"a", b"1", 0))
    whole._take(stamped(b"a", None, 1))
    assert whole.last()[b"a"].value == b""


def test_in_a_whole_topic_a_writers_clock_does_not_count(whole):
    """How old it is cannot be known: the line names the setting."""
    whole._take(Message(b"a", b"1", TIMESTAMP_CREATE_TIME, time.time()))
    assert whole.last() == {}
    assert "message.timestamp.type=LogAppendTime" in whole.failed[0]


def test_a_close_does_not_wait_for_a_look_up(monkeypatch):
    """Without a broker it may last 10 s, and a stop of the member waits for the close."""
    asked, answered = threading.Event(), threading.Event()

    class Away(Reading):
        def list_topics(self, topic, timeout):
            asked.set()
            answered.wait(60)
            return super().list_topics(topic, timeout)

        def close(self):
            """Its thread ends."""

    monkeypatch.setattr(
        following, "Consumer", lambda _: Away(SimpleNamespace(_over=threading.Event()))
    )
    words = LastWords({}, "t", lambda _: True, lambda _: None, close_s=0.01)
    try:
        assert asked.wait(60)
        words.close()
        assert words._thread.is_alive()
    finally:
        answered.set()
    words._thread.join(60)


# -- read all at once ------------------------------------------------------------------------------


class All:
    """A consumer of a topic with two partitions, of which one gives a record and one this."""

    def __init__(self, other):
        self.given = [[Message(b"k", b"v")], [other] if other else []]

    def __call__(self, config):
        return self

    def list_topics(self, topic, timeout):
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})}
        )

    def get_watermark_offsets(self, partition, timeout_s):
        return 0, 1

    def assign(self, partitions):
        assert len(partitions) == 2

    def consume(self, count, timeout_s):
        return self.given.pop(0) if self.given else []

    def resume(self, partitions):
        """Nothing is paused."""

    pause = resume

    def unassign(self):
        """Nothing."""

    close = unassign


SETTINGS = client_settings(
    {"bootstrap.servers": "k:1"}, {}, group="g", buffer_records=1, buffer_bytes=1,
    delivery="at_least_once",
)  # fmt: skip


def test_a_topic_that_is_not_read_to_its_end_is_an_error(monkeypatch):
    """What lacks would look as if its members had never reported."""
    monkeypatch.setattr(following, "Consumer", All(None))
    monkeypatch.setattr(following, "READ_S", 0.0)
    with pytest.raises(KafkaUnavailable, match=r"Kafka at k:1: cannot read topic t: .* not read"):
        following.words_of(SETTINGS, "t")


def test_an_error_that_stays_is_the_reason_why_it_is_not_read(monkeypatch):
    """Not what was read until then."""
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setattr(following, "Consumer", All(Message(None, None, error=denied)))
    with pytest.raises(ConfigError, match=r"Kafka at k:1: cannot read topic t: .*uthoriz"):
        following.words_of(SETTINGS, "t")
