"""Producers, transactions and the admin client: the same on both brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.clusters import LIMIT_S, Cluster, Deliveries, Joined
from tests.contract.test_contract import METADATA_CHARS_MAX

from perkey.kafka.log_reader import LogReader
from perkey.kafka.ports import (
    AdminPort,
    OutMessage,
    ProducerPort,
    ToCommit,
    TransactionEnd,
    TransactionsPort,
)
from perkey.testing.memory_cluster import murmur2

SOON = {"topic.metadata.propagation.max.ms": 300}


@pytest.fixture
def producer(cluster: Cluster) -> ProducerPort:
    """A producer, closed at the end."""
    made = cluster.connection("g", producer=SOON).producer(lambda: None, print)
    cluster.closing.append(lambda: made.close(5.0))
    return made


@pytest.fixture
def admin(cluster: Cluster) -> AdminPort:
    """An admin client, closed at the end."""
    made = cluster.connection("g").admin()
    cluster.closing.append(made.close)
    return made


# -- producer ------------------------------------------------------------------------------------------


def test_a_delivery_reports_where_the_message_is(cluster: Cluster, producer: ProducerPort) -> None:
    """Topic, partition, offset and key of each, in the order of each partition."""
    topic = cluster.topic(2)
    told = Deliveries()
    for number in range(20):
        message = OutMessage(topic, b"%d" % number, b"k", (("h", b"1"), ("h", None)), number % 2)
        producer.send(message, told.append)
    told.wait(20)
    for partition in (0, 1):
        offsets = [sent.offset for sent in told.sent if sent.partition == partition]
        assert offsets == list(range(10))
    assert {(sent.topic, sent.key) for sent in told.sent} == {(topic, b"k")}
    records = cluster.records(topic, 20)
    assert [r.value for r in records if r.partition == 1] == [b"%d" % n for n in range(1, 20, 2)]
    assert records[0].headers == (("h", b"1"), ("h", None))


def test_a_timestamp_is_kept(cluster: Cluster, producer: ProducerPort) -> None:
    """A given timestamp is stored; without one it is the time of sending."""
    topic = cluster.topic()
    told = Deliveries()
    producer.send(OutMessage(topic, b"a", None, timestamp_ms=1_700_000_000_123), told.append)
    producer.send(OutMessage(topic, b"b", None), told.append)
    told.wait(2)
    first, second = cluster.records(topic, 2)
    assert first.timestamp_ms == 1_700_000_000_123
    assert second.timestamp_ms > 1_790_000_000_000


def test_a_key_always_goes_to_the_same_partition(cluster: Cluster, producer: ProducerPort) -> None:
    """Keys choose partitions by murmur2, as Java's producers and Perkey's Spark sink have it."""
    topic = cluster.topic(5)
    told = Deliveries()
    keys = [b"", *(b"key %d" % number for number in range(50))]
    for key in keys:
        producer.send(OutMessage(topic, b"v", key), told.append)
    told.wait(len(keys))
    for sent in told.sent:
        assert sent.partition == (murmur2(sent.key or b"") & 0x7FFFFFFF) % 5


@pytest.mark.parametrize(
    ("size", "error"),
    [
        # With its batch around it: 1,048,587, 1,048,588 and 1,048,589 bytes.
        (1_048_515, None),
        (1_048_516, None),
        (1_048_517, "MSG_SIZE_TOO_LARGE"),
    ],
)
def test_a_message_that_is_too_large_is_refused(
    cluster: Cluster, producer: ProducerPort, size: int, error: str | None
) -> None:
    """The delivery names the error, and what comes after it is stored."""
    topic = cluster.topic()
    told = Deliveries()
    producer.send(OutMessage(topic, b"x" * size, None), told.append)
    producer.send(OutMessage(topic, b"after", None), told.append)
    told.wait(2)
    assert [one.error.type for one in told if one.error] == ([] if error is None else [error])
    assert (told.sent[-1].topic, len(told.sent)) == (topic, 2 if error is None else 1)


def test_a_partition_that_does_not_exist_is_refused(
    cluster: Cluster, producer: ProducerPort
) -> None:
    """The delivery says so."""
    topic = cluster.topic(2)
    told = Deliveries()
    producer.send(OutMessage(topic, b"x", None, (), 7), told.append)
    (delivery,) = told.wait(1)
    assert delivery.sent is None
    assert delivery.error is not None
    assert delivery.error.type == "_UNKNOWN_PARTITION"


def test_a_topic_that_does_not_exist_is_refused(cluster: Cluster, producer: ProducerPort) -> None:
    """The delivery says so, and nothing is created."""
    topic = f"missing-{uuid.uuid4().hex[:8]}"
    told = Deliveries()
    producer.send(OutMessage(topic, b"x", None), told.append)
    (delivery,) = told.wait(1)
    assert delivery.error is not None
    assert delivery.error.type in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")


def test_flush_waits_for_all(cluster: Cluster, producer: ProducerPort) -> None:
    """After a flush that left nothing, every delivery has been told or is about to be."""
    topic = cluster.topic()
    told = Deliveries()
    for number in range(100):
        producer.send(OutMessage(topic, b"%d" % number, None), told.append)
    assert producer.flush(LIMIT_S) == 0
    assert len(told.wait(100).sent) == 100


def test_served_is_called_after_deliveries(cluster: Cluster) -> None:
    """`on_served` follows every round, so that the runtime may look once for many."""
    topic = cluster.topic()
    told = Deliveries()
    seen: list[int] = []
    producer = cluster.connection("g").producer(lambda: seen.append(len(told)), print)
    for number in range(10):
        producer.send(OutMessage(topic, b"%d" % number, None), told.append)
    told.wait(10)
    producer.close(LIMIT_S)
    assert seen[-1] == 10


# -- transactions --------------------------------------------------------------------------------------


class Member:
    """A group member with a transactional id."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source, self.target = cluster.topic(), cluster.topic(2)
        self.group = self.source
        self.joined: Joined = cluster.join(self.group, self.source)
        self.joined.until(lambda: self.joined.assigned)
        self.id = f"{self.group}-1"
        self.port = self.open()

    def open(self) -> TransactionsPort:
        """A new producer under the same id."""
        port = self.cluster.connection(self.group).transactions(self.id)
        port.open()
        self.cluster.closing.append(port.close)
        return port

    def transact(
        self, values: list[bytes], offset: int, port: TransactionsPort | None = None, **extra: Any
    ) -> TransactionEnd:
        """Messages and an offset of the source in one transaction."""
        messages = [OutMessage(self.target, value, b"k", (), 0) for value in values]
        membership = extra.get("membership") or self.joined.consumer.membership()
        offsets = [ToCommit(self.source, 0, offset, extra.get("metadata", "map"))]
        return (port or self.port).transact(messages, offsets, membership, self.read_back)

    def read_back(self, offsets: Any) -> list[tuple[int | None, str]]:
        """What the group holds."""
        found = self.joined.consumer.find([(o.topic, o.partition) for o in offsets], LIMIT_S)
        return [(one.committed, one.metadata) for one in found.values()]

    def committed(self) -> int | None:
        """The group's offset."""
        return self.joined.consumer.find([(self.source, 0)], LIMIT_S)[self.source, 0].committed


