"""exactly_once: outputs that hold a transaction up without a word from the broker.

A partition without a leader refuses nothing: what goes there is just never acknowledged, and the
transaction runs out of its time with all that is in it. What was not acknowledged where other
outputs were is under suspicion. So is the one output that was in a transaction which was aborted,
and of which nothing was said (see `Halving`). Suspects are set aside with what is behind them in
their lanes, until the others are through; then they go alone. Those that fail alone twice, while
others get through in between, have failed an attempt. Without others nothing is proved: the broker
is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from weft.core import states
from weft.core.events import Stuck
from weft.core.partition import Partition
from weft.core.work import Work
from weft.types import ErrorInfo

TRIES = 2


class _Group:
    """Outputs that go alone together, by identity: a batch's records share theirs."""

    __slots__ = ("silent", "suspected", "tries")

    def __init__(self, works: Sequence[Work], *, silent: bool) -> None:
        #: id of the outputs -> them, and one record that waits with them
        self.suspected: dict[int, tuple[Any, Work]] = {}
        #: they were not acknowledged; else it is one that a transaction was aborted with
        self.silent = silent
        #: so often they failed alone, with others that got through before
        self.tries = 0
        self.add(works)

    def add(self, works: Sequence[Work]) -> None:
        self.suspected.update({id(work.outputs): (work.outputs, work) for work in works})

    def forget(self) -> None:
        """Those that went another way: their partition did, most likely."""
        self.suspected = {
            one: (outputs, work)
            for one, (outputs, work) in self.suspected.items()
            if work.state == states.PENDING and work.outputs is outputs
        }


class Suspects:
    """Who is set aside, and whose turn it is."""

    def __init__(self) -> None:
        self._aside: list[_Group] = []
        #: the transaction at hand takes these only
        self._alone: _Group | None = None
        #: the others had their turn since, and outputs of theirs got through
        self._others_went = self._proved = False
        self._due: Sequence[Partition] = ()

    @property
    def alone(self) -> bool:
        """The transaction at hand takes suspects only."""
        return self._alone is not None

    def choose(self, due: Sequence[Partition]) -> dict[Partition, list[Work]]:
        """What may go into the next transaction: all but the suspects, or some of these alone."""
        self._alone, self._due = None, due
        for group in self._aside:
            group.forget()
        self._aside = [group for group in self._aside if group.suspected]
        if not self._aside:
            return {partition: partition.commit.claims for partition in due}
        aside = {one for group in self._aside for one in group.suspected}
        others = {partition: without(partition.commit.claims, aside) for partition in due}
        if not self._others_went and any(others.values()):
            return others
        # They may stand behind others in their lanes, which did not go yet: a portion at a time.
        return self._next_alone(due) or others

    def _next_alone(self, due: Sequence[Partition]) -> dict[Partition, list[Work]]:
        """The first that can go: its partition may wait after a commit that was refused."""
        for group in self._aside:
            chosen = {p: without(p.commit.claims, group.suspected, not_in=True) for p in due}
            if any(chosen.values()):
                self._alone = group
                return chosen
        return {}

    def accuse(self, sent: Sequence[Work]) -> bool:
        """The only output of a transaction that was aborted; True where others wait."""
        due, self._due = self._due, ()
        others = _more(due, sent)
        if others:
            self._set_aside(_Group(sent, silent=False))
        return others

    def ended(
        self,
        sent: Sequence[Work],
        stuck: Sequence[Stuck],
        *,
        committed: bool,
        reason: ErrorInfo | None = None,
    ) -> list[Stuck]:
        """The transaction with these outputs is over; who has failed an attempt by it.

        `reason`: it was aborted for what is in it, and nobody knows which.
        """
        due, self._due = self._due, ()
        alone = self._alone
        if committed:
            self._through(sent)
        elif alone is not None and reason is not None and not stuck:
            if len(alone.suspected) > 1:
                self._part(alone)
            else:
                return self._failed_alone(alone, [(work, reason) for work in sent])
        elif stuck and alone is not None and len(stuck) == len(sent):
            return self._failed_alone(alone, stuck)
        elif stuck and (len(stuck) < len(sent) or _more(due, sent)):
            self._hold([work for work, _ in stuck])
        return []

    def _hold(self, works: Sequence[Work]) -> None:
        """These were not acknowledged; all such go alone together: each takes a time-out."""
        silent = next((group for group in self._aside if group.silent), None)
        if silent is None:
            self._set_aside(_Group(works, silent=True))
            return
        silent.add(works)
        silent.tries = 0
        self._others_went = self._proved = False

    def _set_aside(self, group: _Group) -> None:
        self._aside.append(group)
        self._others_went = self._proved = False

    def _part(self, group: _Group) -> None:
        """They fell together, and only one of them need be at fault."""
        self._aside.remove(group)
        for _, work in group.suspected.values():
            self._set_aside(_Group([work], silent=False))

    def _through(self, sent: Sequence[Work]) -> None:
        alone = self._alone
        if alone is None:
            self._others_went = True
            self._proved |= bool(sent)
            return
        for work in sent:
            alone.suspected.pop(id(work.outputs), None)
        alone.tries = 0
        self._others_went = False
        if not alone.silent:
            # It was the time and not the output: so it may be with all that were set aside since.
            self._aside = [group for group in self._aside if group.silent or group.tries]

    def _failed_alone(self, group: _Group, failed: Sequence[Stuck]) -> list[Stuck]:
        """Said of them once it was so twice, with others in between; another one is next."""
        group.tries += self._proved
        self._others_went = self._proved = False
        self._aside.remove(group)
        if group.tries >= TRIES:
            return list(failed)
        self._aside.append(group)
        return []


def without(
    claims: Iterable[Work], outputs: Collection[int], *, not_in: bool = False
) -> list[Work]:
    """Claims of one partition without these outputs (or all others), and what is behind in a lane.

    The lane has gone on since: its later outputs may not appear before the earlier ones.
    """
    left, waiting = [], set()
    for work in claims:
        lane = work.partition.lanes.key_of(work.record)
        if (id(work.outputs) in outputs) != not_in or lane in waiting:
            waiting.add(lane)
        else:
            left.append(work)
    return left


def _more(due: Sequence[Partition], sent: Sequence[Work]) -> bool:
    """Others wait: outputs that were not in this transaction, or records that have none."""
    inside = {id(work.outputs) for work in sent}
    return any(id(work.outputs) not in inside for one in due for work in one.commit.claims)
