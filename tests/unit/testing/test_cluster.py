"""The in-memory broker as tests use it: topics, faults, lost members, bad input."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import perkey
from perkey.kafka.ports import Delivery, OutMessage
from perkey.testing import MemoryKafka
from perkey.testing.crash import Mortal
from perkey.testing.memory_cluster import PARTITIONS_MAX, murmur2
from perkey.testing.memory_producer import MemoryProducer

SOON = perkey.Commit(interval_s=0.01)


def app_on(broker: MemoryKafka, seen: list[int], **options: Any) -> perkey.App:
    """An app with one handler that remembers offsets."""
    kafka = {"bootstrap.servers": broker.bootstrap, **options.pop("kafka", {})}
    on_lost = options.pop("on_offset_lost", "stop")
    app = perkey.App(group="g", kafka=kafka, on_offset_lost=on_lost)

    @app.consume("orders", **{"commit": SOON, **options})
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(0.001)
        seen.append(record.offset)

    return app


@pytest.fixture
def orders(memory_broker: MemoryKafka) -> MemoryKafka:
    """A broker with 20 orders in one partition."""
    memory_broker.create_topic("orders")
    for number in range(20):
        memory_broker.produce("orders", str(number), key=str(number % 4))
    return memory_broker


@pytest.mark.parametrize(
    ("key", "javas"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_java_hashes_them(key: bytes, javas: int) -> None:
    """The vectors of Kafka's own UtilsTest.testMurmur2."""
    assert murmur2(key) == javas & 0xFFFFFFFF


# -- faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_name", ["commit", "commit_answer"])
@pytest.mark.parametrize("error", ["REQUEST_TIMED_OUT", "COORDINATOR_LOAD_IN_PROGRESS"])
def test_commits_that_fail_are_made_good(
    orders: MemoryKafka, request_name: Any, error: str
) -> None:
    """Refused, or stored with the answer lost: in the end everything is committed."""
    seen: list[int] = []
    orders.fail_next(request_name, error, times=2)
    assert app_on(orders, seen).run(until="drained").exit_code == 0
    assert sorted(seen) == list(range(20))
    assert orders.committed("g", "orders").frontier == 20


def test_offsets_that_cannot_be_read_are_read_later(orders: MemoryKafka) -> None:
    """The partition stays paused until they can be, and never starts without the map."""
    seen: list[int] = []
    orders.commit("g", "orders", 0, 5)
    orders.fail_next("find", times=2)
    assert app_on(orders, seen).run(until="drained").exit_code == 0
    assert sorted(seen) == list(range(5, 20))


def test_outputs_that_fail_are_attempts_that_failed(orders: MemoryKafka) -> None:
    """The record is handled again, and done when its output is there."""
    orders.create_topic("out")
    orders.fail_next("produce", "POLICY_VIOLATION", times=3)
    app = perkey.App(group="g", kafka={"bootstrap.servers": orders.bootstrap})
    retry = perkey.Retry(attempts=5, delay_s=0.01)
    app.consume("orders", output="out", retry=retry)(lambda record: record.value)
    report = app.run(until="drained")
    assert (report.exit_code, report.done, report.failed_attempts) == (0, 20, 3)
    assert len(orders.records("out")) == 20


def test_a_fatal_commit_error_ends_the_run(orders: MemoryKafka) -> None:
    """Not allowed to commit: exit code 1 with the broker's word."""
    orders.fail_next("commit", "GROUP_AUTHORIZATION_FAILED", times=50)
    report = app_on(orders, []).run(until="drained")
    assert report.exit_code == 1
    assert "GROUP_AUTHORIZATION_FAILED" in report.reason


# -- members -------------------------------------------------------------------------------------------


def test_expired_members_lose_and_come_back(orders: MemoryKafka) -> None:
    """Partitions are lost, the member joins again and goes on from the last commit."""
    told: list[str] = []
    seen: list[int] = []
    app = perkey.App(
        group="g",
        kafka={"bootstrap.servers": orders.bootstrap},
        on_assign=lambda _: told.append("assign"),
        on_revoke=lambda _: told.append("revoke"),
    )
    expired = threading.Event()

    @app.consume("orders", commit=SOON, concurrency=1)
    async def handle(record: perkey.Record) -> None:
        seen.append(record.offset)
        if len(seen) == 8:
            orders.expire_members("g")
            expired.set()
        await asyncio.sleep(0.002)

    assert app.run(until="drained").exit_code == 0
    assert expired.is_set()
    assert told[:3] == ["assign", "revoke", "assign"]
    assert set(seen) == set(range(20))
    assert orders.committed("g", "orders").frontier == 20


def test_two_groups_do_not_see_each_other(orders: MemoryKafka) -> None:
    """Each handles everything and has its own progress."""
    seen: list[int] = []
    app_on(orders, seen).run(until="drained")
    other = perkey.App(group="other", kafka={"bootstrap.servers": orders.bootstrap})
    other.consume("orders")(lambda record: seen.append(record.offset))
    other.run(until="drained")
    assert sorted(seen) == sorted([*range(20), *range(20)])


# -- logs ----------------------------------------------------------------------------------------------


def test_holes_of_all_kinds_are_passed(orders: MemoryKafka) -> None:
    """Gaps, compaction and retention: what is left is handled, and the frontier ends past it."""
    orders.compact("orders", 0, [6, 7, 19])
    orders.leave_gap("orders", count=5)
    orders.produce("orders", "last")
    orders.leave_gap("orders")
    orders.delete_before("orders", 0, 3)
    seen: list[int] = []
    assert app_on(orders, seen).run(until="drained").exit_code == 0
    assert sorted(seen) == [n for n in range(3, 19) if n not in (6, 7)] + [25]
    assert orders.committed("g", "orders").frontier == 27


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 20), ("latest", 0)])
def test_a_commit_past_the_end_follows_the_policy(
    orders: MemoryKafka, policy: str, expected: int
) -> None:
    """A topic made again: start over, or at its end."""
    orders.commit("g", "orders", 0, 1_000)
    seen: list[int] = []
    assert app_on(orders, seen, on_offset_lost=policy).run(until="drained").exit_code == 0
    assert len(seen) == expected


