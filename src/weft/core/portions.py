"""exactly_once: how many outputs wait, and how many of them go into one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.core import states
from weft.core.delivery.exactly_once import Halving, Suspects
from weft.core.events import Stuck
from weft.core.partition import Partition
from weft.core.spec import Limits
from weft.core.work import Work
from weft.types import ErrorInfo

HELD_SHARE = 0.25  # of `buffer_bytes`: with so much waiting for a transaction nothing starts


class Portions:
    """What one transaction takes: less after one that ran out of time, slowly more again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.most_bytes = limits.transaction_bytes
        self._sent_bytes = 0
        self._turn = 0
        #: when each partition was the first of a transaction, by the number of that
        self._led: dict[Partition, int] = {}
        self._suspects = Suspects()
        self._halving = Halving()

    @property
    def narrow(self) -> bool:
        """What is in a transaction is being found out: nothing goes along that need not."""
        return self._suspects.alone or self._halving.most is not None

    def full(self, partitions: Iterable[Partition]) -> bool:
        """So many outputs wait that no call may make more of them."""
        held = sum([partition.outputs_bytes for partition in partitions])
        return held >= self._limits.buffer_bytes * HELD_SHARE

    def claims(self, due: Sequence[Partition]) -> list[list[Work]]:
        """For each of these partitions, what goes into the next transaction.

        The first ones, in the order in which they were handled: lanes keep theirs.
        """
        allowed = self._suspects.choose(due)
        self._halving.begin()
        waiting = sum([bool(partition.outputs) for partition in due])
        share = self.most_bytes // max(1, waiting)
        chosen: dict[Partition, list[Work]] = {}
        self._sent_bytes = 0
        for partition in self._in_turn(due):
            claims = allowed[partition]
            if not self._suspects.alone:
                claims = self._halving.first(claims)
            chosen[partition], taken = self._first(partition, claims, share)
            self._sent_bytes += taken
        return [chosen[partition] for partition in due]

    def _in_turn(self, due: Sequence[Partition]) -> list[Partition]:
        """Each is the first one at times, which takes something in any case.

        That which was not for longest: with a mere rotation suspects, who take every other turn,
        could take all those of one partition.
        """
        if not due:
            return []
        self._turn += 1
        begin = min(range(len(due)), key=lambda place: self._led.get(due[place], 0))
        if not self._suspects.alone:
            self._led = {one: at for one, at in self._led.items() if one.state != states.CLOSED}
            self._led[due[begin]] = self._turn
        return [*due[begin:], *due[:begin]]

    def _first(
        self, partition: Partition, claims: list[Work], share: int
    ) -> tuple[list[Work], int]:
        """Of these as much as is its share, and how many bytes that is."""
        taken = 0
        if claims is partition.commit.claims and partition.outputs_bytes <= share:
            return claims, partition.outputs_bytes
        for end, work in enumerate(claims):
            size = partition.outputs.get(work, 0)
            # In all one at least, and of a batch all that share its outputs.
            mate = end > 0 and work.outputs is not None and work.outputs is claims[end - 1].outputs
            if size and taken + size > share and not mate and (taken or self._sent_bytes):
                return claims[:end], taken
            taken += size
        return claims, taken

    def ended(
        self,
        sent: Sequence[Work],
        stuck: Sequence[Stuck],
        *,
        committed: bool,
        slow: bool,
        reason: ErrorInfo | None = None,
    ) -> list[Stuck]:
        """The transaction with the outputs `sent` is over; which of them have failed.

        `slow`: it ran out of time. `reason`: it was aborted for what is in it, whichever that is.
        """
        # Where nothing at all got through it was not too much.
        self._resize(committed=committed, slow=slow and len(stuck) < max(1, len(sent)))
        self._halving.set_aside([work for work, _ in stuck])
        if not self._suspects.alone:
            unnamed = reason is not None and not stuck
            if self._halving.ended(sent, committed=committed, unnamed=unnamed):
                if self._suspects.accuse(sent):
                    self._halving.set_aside(sent)
                return []
        return self._suspects.ended(sent, stuck, committed=committed, reason=reason)

    def _resize(self, *, committed: bool, slow: bool) -> None:
        if slow and not committed:
            self.most_bytes = max(1, min(self.most_bytes, self._sent_bytes) // 2)
        elif committed and 2 * self._sent_bytes >= self.most_bytes:
            more = self.most_bytes + self.most_bytes // 8 + 1
            self.most_bytes = min(self._limits.transaction_bytes, more)
