"""`perkey redo` with exactly_once: its outputs are written in a transaction, and no offset moves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.integration.app.conftest import Kafka
from tests.support.exactness import read_committed
from tests.support.waiting import wait_for

import perkey
from perkey.codec import decode
from perkey.observe.orders import Answer, Order

DONE = 6


class Copier:
    """An app that has copied its topic, exactly once."""

    def __init__(self, kafka: Kafka, **options: Any) -> None:
        self.kafka, self.group = kafka, kafka.name("g")
        self.topic, self.output = kafka.topic(), kafka.topic()
        app = kafka.app(group=self.group)
        self.refuse = False

        @app.consume(self.topic, output=self.output, delivery="exactly_once", **options)
        def copy(record: perkey.Record[bytes]) -> perkey.Produce:
            key = b"x" * 2_000_000 if self.refuse else record.key
            return perkey.Produce(record.value, key=key)

        self.run = kafka.start(app)
        kafka.fill(self.topic, [b"%d" % number for number in range(DONE)], key=b"k")
        wait_for(lambda: self.commit().offset == DONE)

    def commit(self) -> Any:
        """What the group has committed."""
        return self.kafka.commit_of(self.group, self.topic)

    def redo(self, *offsets: int) -> Answer:
        """A person's command."""
        places = tuple((0, offset) for offset in offsets)
        order = Order("redo", "a test", f"id-{offsets}", self.topic, records=places)
        answer: Answer = self.run.control.obey(order)
        return answer

    def copies(self) -> Counter[bytes]:
        """What a read_committed reader sees, and how often."""
        found = read_committed(self.kafka.bootstrap, self.output)
        return Counter(one.value() for one in found)


@pytest.mark.broker
def test_a_redo_is_seen_once_more_and_commits_nothing(kafka: Kafka) -> None:
    """Several at once; the answer comes when readers see them. The next record goes on."""
    copier = Copier(kafka)
    answer = copier.redo(1, 4)
    assert (answer.outcome, "redone 2" in answer.detail) == ("done", True), answer
    once = dict.fromkeys([b"%d" % number for number in range(DONE)], 1)
    assert copier.copies() == once | {b"1": 2, b"4": 2}
    held = copier.commit()
    told = decode(held.offset, held.metadata, log_end=DONE)
    assert (held.offset, told.not_done, told.highest_seen) == (DONE, (), DONE - 1)
    kafka.fill(copier.topic, [b"next"], key=b"k")
    wait_for(lambda: copier.commit().offset == DONE + 1)
    assert copier.copies()[b"next"] == 1


@pytest.mark.long
@pytest.mark.broker
def test_outputs_that_the_broker_refuses_are_the_answer(kafka: Kafka) -> None:
    """No reader sees any of them, and the group goes on."""
    copier = Copier(kafka)
    copier.refuse = True
    answer = copier.redo(0)
    assert (answer.outcome, "MSG_SIZE_TOO_LARGE" in answer.detail) == ("refused", True), answer
    copier.refuse = False
    assert set(copier.copies().values()) == {1}
    kafka.fill(copier.topic, [b"next"], key=b"k")
    wait_for(lambda: copier.commit().offset == DONE + 1)


@pytest.mark.long
@pytest.mark.broker
def test_many_redos_beside_the_records_that_come(kafka: Kafka) -> None:
    """Each output once, and those of redos once more for each answer."""
    copier = Copier(kafka, concurrency=8)
    rounds = 20
    for number in range(rounds):
        kafka.fill(copier.topic, [b"more-%d" % number], key=b"k")
        answer = copier.redo(number % DONE)
        assert answer.outcome == "done", answer
    wait_for(lambda: copier.commit().offset == DONE + rounds)
    copies = copier.copies()
    assert sum(copies.values()) == DONE + 2 * rounds
    assert all(copies[b"more-%d" % number] == 1 for number in range(rounds))
