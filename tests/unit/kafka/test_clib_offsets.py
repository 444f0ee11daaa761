"""Where logs start and end, where the client's metadata names a leader that is none any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from perkey.kafka import clib, clib_offsets
from perkey.kafka.admin import list_offsets
from perkey.kafka.clib_offsets import PARTITIONS_MAX, REFRESHED_MAX, Bounds, bounds_soon
from perkey.kafka.consumer import _Asking
from perkey.kafka.group_lag import GroupLag, PartitionLag
from perkey.kafka.ports import CommittedOffset

HERE = [("orders", 0), ("orders", 1)]


class Client:
    """A client that knows the leader of partition 0 only, until its metadata is refreshed."""

    def __init__(self) -> None:
        self.refreshed: list[str | None] = []
        self.fails = False

    def refresh(self, topic: str | None, _timeout_s: float) -> None:
        """As clib.refresh_metadata."""
        self.refreshed.append(topic)
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """One whose ListOffsets never refreshes anything by itself, as librdkafka's."""
    made = Client()

    def answered(_client: Any, wanted: Sequence[Any], *_: Any) -> dict[Any, Bounds]:
        known = made.refreshed and not made.fails
        return {where: Bounds(0, 5) for where in wanted if known or where[1] == 0}

    monkeypatch.setattr(clib_offsets, "bounds", answered)
    monkeypatch.setattr(clib, "refresh_metadata", Client.refresh)
    return made


def soon(client: Any, where: Sequence[tuple[str, int]], timeout_s: float = 5.0) -> set[Any]:
    """What of these was found."""
    return set(bounds_soon(client, where, ["start", "end"], timeout_s))


def test_a_moved_leader_is_found_after_one_refresh(client: Client) -> None:
    """A refused partition has its topic's metadata refreshed, and is then found."""
    assert soon(client, HERE) == set(HERE)
    assert client.refreshed == ["orders"]


def test_known_leaders_cost_no_metadata_request(client: Client) -> None:
    """What is answered the first time refreshes nothing."""
    assert soon(client, HERE[:1]) == {HERE[0]}
    assert not client.refreshed


def test_many_topics_are_refreshed_in_one_request(client: Client) -> None:
    """A broker that is lost may lead partitions of hundreds of topics."""
    many = [(f"t{number}", 1) for number in range(REFRESHED_MAX + 1)]
    assert soon(client, many) == set(many)
    assert client.refreshed == [None]


def test_a_refresh_that_fails_leaves_the_partition_out(client: Client) -> None:
    """No broker answers: what was found is returned, and the caller asks again later."""
    client.fails = True
    assert soon(client, HERE, 0.15) == {HERE[0]}


IN_A_CALLBACK = """
import time
from confluent_kafka import Consumer, Producer
from perkey.kafka.clib_offsets import refresh
served = []
consumer = Consumer({"test.mock.num.brokers": 1, "group.id": "g", "session.timeout.ms": 6000, "log_level": 0,
                     "statistics.interval.ms": 5, "stats_cb": served.append})
servers = [f"{one.host}:{one.port}" for one in consumer.list_topics(timeout=60).brokers.values()]
producer = Producer({"bootstrap.servers": servers[0]})
producer.produce("orders", b"")
assert producer.flush(60) == 0
looked_up = []
def on_assign(consumer, partitions):
    for topics in (["orders"], ["no such topic"], [str(n) for n in range(11)], []):
        refresh(consumer, topics, 60)
    looked_up[:] = [len(served)]
    time.sleep(0.1)  # more callbacks are due
consumer.subscribe(["orders"], on_assign=on_assign)
deadline = time.monotonic() + 60
while not looked_up or len(served) == looked_up[0]:
    assert time.monotonic() < deadline
    consumer.consume(10, 0.1)
"""


def test_a_refresh_in_a_rebalance_callback_leaves_the_next_callback_alive() -> None:
    """list_topics() there made confluent-kafka abort the process: 134, by the next callback."""
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], check=False, timeout=240)
    assert done.returncode == 0