def test_produce_reports_where_the_record_is(memory_broker: MemoryKafka) -> None:
    """Topic, partition, offset, key; `records` gives it back."""
    memory_broker.create_topic("t", 3)
    sent = memory_broker.produce("t", "v", "k", partition=2, headers=(("h", None),), timestamp_ms=5)
    assert sent == perkey.Sent("t", 2, 0, b"k")
    assert memory_broker.records("t") == [perkey.Record("t", 2, 0, 5, b"k", b"v", (("h", None),))]


def test_a_full_producer_refuses(memory_broker: MemoryKafka) -> None:
    """With its queue full the next message is a BufferError, and nothing is lost."""

    class Immortal(Mortal):
        dead = ""

        def reach(self, point: Any) -> bool:
            return False

        def hold(self) -> None:
            pass

    memory_broker.create_topic("t")
    told: list[Delivery] = []
    producer = MemoryProducer(memory_broker, Immortal(), queue_max=2)
    accepted = 0
    with memory_broker.changed, pytest.raises(BufferError):  # its thread cannot write now
        for _ in range(5):
            producer.send(OutMessage("t", b"v", None), told.append)
            accepted += 1
            threading.Event().wait(0.02)
    assert accepted in (2, 3)  # one may be in its thread's hand
    producer.close(5)
    assert len(memory_broker.records("t")) == len(told) == accepted


# -- bad input -----------------------------------------------------------------------------------------


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """A call of a method, for the table below."""
    return lambda broker: getattr(broker, name)(*arguments, **options)


@pytest.mark.parametrize(
    ("doing", "match"),
    [
        (call("create_topic", "orders"), "already exists"),
        (call("create_topic", "a b"), "letters"),
        (call("create_topic", "t", 0), "1 to"),
        (call("create_topic", "t", PARTITIONS_MAX + 1), "1 to"),
        (call("add_partitions", "orders", 1), "more than 1"),
        (call("delete_topic", "nope"), "does not exist"),
        (call("produce", "nope", "v"), "UNKNOWN_TOPIC"),
        (call("produce", "orders", "v", partition=3), "UNKNOWN_PARTITION"),
        (call("produce", "orders", "v" * 2_000_000), "TOO_LARGE"),
        (call("produce", "orders", {"car": 7}), r"produce\(value=\): .* not dict"),
        (call("produce", "orders", "v", key=7), r"produce\(key=\): .* not int"),
        (call("produce", "orders", "v", headers=[("h", 7)]), r"produce\(headers=\): .* not int"),
        (call("records", "nope"), "does not exist"),
        (call("leave_gap", "orders", 4), "no partition 4"),
        (call("leave_gap", "orders", 0, 0), r"count=0\): give 1 or more"),
        (call("commit", "g", "orders", 0, -1), r"offset=-1\): give 0 or more"),
        (call("commit", "g", "orders", 0, 1, "x" * 4097), "TOO_LARGE"),
        (call("commit", "g", "nope", 0, 1), "does not exist"),
        (call("fail_next", "nope"), "commit_answer"),
        (call("fail_next", "commit", times=0), r"times=0\): give 1 or more"),
        (call("fail_next", "commit", "NO_SUCH_ERROR"), "NO_SUCH_ERROR"),
    ],
)
def test_bad_calls_are_refused_in_one_line(orders: MemoryKafka, doing: Any, match: str) -> None:
    """The line names the thing."""
    with pytest.raises(perkey.ConfigError, match=match) as error:
        doing(orders)
    assert "\n" not in str(error.value)


def test_headers_of_text_are_bytes_as_from_kafka(orders: MemoryKafka) -> None:
    """A handler got the text itself, and its test passed."""
    sent = orders.produce("orders", "v", headers=[("h", "ü"), ("h", None)])
    assert orders.records("orders")[sent.offset].headers == (("h", "ü".encode()), ("h", None))


@pytest.mark.parametrize("partitions", [1, PARTITIONS_MAX])
def test_partition_counts_up_to_the_limit_are_taken(
    memory_broker: MemoryKafka, partitions: int
) -> None:
    """The smallest and the largest topic."""
    memory_broker.create_topic("t", partitions)
    assert memory_broker.produce("t", "v", partition=partitions - 1).offset == 0


def test_an_address_that_is_closed_is_bad_input() -> None:
    """An app on a broker of a test that is over gets one line, not a stall."""
    with MemoryKafka() as broker:
        address = broker.bootstrap
    app = perkey.App(group="g", kafka={"bootstrap.servers": address})
    app.consume("t")(lambda _: None)
    with pytest.raises(perkey.ConfigError, match="in-memory broker does not exist"):
        app.run(until="drained")


def test_properties_are_checked_as_for_a_real_broker(orders: MemoryKafka) -> None:
    """A typo in a librdkafka property is found in the test, not in production."""
    with pytest.raises(perkey.ConfigError, match=r"auto\.offset\.rest"):
        app_on(orders, [], kafka={"auto.offset.rest": "latest"}).run(until="drained")


def test_the_package_costs_little_to_load() -> None:
    """Pytest loads the plugin everywhere Perkey is installed: without librdkafka and pydantic."""
    code = "import sys, perkey.testing.plugin; print([m for m in ('confluent_kafka', 'pydantic') if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=60
    )
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
