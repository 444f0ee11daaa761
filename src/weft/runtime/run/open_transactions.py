"""Detect records behind another producer's open transaction.

Who reads what is committed stands at the last stable offset, and sees an end there: a log that goes
on behind it looks like one that is read. A partition that stands before its log's end for a while
is asked how far transactions have ended, now and then; all others cost a comparison a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weft.core import states
from weft.kafka.ports import KafkaUnavailable
from weft.runtime.member.member import Member
from weft.types import TopicPartition

LOOK_EVERY_S = 1.0
STANDS_S = 5.0
ASK_EVERY_S = 10.0
ANSWER_S = 1.0


class OpenTransactions:
    """Looks at the partitions of one member; on the watching thread."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._look_at = self._ask_at = 0.0
        #: partitions that stand before the end of their log -> where, and since when
        self._stood: dict[TopicPartition, tuple[int, float]] = {}

    def look(self, now: float) -> None:
        """One look; called ten times a second."""
        if now < self._look_at or self._member.ending:
            return
        self._look_at = now + LOOK_EVERY_S
        # Partitions that are fetched, and have not come to the end of their log.
        short = [
            (where, one.position)
            for where, one in list(self._member.partitions.items())
            if one.state == states.OPEN and not one.intake_paused and one.position < one.log_end
        ]
        before = self._stood
        self._stood = {
            where: before[where] if before.get(where, (-1, now))[0] == position else (position, now)
            for where, position in short
        }
        still = [where for where, (_, since) in self._stood.items() if now - since >= STANDS_S]
        if not still:
            self._member.telling.stable_ends = {}
        elif now >= self._ask_at:
            self._ask_at = now + ASK_EVERY_S
            self._ask(still)

    def _ask(self, where: list[TopicPartition]) -> None:
        telling = self._member.telling
        try:
            telling.stable_ends = self._member.seat.consumer.stable_ends(where, ANSWER_S)
        except KafkaUnavailable:
            telling.stable_ends = {}


def behind_transactions(
    rows: Iterable[Mapping[str, Any]], stable_ends: Mapping[TopicPartition, int]
) -> list[dict[str, Any]]:
    """Of a snapshot's partitions those that stand there still, as causes."""
    found = []
    for row in rows:
        stable_end = stable_ends.get((row["topic"], row["partition"]))
        if stable_end is not None and row["highest_seen"] + 1 == stable_end < row["end"]:
            where = {"topic": row["topic"], "partition": row["partition"]}
            found.append(
                {"cause": "open_transaction", **where, "stable_end": stable_end, "end": row["end"]}
            )
    return found