@pytest.fixture
def member(cluster: Cluster) -> Member:
    """A member that is ready for its first transaction."""
    return Member(cluster)


def test_a_transaction_stores_outputs_and_offsets(member: Member) -> None:
    """Both are there after it, metadata included, and each message has its place."""
    end = member.transact([b"1", b"2"], 5)
    assert end.outcome == "committed"
    assert [one.sent.offset for one in end.deliveries if one and one.sent] == [0, 1]
    assert member.read_back([ToCommit(member.source, 0, 0, "")]) == [(5, "map")]
    assert [r.value for r in member.cluster.records(member.target, 2)] == [b"1", b"2"]


def test_a_refused_message_aborts_the_transaction(member: Member) -> None:
    """Nothing of it counts, the message is known, and the next transaction works."""
    end = member.transact([b"ok", b"x" * 2_000_000], 5)
    assert end.outcome == "aborted"
    assert [member.port.is_refusal(one) for one in end.deliveries] == [False, True]
    assert member.committed() is None
    assert member.transact([b"again"], 6).outcome == "committed"
    assert [r.value for r in member.cluster.records(member.target, 1)] == [b"again"]


def test_a_map_that_is_too_large_aborts_the_transaction(member: Member) -> None:
    """It is said that this was it; with a smaller one the same goes through, once."""
    end = member.transact([b"1"], 5, metadata="x" * (METADATA_CHARS_MAX + 1))
    assert (end.outcome, end.maps_too_large, end.content) == ("aborted", True, None)
    assert member.committed() is None
    end = member.transact([b"1"], 5, metadata="x" * METADATA_CHARS_MAX)
    assert (end.outcome, end.maps_too_large) == ("committed", False)
    assert [r.value for r in member.cluster.records(member.target, 1)] == [b"1"]


