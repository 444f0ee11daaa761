"""The app of a seed: what its handler does with a record depends on the record alone."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from perkey.app import App
from perkey.errors import OutOfOrder
from perkey.runtime.calls.record_batch import RecordBatch
from perkey.types import Produce, Record
from simulators.core.dice import Dice
from simulators.runtime.life import Call, Place
from simulators.runtime.oracle import Oracle
from simulators.runtime.setup import OUTPUT, TOPIC, Setup
from simulators.runtime.stage import Stage

POISON_EVERY = 20


class Refused(Exception):
    """The handler does not like this record now."""


class Deed(NamedTuple):
    """What a call does with one record."""

    duration_s: float
    fails: bool
    #: its worker process ends over it
    kills: bool
    outputs: int
    #: explicit batches: acknowledged some time after the handler has returned
    late_s: float | None


def deed(setup: Setup, record: Record) -> Deed:
    """The same for the same record and attempt."""
    text = f"{setup.seed} {record.partition} {record.offset} {record.attempt}"
    dice = Dice(zlib.crc32(text.encode()))
    for _ in range(3):
        dice.roll()  # the first values of nearby seeds are near each other
    patient = record.attempt < 3  # the third attempt at the latest goes well
    fails = dice.chance(setup.fail_odds) and patient
    late_s = 0.01 * dice.roll() if dice.chance(0.2) and patient else None
    duration_s = dice.pick(setup.durations)
    return Deed(
        duration_s=duration_s if patient else min(duration_s, 0.1),
        fails=fails or record.offset % POISON_EVERY in setup.poison,
        kills=setup.kind == "processes" and record.attempt == 1 and dice.chance(setup.kill_odds),
        outputs=dice.below(setup.outputs_max + 1),
        late_s=late_s,
    )


def make_app(world: Stage, oracle: Oracle, bootstrap: str, member: str) -> App:
    """One member of the group."""
    setup = world.setup
    app = App(
        group="g",
        kafka={
            "bootstrap.servers": bootstrap,
            "group.instance.id": member,
            "auto.offset.reset": "earliest",
            **_protocol(setup),
        },
        buffer_records=setup.buffer_records,
        revoke_timeout_s=setup.revoke_timeout_s,
        drain_timeout_s=20.0,
    )
    made = Handlers(world, oracle, member)
    options: dict[str, Any] = {
        "ordering": setup.ordering,
        "concurrency": setup.concurrency,
        "executor": "processes" if setup.kind == "processes" else "auto",
        "retry": setup.retry,
        "timeout_s": setup.timeout_s,
        "on_exhausted": setup.on_exhausted,
        "output": OUTPUT,
        "delivery": setup.delivery,
        "commit": setup.commit,
        "batch": setup.batch,
        "prefetch": made.prefetch(),
    }
    consume: Any = app.consume  # its overloads want to see each option
    consume(TOPIC, **options)(made.handler())
    return app


def _protocol(setup: Setup) -> dict[str, str]:
    if setup.protocol == "incremental":
        return {"group.protocol": "consumer"}
    strategy = {"eager": "range", "cooperative": "cooperative-sticky"}[setup.protocol]
    return {"partition.assignment.strategy": strategy}


class Handlers:
    """The functions of one member."""

    def __init__(self, world: Stage, oracle: Oracle, member: str) -> None:
        self._world = world
        self._oracle = oracle
        self._setup = world.setup
        self._member = member

    def handler(self) -> Callable[..., Any]:
        """The one that the seed asks for."""
        if self._setup.batch is not None:
            return self._batch_async() if self._setup.kind == "async" else self._batch()
        return self._single_async() if self._setup.kind == "async" else self._single()

    # -- single records ----------------------------------------------------------------------------

    def _single(self) -> Callable[[Record], Any]:
        def handle(record: Record) -> Any:
            call = self._begin([record])
            does = deed(self._setup, record)
            self._world.work(does.duration_s)
            if does.kills:
                self._world.machine.exit(1)
            return self._finish(call, record)

        return handle

    def _single_async(self) -> Callable[[Record], Any]:
        async def handle(record: Record) -> Any:
            if self._world.is_dead(self._member):
                await asyncio.Event().wait()
            call = self._begin([record])
            duration_s = deed(self._setup, record).duration_s
            try:
                if duration_s:
                    await asyncio.sleep(duration_s)
            except BaseException:
                self._oracle.failed(call, (record.partition, record.offset), counts=False)
                raise
            return self._finish(call, record)

        return handle

    def _begin(self, records: Sequence[Record]) -> Call:
        if self._world.is_dead(self._member):
            self._world.sim.block()
        for record in records:
            if self._setup.prefetch is not None and record.prefetched != loaded(record):
                self._oracle.broken("structure", f"{record!r} has {record.prefetched!r}")
        return self._oracle.begin(self._member, records)

    def _finish(self, call: Call, record: Record) -> Any:
        place, does = (record.partition, record.offset), deed(self._setup, record)
        if does.fails:
            self._oracle.failed(call, place)
            raise Refused(f"{place}")
        self._oracle.handled(call, place, does.outputs)
        return _outputs(call, record, does.outputs)

    # -- batches -----------------------------------------------------------------------------------

    def _batch(self) -> Callable[[RecordBatch], Any]:
        def handle(batch: RecordBatch) -> Any:
            call = self._begin(batch)
            for record in batch:
                self._world.work(deed(self._setup, record).duration_s)
                self._acknowledge(call, batch, record)
            return self._end(call, batch)

        return handle

    def _batch_async(self) -> Callable[[RecordBatch], Any]:
        async def handle(batch: RecordBatch) -> Any:
            if self._world.is_dead(self._member):
                await asyncio.Event().wait()
            call = self._begin(batch)
            try:
                for record in batch:
                    duration_s = deed(self._setup, record).duration_s
                    if duration_s:
                        await asyncio.sleep(duration_s)
                    self._acknowledge(call, batch, record)
            except BaseException:
                call.let_go()
                for place in list(call.open):
                    self._oracle.failed(call, place, counts=False)
                raise
            return self._end(call, batch)

        return handle

    def _acknowledge(self, call: Call, batch: RecordBatch, record: Record) -> None:
        assert self._setup.batch is not None
        if self._setup.batch.ack != "explicit":
            return
        does = deed(self._setup, record)
        place = (record.partition, record.offset)
        if self._earlier_is_open(call, place):
            return  # its lane waits for one that was left out
        if does.late_s is not None:
            late_s = does.late_s
            self._world.sim.spawn(lambda: self._late(call, batch, record, late_s), "late")
        elif does.fails:
            batch.nack(record, "not now")
        else:
            self._oracle.handled(call, place, does.outputs)
            batch.ack(record, _outputs(call, record, does.outputs))

    def _earlier_is_open(self, call: Call, place: Place) -> bool:
        lane_of = self._oracle.sources[place[0]].lane_of
        return any(
            number == place[0] and offset < place[1] and lane_of[offset] == lane_of[place[1]]
            for number, offset in call.open | call.acking
        )

    def _late(self, call: Call, batch: RecordBatch, record: Record, seconds: float) -> None:
        """The handler has let the batch escape: its acknowledgement may come when it is over."""
        place = record.partition, record.offset
        self._world.sim.sleep(seconds)
        if self._earlier_is_open(call, place):
            return
        if place in call.open:
            call.acking.add(place)
            self._oracle.handled(call, place, 0)
        else:
            self._oracle.perhaps_handled(call, place)
        with suppress(OutOfOrder):
            batch.ack(record)
        call.acking.discard(place)

    def _end(self, call: Call, batch: RecordBatch) -> Any:
        assert self._setup.batch is not None
        left = sorted(call.open)
        call.let_go()
        if self._setup.batch.ack == "explicit":
            for place in left:
                self._oracle.failed(call, place)
            return None
        if any(deed(self._setup, record).fails for record in batch):
            for place in left:
                self._oracle.failed(call, place)
            raise Refused(f"{left}")
        outputs = deed(self._setup, batch[0]).outputs
        for place in left:
            self._oracle.handled(call, place, outputs if place == left[0] else 0)
        if outputs:
            self._oracle.shared(call)
        return _outputs(call, batch[0], outputs, left[0])

    # -- prefetch ----------------------------------------------------------------------------------

    def prefetch(self) -> Callable[..., Any] | None:
        """The function that loads, or none."""
        return {
            "def": self._load,
            "async": self._load_async,
            "generator": self._load_and_release,
            "async generator": self._load_and_release_async,
        }.get(self._setup.prefetch or "")

    def _load(self, records: Sequence[Record]) -> list[Place]:
        self._world.work(self._setup.durations[0])
        return [loaded(record) for record in records]

    async def _load_async(self, records: Sequence[Record]) -> list[Place]:
        await asyncio.sleep(self._setup.durations[0])
        return [loaded(record) for record in records]

    def _load_and_release(self, records: Sequence[Record]) -> Generator[list[Place], None, None]:
        self._oracle.stats["loaded"] += 1
        yield self._load(records)
        self._oracle.stats["released"] += 1

    async def _load_and_release_async(
        self, records: Sequence[Record]
    ) -> AsyncGenerator[list[Place], None]:
        self._oracle.stats["loaded"] += 1
        yield await self._load_async(records)
        self._oracle.stats["released"] += 1


def loaded(record: Record) -> Place:
    """What is loaded for a record."""
    return record.partition, record.offset


def _outputs(call: Call, record: Record, count: int, place: Place | None = None) -> Any:
    if not count:
        return None
    number, offset = place or (record.partition, record.offset)
    return [
        Produce(f"{number}:{offset}:{call.number}:{index}".encode(), partition=0)
        for index in range(count)
    ]
