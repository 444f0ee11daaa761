"""contextvars: what a call sets is its own, in every kind of executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

import perkey
from perkey.testing import run

user: ContextVar[str] = ContextVar("user", default="nobody")


def call_of(kind: str, seen: list[str]) -> tuple[Any, dict[str, Any]]:
    """A handler that notes what it finds and then sets its own, and its options."""

    def note(name: str) -> None:
        seen.append(user.get())
        user.set(name)

    async def at_once(record: perkey.Record) -> None:
        note(f"user {record.offset}")

    async def waits(record: perkey.Record) -> None:
        note(f"user {record.offset}")
        for _ in range(3):
            await asyncio.sleep(0.0005)
            assert user.get() == f"user {record.offset}"

    def plain(record: perkey.Record) -> None:
        note(f"user {record.offset}")

    def generator(record: perkey.Record) -> Iterator[perkey.Produce]:
        note(f"user {record.offset}")
        yield perkey.Produce(b"", topic="out")
        assert user.get() == f"user {record.offset}"

    def batch(records: perkey.RecordBatch) -> None:
        note(f"user {records[0].offset}")

    async def async_batch(records: perkey.RecordBatch) -> None:
        note(f"user {records[0].offset}")
        await asyncio.sleep(0.0005)
        assert user.get() == f"user {records[0].offset}"

    handler = locals()[kind]
    batched = {"batch": perkey.Batch(max_records=1)} if "batch" in kind else {}
    return handler, batched


@pytest.mark.parametrize("kind", ["at_once", "waits", "plain", "generator", "batch", "async_batch"])
def test_no_call_sees_what_another_has_set(kind: str) -> None:
    """Of 30 records none finds another's value, and each finds its own after it has waited."""
    seen: list[str] = []
    handler, options = call_of(kind, seen)
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    app.consume("t", concurrency=4, **options)(handler)
    results = run(app, [(f"k{n}", b"x") for n in range(30)])
    assert {result.outcome for result in results} == {"done"}
    assert {result.attempts for result in results} == {1}
    assert seen == ["nobody"] * 30


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_prefetch_generator_finds_its_own_when_it_releases(kind: str) -> None:
    """What it sets before it yields is there when it goes on, and no other load sees it."""
    seen: list[str] = []
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})

    def load(records: Sequence[perkey.Record]) -> Iterator[list[str]]:
        token = user.set(f"load of {records[0].offset}")
        yield ["value"] * len(records)
        seen.append(user.get())
        user.reset(token)
        seen.append(user.get())

    async def load_async(records: Sequence[perkey.Record]) -> AsyncIterator[list[str]]:
        token = user.set(f"load of {records[0].offset}")
        yield ["value"] * len(records)
        seen.append(user.get())
        user.reset(token)
        seen.append(user.get())

    @app.consume("t", prefetch=load if kind == "sync" else load_async, concurrency=1)
    async def handle(record: perkey.Record) -> None:
        assert record.prefetched == "value"
        assert user.get() == "nobody"

    results = run(app, [b"a", b"b"])
    assert {result.attempts for result in results} == {1}
    assert seen == ["load of 0", "nobody", "load of 1", "nobody"]


@pytest.mark.parametrize("kind", ["at_once", "waits", "plain", "batch", "async_batch"])
def test_what_a_decoder_sets_is_its_calls(kind: str) -> None:
    """The handler finds it with its own record, and no other record's decoder does."""
    seen: list[str] = []
    found: list[str] = []
    handler, options = call_of(kind, found)

    def decode(value: bytes) -> bytes:
        seen.append(user.get())
        user.set(value.decode())
        return value

    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    app.consume("t", concurrency=1, value=decode, **options)(handler)
    results = run(app, [b"ann", b"ben", b"eve"])
    assert {result.attempts for result in results} == {1}
    assert seen == ["nobody"] * 6  # for the calls, and for who reads the results
    assert found == ["ann", "ben", "eve"]