def test_a_newer_producer_fences_the_older(member: Member) -> None:
    """The second one under the same id works, the first one is told that it is fenced."""
    member.transact([b"1"], 1)
    newer = member.open()
    assert member.transact([b"2"], 2, port=newer).outcome == "committed"
    assert member.transact([b"3"], 3).outcome == "fenced"
    assert member.committed() == 2


def test_membership_of_before_a_rebalance_is_refused(member: Member) -> None:
    """Offsets with membership from before the member left are not stored, nor is the output."""
    old = member.joined.consumer.membership()
    member.joined.leave()
    successor = member.cluster.join(member.group, member.source)
    successor.until(lambda: successor.assigned)
    member.joined = successor
    assert member.transact([b"late"], 9, membership=old).outcome == "aborted"
    assert member.committed() is None


def test_markers_are_gaps_and_aborted_records_are_hidden(member: Member) -> None:
    """A reader gets ascending offsets with holes, and its end is past the last marker."""
    member.transact([b"1"], 1)
    member.transact([b"no", b"x" * 2_000_000], 2)
    member.transact([b"2"], 3)
    reader = member.cluster.join(f"{member.group}-reader", member.target)
    reader.until(lambda: len(reader.records) == 2 and len(reader.seen.ends) >= 2)
    assert [record.value for record in reader.records] == [b"1", b"2"]
    first, second = reader.offsets
    assert second > first + 1
    last = {partition: end for _, partition, end in reader.seen.ends}
    assert last[0] > second + 1
    ends = (
        member.cluster.connection("g").admin().ends([member.target], committed=True, timeout_s=60)
    )
    assert ends[member.target, 0] == last[0]


# -- admin ---------------------------------------------------------------------------------------------


def test_describe_knows_what_exists(cluster: Cluster, admin: AdminPort) -> None:
    """Names, partition counts and ids; what is missing is absent."""
    one, three = cluster.topic(), cluster.topic(3)
    found = admin.describe([one, three, "not-there"], LIMIT_S)
    assert {name: facts.partitions for name, facts in found.items()} == {one: 1, three: 3}
    assert len({facts.topic_id for facts in found.values()}) == 2


def test_a_topic_recreated_has_another_id(cluster: Cluster, admin: AdminPort) -> None:
    """Its name is the same, its id is not."""
    topic = cluster.topic()
    before = admin.describe([topic], LIMIT_S)[topic].topic_id
    cluster.broker.delete_topic(topic)
    assert admin.describe([topic], LIMIT_S) == {}
    cluster.broker.create_topic(topic)
    assert admin.describe([topic], LIMIT_S)[topic].topic_id != before


def test_patterns_match_from_the_start_of_a_name(cluster: Cluster, admin: AdminPort) -> None:
    """As subscriptions match: from the start, not necessarily to the end."""
    topic = cluster.topic(prefix="matching")
    assert admin.matching([f"^{topic[:-2]}"], LIMIT_S) == [topic]
    assert admin.matching([f"^{topic[3:]}", "^nothing-like-it"], LIMIT_S) == []


def test_starts_and_ends_are_those_of_the_logs(cluster: Cluster, admin: AdminPort) -> None:
    """First offset and end of every partition, empty ones too; missing topics have none."""
    topic = cluster.topic(2)
    cluster.fill(topic, 4, partition=1)
    assert admin.starts([topic], timeout_s=LIMIT_S) == {(topic, 0): 0, (topic, 1): 0}
    for committed in (False, True):
        ends = admin.ends([topic], committed=committed, timeout_s=LIMIT_S)
        assert ends == {(topic, 0): 0, (topic, 1): 4}
    assert admin.ends(["not-there"], committed=False, timeout_s=LIMIT_S) == {}


def test_group_offsets_are_what_was_committed(cluster: Cluster, admin: AdminPort) -> None:
    """None where nothing was."""
    topic = cluster.topic(2)
    member = cluster.join(topic, topic)
    member.until(lambda: len(member.assigned) == 2)
    assert admin.group_offsets(topic, [(topic, 0)], LIMIT_S) == {(topic, 0): None}
    member.commit(topic, 3, partition=1)
    found = admin.group_offsets(topic, [(topic, 0), (topic, 1)], LIMIT_S)
    assert found == {(topic, 0): None, (topic, 1): 3}


