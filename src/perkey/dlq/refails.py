"""`--stop-key-on-refail`: one letter per key at a time, and none after one that failed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from perkey.codec import UnreadableMap, decode
from perkey.dlq.letters import Letter, Place, letter_of
from perkey.dlq.plan import Plan
from perkey.dlq.replay import ANSWER_S, OnProgress, Outcome, Replay
from perkey.kafka.log_reader import LogReader
from perkey.types import Sent, TopicPartition

LOOK_EVERY_S = 0.5
BEHIND = "behind a letter of their key that failed again, or had no outcome in time"


class Careful:
    """Sends in rounds, and waits for the outcome of each letter.

    The outcome is in the group's commits: a record is done once the frontier or the map has it; a
    new letter of it would be written before that.
    """

    def __init__(
        self,
        replay: Replay,
        commits: LogReader,
        outcome_s: float,
        on_progress: OnProgress = lambda *_: None,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        """`commits` reads those of the handling group; each outcome may take `outcome_s`."""
        self._replay, self._commits = replay, commits
        self._outcome_s, self._on_progress, self._rest = outcome_s, on_progress, rest
        self._read_to = {where: end for where, (_, end) in self._letters_now().items()}

    def _letters_now(self) -> dict[TopicPartition, tuple[int, int]]:
        return self._replay.box.ranges(self._replay.box.topic)

    def send(self, plan: Plan) -> Outcome:
        """The same as `Replay.send`, in rounds."""
        outcome = Outcome()
        lanes: dict[tuple[Any, ...], list[Letter]] = {}
        for letter in plan.going:
            assert letter.source is not None
            lane = letter.source[:2]
            lanes.setdefault((*lane, letter.at if letter.key is None else letter.key), []).append(
                letter
            )
        while lanes:
            heads = {lane: letters.pop(0) for lane, letters in lanes.items()}
            went = self._replay.send_some(plan, list(heads.values()), outcome)
            stopped = self._not_well(went)
            for lane, head in heads.items():
                if head.at in stopped and lanes[lane]:
                    outcome.behind += len(lanes.pop(lane))
                    outcome.left_out[BEHIND] = outcome.behind
            lanes = {lane: letters for lane, letters in lanes.items() if letters}
            self._on_progress("sending", outcome.sent, len(plan.going))
            again = sum(stopped.values())
            outcome.again += again
            outcome.unknown += len(stopped) - again
        return outcome

    def _not_well(self, went: Sequence[tuple[Letter, Sent]]) -> dict[Place, bool]:
        """Letter -> whether it failed again; False: no outcome in time."""
        waiting = {Place(one.topic, one.partition, one.offset): letter for letter, one in went}
        sent = dict(waiting)
        deadline = time.monotonic() + self._outcome_s
        while waiting and time.monotonic() < deadline:
            where = sorted({place[:2] for place in waiting})
            held = self._commits.committed(where, ANSWER_S)
            waiting = {
                place: letter
                for place, letter in waiting.items()
                if not _is_done(held.get(place[:2], (None, "")), place.offset)
            }
            if waiting:
                self._rest(LOOK_EVERY_S)
        again = dict.fromkeys((letter.at for letter in waiting.values()), False)
        # New letters in the dead-letter topic since the last check
        now = self._letters_now()
        ranges = {
            where: (self._read_to.get(where, start), end) for where, (start, end) in now.items()
        }
        self._read_to = {where: end for where, (_, end) in now.items()}
        for record in [
            record for records in self._replay.box.reader.read(ranges) for record in records
        ]:
            source = letter_of(record).source
            if source is not None and source in sent:
                again[sent[source].at] = True
        return again


def _is_done(held: tuple[int | None, str], offset: int) -> bool:
    frontier, metadata = held
    if frontier is None or offset < frontier:
        return frontier is not None
    try:
        decoded = decode(frontier, metadata)
    except UnreadableMap:
        return False
    return offset <= decoded.highest_seen and offset not in decoded.not_done
