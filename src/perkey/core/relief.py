"""`Park(dead_letter=)`: parked records that go to the dead-letter topic before they cost more.

Theory of operation. A record is due while the taken share of the map is at least `at_map`
(`Partition.map_share`), or once it has been parked for `after_s`. Of those the one with the lowest
offset is given up by the way of any exhausted record (endings.py), and the lane continues::

    PARKED ──due, and the oldest──► QUEUED ──its bytes are here──► SENDING ──stored──► DONE
      ▲                                                               │
      └──────────────── refused: not again for `REFUSED_S` ───────────┘

One at a time for each partition: each makes room, and perhaps enough of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perkey.core import states
from perkey.core.gates import TRANSACTION

if TYPE_CHECKING:
    from perkey.core.endings import Endings
    from perkey.core.engine_state import EngineState
    from perkey.core.partition import Partition
    from perkey.core.scheduling import Handler
    from perkey.core.work import Work
    from perkey.types import TopicPartition

LOOK_S = 0.5  # interval of checks of each partition with parked records
LOG_LINE = "a parked record goes to the dead-letter topic"
#: a record that was given up is on its way in any other state
SETTLED = (states.DONE, states.SUPERSEDED, *states.REMEMBERED)


class Relief:
    """Gives up parked records."""

    def __init__(self, state: EngineState, endings: Endings) -> None:
        self._state = state
        self._endings = endings
        #: by partition the record that is on its way, and the time of the next look
        self._going: dict[TopicPartition, Work] = {}
        self._looks: dict[TopicPartition, float] = {}

    def look(self, handler: Handler) -> None:
        """Give up one record of each of its partitions, where that is due."""
        state = self._state
        # Its calls may wait for a service: a dead letter does not.
        if state.gate.reasons or TRANSACTION in handler.gate.reasons:
            return
        handler.relieve_at = state.now + LOOK_S
        if state.stop_mode is not None:
            return
        for partition in state.partitions.values():
            if partition.handler is not handler or not partition.parked or partition.gate.reasons:
                continue
            last = self._going.get(partition.where)
            going = last is not None and last.failure is not None and last.failure.given_up
            if last is not None and (last.state in SETTLED or not going):
                del self._going[partition.where]
            elif last is not None or state.now < self._looks.get(partition.where, 0.0):
                continue
            self._looks[partition.where] = state.now + LOOK_S
            self._give_up(partition, partition.map_share)

    def _give_up(self, partition: Partition, share: float) -> None:
        """Give up the oldest parked record that is due, if any."""
        now, parked, lanes = self._state.now, states.PARKED, partition.lanes
        for work in partition.offsets.works():
            if work.state != parked:  # nearly all of a full buffer: first, as it costs least
                continue
            policy, failure = work.parked_by, work.failure
            if failure is None or policy is None or not policy.dead_letter:
                continue
            full = share >= policy.at_map
            over = policy.after_s is not None and failure.ticket >= 0 and failure.due <= now
            waits = lanes.mate_runs(work) or failure.own_due > now
            if waits or not (full or over) or partition.held_by(work, now):
                continue
            because = "at_map" if full else "after_s"
            self._going[partition.where] = work
            self._state.note(
                "warning", LOG_LINE, topic=partition.topic, partition=partition.number,
                offset=work.offset, to=policy.topic_for(partition.topic), because=because,
                map_share=round(share, 3),
            )  # fmt: skip
            self._endings.relieve(work, failure, f"{because}, {share:.0%} of the map is taken")
            return