def test_creating_a_topic_twice_is_no_error(cluster: Cluster, admin: AdminPort) -> None:
    """True when it was made, False when it was there."""
    name = f"made-{uuid.uuid4().hex[:8]}"
    create: Callable[..., Any] = admin.create_topic
    assert create(name, 2, timeout_s=LIMIT_S) is True
    assert create(name, 2, timeout_s=LIMIT_S) is False
    assert admin.describe([name], LIMIT_S)[name].partitions == 2


# -- logs without a group ------------------------------------------------------------------------------


@pytest.fixture
def reader(cluster: Cluster) -> LogReader:
    """A reader of group r-..., closed at the end."""
    made = cluster.connection(f"r-{uuid.uuid4().hex[:8]}").log_reader()
    cluster.closing.append(made.close)
    return made


def test_a_reader_reads_stretches(cluster: Cluster, reader: LogReader) -> None:
    """From the first offset up to, without, the second, in each partition; again at will."""
    topic = cluster.topic(3)
    for partition in (0, 1):
        cluster.fill(topic, 20, partition=partition)
    ranges = {(topic, 0): (5, 9), (topic, 1): (0, 3), (topic, 2): (0, 0)}
    for _ in range(2):
        found = [one for records in reader.read(ranges) for one in records]
        assert sorted((one.partition, one.offset) for one in found) == [
            *((0, n) for n in range(5, 9)),
            *((1, n) for n in range(3)),
        ]
    assert list(reader.read({})) == []


def test_a_reader_passes_over_markers_and_aborted_records(
    member: Member, reader: LogReader, admin: AdminPort
) -> None:
    """A stretch that ends in them ends."""
    member.transact([b"1"], 1)
    member.transact([b"no", b"x" * 2_000_000], 2)
    ends = admin.ends([member.target], committed=True, timeout_s=LIMIT_S)
    assert ends[member.target, 0] > 1
    ranges = {where: (0, end) for where, end in ends.items()}
    found = [one for records in reader.read(ranges) for one in records]
    assert [one.value for one in found] == [b"1"]


def test_a_group_that_no_one_joins_commits_in_transactions(
    cluster: Cluster, reader: LogReader, admin: AdminPort
) -> None:
    """Its offsets and maps are those of the last transaction, which shuts out an older producer."""
    topic, group = cluster.topic(), f"g-{uuid.uuid4().hex[:8]}"
    connection = cluster.connection(group)
    commits = connection.log_reader()
    cluster.closing.append(commits.close)
    where = (topic, 0)
    assert commits.committed([where], LIMIT_S) == {where: (None, "")}
    first, second = (connection.transactions(group) for _ in range(2))
    for one in (first, second):
        cluster.closing.append(one.close)

    def transact(by: TransactionsPort, offset: int) -> TransactionEnd:
        offsets = [ToCommit(topic, 0, offset, "map")]
        message = OutMessage(topic, b"%d" % offset, b"k")
        return by.transact([message], offsets, commits.membership(), lambda _: None)

    first.open()
    assert transact(first, 1).outcome == "committed"
    assert commits.committed([where], LIMIT_S) == {where: (1, "map")}
    second.open()
    assert transact(first, 2).outcome == "fenced"
    assert transact(second, 3).outcome == "committed"
    assert commits.committed([where], LIMIT_S) == {where: (3, "map")}
    assert [one.value for one in cluster.records(topic, 2)] == [b"1", b"3"]


def test_groups_that_read_a_topic_are_known(cluster: Cluster, admin: AdminPort) -> None:
    """Members that have it assigned, and groups that have only committed offsets of it."""
    topic, other = cluster.topic(), cluster.topic()
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("member", "gone", "other")]
    joined, gone, away = (
        cluster.join(name, subject)
        for name, subject in zip(names, (topic, topic, other), strict=True)
    )
    for one in (joined, gone, away):
        one.until(lambda one=one: one.assigned)
    gone.commit(topic, 0)
    gone.leave()
    found = admin.groups_reading(topic, 1, LIMIT_S)
    assert {names[0], names[1]} <= set(found)
    assert names[2] not in found
