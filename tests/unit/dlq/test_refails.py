"""--stop-key-on-refail: a key stops behind a letter that fails again."""

from __future__ import annotations

import pytest
from tests.property.test_dlq_replay import DLQ, GROUP, TOPIC, connection, prepared, write_letter

from perkey.dlq.letters import LETTER
from perkey.dlq.plan import Rules
from perkey.dlq.refails import BEHIND, Careful
from perkey.dlq.replay import Replay, Wanted
from perkey.testing import MemoryKafka
from perkey.testing.memory_connection import MemoryLogReader


class Handled:
    """The group `g`, which takes everything that is there, and gives up records that are bad."""

    def __init__(self, kafka: MemoryKafka, bad: set[int], deaf: bool = False) -> None:
        self.kafka, self.bad, self.deaf = kafka, bad, deaf
        self.rounds: list[list[int]] = []
        self._seen = {number: len(self._log(number)) for number in range(2)}

    def _log(self, partition: int) -> list:
        return [one for one in self.kafka.records(TOPIC) if one.partition == partition]

    def turn(self, _rest_s: float) -> None:
        """Handle what has come since, and commit."""
        if self.deaf:
            return
        numbers = []
        for partition in range(2):
            new = self._log(partition)[self._seen[partition] :]
            self._seen[partition] += len(new)
            for record in new:
                numbers.append(int(record.value))
                if int(record.value) in self.bad:
                    write_letter(self.kafka, partition, record.offset, record.key)
            if new:
                self.kafka.commit("g", TOPIC, partition, new[-1].offset + 1)
        self.rounds.append(numbers)


def careful(kafka: MemoryKafka, handled: Handled, outcome_s: float = 30):
    replay = Replay(connection(kafka), Wanted(DLQ, rules=Rules("replay")), GROUP)
    replay.begin()
    replay.look()
    commits = MemoryLogReader(kafka, "g")
    outcome = Careful(replay, commits, outcome_s, rest=handled.turn).send(replay.plan())
    replay.close()
    return outcome


@pytest.fixture
def kafka():
    with MemoryKafka() as made:
        prepared(made, [([b"a", b"a", b"b", b"a", None, None], [0, 1, 2, 3, 4, 5]), ([b"a"], [0])])
        yield made


def test_a_key_stops_behind_a_letter_that_fails_again(kafka):
    """The first of each key goes, then the second; behind 1 nothing of its key does."""
    handled = Handled(kafka, bad={1})
    outcome = careful(kafka, handled)
    assert [sorted(one) for one in handled.rounds] == [[0, 0, 2, 4, 5], [1]]
    assert (outcome.sent, outcome.again, outcome.left_out) == (6, 1, {BEHIND: 1})


def test_all_go_where_none_fails(kafka):
    """One of a key at a time, in order."""
    handled = Handled(kafka, bad=set())
    outcome = careful(kafka, handled)
    assert [sorted(one) for one in handled.rounds] == [[0, 0, 2, 4, 5], [1], [3]]
    assert (outcome.sent, outcome.again, outcome.left_out) == (7, 0, {})


def test_a_key_without_an_outcome_in_time_stops(kafka):
    """A parked record, or a group that does not run."""
    outcome = careful(kafka, Handled(kafka, bad=set(), deaf=True), outcome_s=0.05)
    assert (outcome.sent, outcome.again, outcome.left_out) == (5, 0, {BEHIND: 2})
    sent = [one for one in kafka.records(TOPIC) if LETTER in dict(one.headers)]
    assert len(sent) == 5
