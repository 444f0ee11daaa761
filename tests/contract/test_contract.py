"""What the runtime relies on in a consumer: the same on the in-memory broker and on the real one."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.contract.clusters import ANSWER_S, LIMIT_S, PROTOCOLS, Cluster, Joined

from perkey.kafka.ports import KafkaUnavailable, ToCommit

METADATA_CHARS_MAX = 4096


def together(a: Joined, b: Joined, count: int) -> bool:
    """Both hold something, and all of it is held once."""
    return bool(a.assigned and b.assigned) and len(a.assigned) + len(b.assigned) == count


# -- assignment ----------------------------------------------------------------------------------------


def test_assigned_names_every_partition(cluster: Cluster) -> None:
    """The first member is told of all partitions, on the thread that polls."""
    topic = cluster.topic(3)
    member = cluster.join(topic, topic)
    member.until(lambda: len(member.assigned) == 3)
    assert member.assigned == {(topic, 0), (topic, 1), (topic, 2)}
    assert member.threads == {threading.get_ident()}


def test_fetching_begins_where_the_callback_says(cluster: Cluster) -> None:
    """The answer of `on_assigned` is where each partition is fetched from."""
    topic = cluster.topic()
    cluster.fill(topic, 10)
    member = cluster.join(topic, topic)
    member.starts[topic, 0] = 7
    member.until(lambda: member.seen.ends)
    assert member.offsets == [7, 8, 9]


def test_a_partition_left_out_waits_for_begin(cluster: Cluster) -> None:
    """Without a start nothing is fetched; `begin` starts it, at its offset."""
    topic = cluster.topic(2)
    cluster.fill(topic, 5, partition=0)
    cluster.fill(topic, 5, partition=1)
    member = cluster.join(topic, topic)
    member.starts[topic, 1] = None
    member.until(lambda: len(member.records) == 5)
    member.quiet()
    assert {record.partition for record in member.records} == {0}
    member.consumer.begin((topic, 1), 2)
    member.until(lambda: len(member.records) == 8)
    assert member.offsets[5:] == [2, 3, 4]


def test_begin_moves_a_partition_that_is_being_fetched(cluster: Cluster) -> None:
    """`begin` on a running partition goes back, and the records come again."""
    topic = cluster.topic()
    cluster.fill(topic, 4)
    member = cluster.join(topic, topic)
    member.until(lambda: len(member.records) == 4)
    member.consumer.begin((topic, 0), 1)
    member.until(lambda: len(member.records) == 7)
    assert member.offsets == [0, 1, 2, 3, 1, 2, 3]


def test_a_pattern_takes_topics_that_come_later(cluster: Cluster) -> None:
    """A subscription that starts with ^ follows the topics that match it."""
    first = cluster.topic(prefix="pattern")
    prefix = first[:-4]
    member = cluster.join(first, f"^{prefix}.*")
    member.until(lambda: member.assigned)
    second = f"{prefix}-later"
    cluster.broker.create_topic(second)
    member.until(lambda: (second, 0) in member.assigned)
    assert member.assigned == {(first, 0), (second, 0)}


def test_partitions_added_while_running_are_assigned(cluster: Cluster) -> None:
    """More partitions of a topic reach its member."""
    topic = cluster.topic()
    member = cluster.join(topic, topic, **underscored(PROTOCOLS["cooperative"]))
    member.until(lambda: member.assigned)
    cluster.add_partitions(topic, 3)
    member.until(lambda: len(member.assigned) == 3)


def test_a_deleted_topic_is_taken_away(cluster: Cluster) -> None:
    """The partitions of a topic that is deleted are revoked or lost, and others go on."""
    kept, gone = cluster.topic(), cluster.topic()
    member = cluster.join(kept, [kept, gone], **underscored(PROTOCOLS["cooperative"]))
    member.until(lambda: len(member.assigned) == 2)
    cluster.broker.delete_topic(gone)
    member.until(lambda: member.assigned == {(kept, 0)})
    cluster.fill(kept, 1)
    member.until(lambda: member.records)


# -- rebalancing -----------------------------------------------------------------------------------------


def underscored(kafka: dict[str, Any]) -> dict[str, Any]:
    """Property names as keyword arguments."""
    return {name.replace(".", "_"): value for name, value in kafka.items()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_move_with_what_was_committed_in_the_callback(
    cluster: Cluster, protocol: str
) -> None:
    """What `commit_and_wait` stores inside `on_revoked` is what the next owner finds."""
    topic = cluster.topic(4)
    a = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    a.until(lambda: len(a.assigned) == 4)
    answers = []

    def commit(partitions):
        offsets = [ToCommit(t, p, 40 + p, f"map {p}") for t, p in partitions]
        answers.extend(a.consumer.commit_and_wait(offsets, ANSWER_S))

    a.on_revoke = commit
    for number in range(4):
        cluster.fill(topic, 50, partition=number)
    b = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    a.until(lambda: together(a, b, 4), [b])
    moved = b.assigned
    assert moved and moved <= {(one.topic, one.partition) for one in answers}
    assert {one.verdict for one in answers} == {"stored"}
    found = b.consumer.find(sorted(moved), ANSWER_S)
    assert {where: one.committed for where, one in found.items()} == {
        (t, p): 40 + p for t, p in moved
    }
    assert {one.metadata for one in found.values()} == {f"map {p}" for _, p in moved}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_leaving_gives_everything_back(cluster: Cluster, protocol: str) -> None:
    """`leave` revokes what is held, commits count in there, and the others get it at once."""
    topic = cluster.topic(2)
    a = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    a.until(lambda: len(a.assigned) == 2)
    b = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    a.until(lambda: together(a, b, 2), [b])
    held = sorted(a.assigned)
    stored = []

    def commit(partitions):
        offsets = [ToCommit(t, p, 7, "") for t, p in partitions]
        stored.extend(a.consumer.commit_and_wait(offsets, ANSWER_S))

    a.on_revoke = commit
    a.leave(ANSWER_S)
    assert a.told[-1] == ("revoked", tuple(held))
    assert [one.verdict for one in stored] == ["stored"] * len(held)
    b.until(lambda: len(b.assigned) == 2)
    assert all(one.committed == 7 for one in b.consumer.find(held, ANSWER_S).values())


def test_a_member_that_was_thrown_out_is_reported_lost(cluster: Cluster) -> None:
    """After its session is over it hears `on_lost`, not `on_revoked`, and joins again."""
    topic = cluster.topic()
    limits = {"session_timeout_ms": 600, "max_poll_interval_ms": 600, "heartbeat_interval_ms": 100}
    member = cluster.join(topic, topic, **limits)
    member.until(lambda: member.assigned)
    if cluster.in_memory:
        cluster.broker.expire_members(topic)
    else:
        threading.Event().wait(1.5)  # no poll for longer than max.poll.interval.ms
    member.until(lambda: len(member.told) >= 3)
    assert [what for what, _ in member.told[:3]] == ["assigned", "lost", "assigned"]


def test_answers_of_earlier_commits_come_inside_a_callback(cluster: Cluster) -> None:
    """`commit_answers` brings them where `poll` cannot be called."""
    topic = cluster.topic()
    member = cluster.join(topic, topic)
    member.until(lambda: member.assigned)
    answers: list[Any] = []
    token = 0

    def wait(_partitions):
        deadline = time.monotonic() + LIMIT_S
        while not answers and time.monotonic() < deadline:
            answers.extend(member.consumer.commit_answers(0.05))

    member.on_revoke = wait
    token = member.consumer.commit([ToCommit(topic, 0, 0, "")])
    member.leave(ANSWER_S)
    assert [(one.token, one.verdict) for one in answers] == [(token, "stored")]


# -- records -------------------------------------------------------------------------------------------


def test_records_come_whole_and_ascending(cluster: Cluster) -> None:
    """Key, value, headers, timestamp and size of each record, ascending in each batch."""
    topic = cluster.topic(2)
    cluster.fill(topic, 300, partition=0)
    cluster.fill(topic, 300, partition=1)
    headers = (("a", b"1"), ("a", None), ("b", b""))
    cluster.produce(topic, None, b"k", partition=1, headers=headers, timestamp_ms=1_700_000_000_123)
    member = cluster.join(topic, topic)
    member.until(lambda: len(member.records) == 601)
    for batch in member.seen.batches:
        offsets = [record.offset for record in batch.records]
        assert offsets == sorted(set(offsets))
        assert {(r.topic, r.partition) for r in batch.records} == {(batch.topic, batch.partition)}
        assert len(batch.sizes) == len(batch.records)
    last = next(r for r in member.records if (r.partition, r.offset) == (1, 300))
    assert (last.key, last.value, last.headers) == (b"k", None, headers)
    assert last.timestamp_ms == 1_700_000_000_123
    sizes = [size for batch in member.seen.batches for size in batch.sizes]
    ours = member.records.index(last)
    assert sizes[ours] == len(b"k") + len("a1") + len("a") + len("b")


def test_the_end_is_reported_once_and_again_after_more(cluster: Cluster) -> None:
    """Reading to the end is told with the position; again when there was more to read."""
    topic = cluster.topic()
    cluster.fill(topic, 3)
    member = cluster.join(topic, topic)
    member.until(lambda: member.seen.ends)
    member.quiet()
    assert member.seen.ends == [(topic, 0, 3)]
    cluster.fill(topic, 2)
    member.until(lambda: len(member.records) == 5)
    # The two may come one by one, each with an end behind it.
    member.until(lambda: member.seen.ends[-1] == (topic, 0, 5))
    member.quiet()
    assert member.seen.ends in ([(topic, 0, n) for n in (3, 5)], [(topic, 0, n) for n in (3, 4, 5)])


def test_an_empty_partition_is_at_its_end(cluster: Cluster) -> None:
    """The end of an empty partition is told too."""
    topic = cluster.topic()
    member = cluster.join(topic, topic)
    member.until(lambda: member.seen.ends)
    assert member.seen.ends == [(topic, 0, 0)]


def test_paused_partitions_are_not_fetched(cluster: Cluster) -> None:
    """Pause stops one partition and no other; resume goes on where it stopped."""
    topic = cluster.topic(2)
    member = cluster.join(topic, topic)
    member.until(lambda: len(member.seen.ends) == 2)
    member.consumer.pause([(topic, 0)])
    cluster.fill(topic, 4, partition=0)
    cluster.fill(topic, 4, partition=1)
    member.until(lambda: len(member.records) == 4)
    member.quiet()
    assert {record.partition for record in member.records} == {1}
    member.consumer.resume([(topic, 0)])
    member.until(lambda: len(member.records) == 8)
    assert [r.offset for r in member.records if r.partition == 0] == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pause_ends_with_the_assignment(cluster: Cluster, protocol: str) -> None:
    """What was paused when it was taken away is fetched when it comes back."""
    topic = cluster.topic(2)
    a = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    a.until(lambda: len(a.assigned) == 2)
    a.consumer.pause(sorted(a.assigned))
    b = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    a.until(lambda: together(a, b, 2), [b])
    moved = {number for _, number in b.assigned}
    b.leave()
    a.until(lambda: len(a.assigned) == 2)
    for number in (0, 1):
        cluster.fill(topic, 3, partition=number)
    a.until(lambda: moved <= {record.partition for record in a.records})


def test_pausing_what_is_not_ours_is_harmless(cluster: Cluster) -> None:
    """Pause and resume of partitions that are not assigned do nothing."""
    topic = cluster.topic()
    member = cluster.join(topic, topic)
    member.until(lambda: member.assigned)
    member.consumer.pause([(topic, 5), ("elsewhere", 0)])
    member.consumer.resume([(topic, 5), ("elsewhere", 0)])
    cluster.fill(topic, 1)
    member.until(lambda: member.records)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_position_out_of_the_log_is_heard_of(cluster: Cluster, protocol: str) -> None:
    """It is reported and not moved; `begin` at a good offset goes on, and so do the others."""
    topic = cluster.topic(4)
    for number in (0, 1):
        cluster.fill(topic, 3, partition=number)
    member = cluster.join(topic, topic, **underscored(PROTOCOLS[protocol]))
    member.starts |= {(topic, 0): 1_000, (topic, 3): None}
    member.until(lambda: member.seen.out_of_range and len(member.records) == 3)
    member.consumer.pause([(topic, 2)])
    member.quiet()
    assert member.seen.out_of_range == [(topic, 0)]
    member.consumer.begin((topic, 0), 1)
    for number in (1, 2, 3):
        cluster.fill(topic, 2, partition=number, start=3)
    member.until(lambda: len(member.records) == 7)
    member.quiet()
    where = [(record.partition, record.offset) for record in member.records]
    assert sorted(where) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]


def test_stable_ends_are_before_what_an_open_transaction_holds(cluster: Cluster) -> None:
    """They are asked for; the end that is known without asking is that of the log."""
    topic = cluster.topic()
    cluster.fill(topic, 2)
    member = cluster.join(topic, topic)
    member.until(lambda: len(member.records) == 2)
    cluster.write_open(topic)
    member.until(lambda: member.consumer.log_ends() == {(topic, 0): 3})
    assert member.consumer.stable_ends([(topic, 0)], ANSWER_S) == {(topic, 0): 2}


def test_log_ends_are_known_after_reading(cluster: Cluster) -> None:
    """`log_ends` knows the end of what was fetched, without asking."""
    topic = cluster.topic()
    cluster.fill(topic, 6)
    member = cluster.join(topic, topic)
    member.until(lambda: member.seen.ends)
    assert member.consumer.log_ends() == {(topic, 0): 6}


def test_wake_ends_a_poll(cluster: Cluster) -> None:
    """`wake` from another thread makes a long poll return."""
    topic = cluster.topic()
    member = cluster.join(topic, topic)
    member.until(lambda: member.seen.ends)
    member.quiet()
    began = time.monotonic()
    timer = threading.Timer(0.05, member.consumer.wake)
    timer.start()
    while time.monotonic() - began < 0.05:
        member.poll(LIMIT_S)
    timer.join()
    assert time.monotonic() - began < LIMIT_S / 2


# -- commits -------------------------------------------------------------------------------------------


def test_a_commit_is_answered_and_found(cluster: Cluster) -> None:
    """Its token comes back with a poll, and `find` shows offset and metadata as written."""
    topic = cluster.topic()
    cluster.fill(topic, 10)
    member = cluster.join(topic, topic)
    member.until(lambda: member.assigned)
    text = "bADF/v/v///+ Größe 大きさ"
    answer = member.commit(topic, 4, text)
    assert (answer.topic, answer.partition, answer.verdict) == (topic, 0, "stored")
    found = member.consumer.find([(topic, 0)], ANSWER_S)[topic, 0]
    assert (found.committed, found.metadata) == (4, text)
    assert (found.log_start, found.log_end) == (0, 10)


@pytest.mark.parametrize(
    ("chars", "verdict"),
    [
        (METADATA_CHARS_MAX - 1, "stored"),
        (METADATA_CHARS_MAX, "stored"),
        (METADATA_CHARS_MAX + 1, "too_large"),
    ],
)
def test_metadata_has_a_limit(cluster: Cluster, chars: int, verdict: str) -> None:
    """The broker stores 4,096 characters; more is refused and changes nothing."""
    topic = cluster.topic()
    member = cluster.join(topic, topic)
    member.until(lambda: member.assigned)
    assert member.commit(topic, 1, "before").verdict == "stored"
    assert member.commit(topic, 2, "x" * chars).verdict == verdict
    found = member.consumer.find([(topic, 0)], ANSWER_S)[topic, 0]
    assert found.committed == (2 if verdict == "stored" else 1)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 3), ("error", None)])
def test_nothing_committed_reports_where_to_reset_to(
    cluster: Cluster, reset: str, expected: int | None
) -> None:
    """Without a committed offset `find` says where `auto.offset.reset` points."""
    topic = cluster.topic()
    cluster.fill(topic, 3)
    consumer = cluster.connection(topic, auto_offset_reset=reset).consumer()
    cluster.closing.append(lambda: consumer.leave(5.0))
    found = consumer.find([(topic, 0)], ANSWER_S)[topic, 0]
    assert (found.committed, found.metadata, found.reset_to) == (None, "", expected)


def test_partitions_that_cannot_be_found_hold_up_no_others(cluster: Cluster) -> None:
    """They are left out; only where none can be read is that an error."""
    topic = cluster.topic()
    cluster.fill(topic, 3)
    member = cluster.join(topic, topic)
    member.until(lambda: member.assigned)
    found = member.consumer.find([(topic, 0), (topic, 7)], 5.0)
    assert {where: one.log_end for where, one in found.items()} == {(topic, 0): 3}
    with pytest.raises(KafkaUnavailable):
        member.consumer.find([(topic, 7)], 5.0)


def test_committed_offsets_are_read_alone(cluster: Cluster) -> None:
    """Offset and metadata as written; None where nothing is."""
    topic = cluster.topic(2)
    member = cluster.join(topic, topic)
    member.until(lambda: member.assigned)
    member.commit(topic, 4, "map")
    held = member.consumer.committed([(topic, 0), (topic, 1)], ANSWER_S)
    assert held == {(topic, 0): (4, "map"), (topic, 1): (None, "")}