def measured(client: Any) -> Any:
    """The ends of the logs, for `perkey lag`."""
    lag: Any = SimpleNamespace(_consumer=client)
    return GroupLag._logs(lag, HERE)


def causes(client: Any) -> Any:
    """Its second look, at what has waited long."""
    lag: Any = SimpleNamespace(_consumer=client)
    rows = [PartitionLag(*where, 5, 0, 0, 5, 0, 600.0, 0, None) for where in HERE]
    return GroupLag._with_causes(lag, rows)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: _Asking(client, {}).find(HERE, 5.0),
        lambda client: _Asking(client, {}).stable_ends(HERE, 5.0),
        measured,
        causes,
    ],
    ids=["find", "stable_ends", "lag", "causes"],
)
def test_whatever_asks_for_a_log_has_a_moved_leader_looked_up(
    client: Client, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], Any]
) -> None:
    """A start, an open transaction's place, a group's lag: none waits for a leader that was."""
    held = [CommittedOffset(*where, offset=None, metadata="", error=0) for where in HERE]
    monkeypatch.setattr(clib, "committed", lambda *_: held)
    assert len(ask(client)) == len(HERE)
    assert client.refreshed == ["orders"]


@pytest.mark.parametrize(("count", "sizes"), [
    (0, []), (PARTITIONS_MAX - 1, [199]), (PARTITIONS_MAX, [200]), (PARTITIONS_MAX + 1, [200, 1]),
])  # fmt: skip
def test_many_partitions_are_asked_for_in_portions(monkeypatch, count, sizes) -> None:
    """And with a second at least: librdkafka crashes where a request's time is over too soon."""
    given = []

    def asked(_client: Any, _queue: int, some: Any, spec: str, number: int, limit_s: float) -> None:
        given.append((spec, len(some), limit_s))
        answers.append((number, [((one[0], one[1]), number) for one in some]))

    answers: list[Any] = []
    monkeypatch.setattr(clib_offsets, "_queue", lambda _: nullcontext(1))
    monkeypatch.setattr(clib_offsets, "_send", asked)
    monkeypatch.setattr(clib_offsets, "_next_answer", lambda *_: answers.pop())
    where = [("t", number) for number in range(count)]
    found = clib_offsets.bounds(SimpleNamespace(), where, ["start", "end"], 0.001)
    assert given == [(spec, size, 1.0) for spec in ("start", "end") for size in sizes]
    assert set(found) == set(where)


class Admin:
    """An admin client that answers with this offset for each partition."""

    def __init__(self, offset: int) -> None:
        self.offset, self.requests = offset, []

    def list_offsets(self, asked: Any, **given: Any) -> dict[Any, Future[Any]]:
        self.requests.append((len(asked), given["request_timeout"]))
        futures = {place: Future() for place in asked}
        for future in futures.values():
            future.set_result(SimpleNamespace(offset=self.offset))
        return futures


def asked(client: Any, count: int) -> dict[tuple[str, int], int]:
    """The ends of so many partitions."""
    wanted = {("t", number): OffsetSpec.latest() for number in range(count)}
    return list_offsets(client, wanted, IsolationLevel.READ_COMMITTED, 0.05)


def test_an_admin_client_asks_in_portions() -> None:
    """The same bug lies behind its list_offsets."""
    client = Admin(7)
    assert asked(client, 450) == {("t", number): 7 for number in range(450)}
    assert client.requests == [(200, 1.0), (200, 1.0), (50, 1.0)]


def test_a_leader_that_did_not_answer_is_no_offset() -> None:
    """The client gives -1001 and no error: taken for an end of the log it looked like lost data."""
    assert asked(Admin(-1), 1) == {("t", 0): -1}  # no record is as late as that
    with pytest.raises(TimeoutError, match=r"t\[0\] did not answer"):
        asked(Admin(OFFSET_INVALID), 1)
