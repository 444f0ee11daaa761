"""How much goes into one transaction, and the search for the output that makes it fail.

`Portions` decides what the next transaction takes: claims in the order in which they were handled,
so the outputs of a lane stay in order. Records that share outputs (a batch) go together or wait
together.

An output that the broker refuses by name fails its record's attempt (`Endings.outputs_refused`);
the others are produced again without it. An output that makes a transaction fail without being
named is searched for (`Culprits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.gates import TRANSACTION

if TYPE_CHECKING:
    from perkey.core.engine_state import EngineState
    from perkey.core.events import Stuck
    from perkey.core.partition import Partition
    from perkey.core.work import Work
    from perkey.types import ErrorInfo

HELD_SHARE = 0.25  # of `buffer_bytes`: nothing starts while so much waits for a transaction
UNSPLIT_TRIES = 2  # aborts in a row before it is split: most causes are temporary
TRIES = 2  # an output fails after this many failures alone, while others succeed in between


Plan = Callable[["Partition", Sequence["Work"]], fx.PlanItem | None]


class Portions:
    """The size of transactions: smaller after one that timed out, then slowly larger again."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._limits = state.limits
        self.most_bytes = state.limits.transaction_bytes
        #: bytes of all outputs that wait for a transaction
        self.held_bytes = 0
        self._sent_bytes = 0
        self._turn = 0
        #: partition -> number of the last transaction in which it was first
        self._led: dict[Partition, int] = {}
        self.culprits = Culprits()

    # -- the outputs that wait --------------------------------------------------------------------

    def hold(self, work: Work, size_bytes: int) -> None:
        """The record's outputs wait for a transaction."""
        work.partition.hold_outputs(work, size_bytes)
        self._changed(size_bytes)

    def drop(self, work: Work) -> None:
        """They are stored, or refused."""
        self._changed(-work.partition.drop_outputs(work))

    def forget(self, partition: Partition) -> None:
        """Its epoch has ended, and its outputs with it."""
        for work in list(partition.outputs):
            self.drop(work)

    def _changed(self, more_bytes: int) -> None:
        """Start no more calls while too many outputs wait."""
        most = self._limits.buffer_bytes * HELD_SHARE
        before, self.held_bytes = self.held_bytes, self.held_bytes + more_bytes
        full = self.held_bytes >= most
        if full != (before >= most):
            for handler in self._state.handlers:
                if handler.exact:
                    handler.gate.put(TRANSACTION, on=full)

    # -- the next transaction ---------------------------------------------------------------------

    def transaction(self, due: Sequence[Partition], plan: Plan) -> list[fx.PlanItem]:
        """What the next transaction takes of these partitions."""
        portions = zip(due, self.claims(due), strict=True)
        return self._untorn([plan(partition, claims) for partition, claims in portions], plan)

    def _untorn(self, plans: Sequence[fx.PlanItem | None], plan: Plan) -> list[fx.PlanItem]:
        """Records that share outputs go into one transaction, or all of them wait."""
        items = [item for item in plans if item is not None]
        torn = self._torn(items)
        if not any(id(work.outputs) in torn for item in items for work in item.claims if torn):
            narrow = self.culprits.narrow and any(item.claims for item in items)
            return [i for i in items if i.claims or (i.partition.commit.dirty and not narrow)]
        less = [plan(item.partition, without(item.claims, torn)) for item in items]
        return self._untorn(less, plan)

    def _torn(self, items: Sequence[fx.PlanItem]) -> set[int]:
        """Ids of outputs whose records are not all in these plans; only batches share outputs."""
        if not any(handler.batched for handler in self._state.handlers):
            return set()
        inside = {id(work) for item in items for work in item.claims}
        return {
            id(work.outputs)
            for partition in self._state.claiming
            for work in partition.commit.claims
            if work.outputs is not None and id(work) not in inside
        }

    def claims(self, due: Sequence[Partition]) -> list[list[Work]]:
        """For each of these partitions, the claims of the next transaction.

        The first ones, in the order in which they were handled, so lanes stay in order.
        """
        allowed = self.culprits.choose(due)
        sending = [owner for owner in due if owner.outputs or _letters_bytes(owner.commit.claims)]
        share = self.most_bytes // max(1, len(sending))
        chosen: dict[Partition, list[Work]] = {}
        self._sent_bytes = 0
        for partition in self._in_turn(due):
            claims = self.culprits.first(allowed[partition])
            chosen[partition], taken = self._first(partition, claims, share)
            self._sent_bytes += taken
        return [chosen[partition] for partition in due]

    def _in_turn(self, due: Sequence[Partition]) -> list[Partition]:
        """Each partition comes first at times, and then takes at least one claim.

        The next is the one that was not first for longest: with a mere rotation, suspects, which
        take every other turn, could take all turns of one partition.
        """
        if not due:
            return []
        self._turn += 1
        begin = min(range(len(due)), key=lambda place: self._led.get(due[place], 0))
        if not self.culprits.alone:
            self._led = {
                partition: at
                for partition, at in self._led.items()
                if partition.state != states.CLOSED
            }
            self._led[due[begin]] = self._turn
        return [*due[begin:], *due[:begin]]

    def _first(
        self, partition: Partition, claims: list[Work], share: int
    ) -> tuple[list[Work], int]:
        """The first claims of these within its share, and their bytes."""
        taken = 0
        if claims is partition.commit.claims:
            whole = partition.outputs_bytes + _letters_bytes(claims)
            if whole <= share:
                return claims, whole
        for end, work in enumerate(claims):
            size = partition.outputs.get(work, 0) or _letters_bytes([work])
            # At least one in total, and all records that share a batch's outputs.
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
        """The transaction with the outputs `sent` is over; returns those that have failed.

        `slow`: it timed out. `reason`: it was aborted because of its content, without a name.
        """
        if committed and 2 * self._sent_bytes >= self.most_bytes:
            larger_bytes = self.most_bytes + self.most_bytes // 8 + 1
            self.most_bytes = min(self._limits.transaction_bytes, larger_bytes)
        # If nothing at all succeeded, the size was not the reason.
        elif slow and not committed and len(stuck) < max(1, len(sent)):
            self.most_bytes = max(1, min(self.most_bytes, self._sent_bytes) // 2)
        return self.culprits.ended(sent, stuck, committed=committed, reason=reason)


def _letters_bytes(claims: Iterable[Work]) -> int:
    """Bytes of their dead letters: their records are in the buffers, not in this budget."""
    return sum(
        work.size
        for work in claims
        if work.failure is not None and isinstance(work.outputs, fx.SendDeadLetter)
    )


class _Group:
    """Outputs that are sent alone together, by identity: a batch's records share theirs."""

    __slots__ = ("silent", "suspected", "tries")

    def __init__(self, works: Sequence[Work], *, silent: bool) -> None:
        #: id of the outputs -> one record that waits with them, and the outputs
        self.suspected: dict[int, tuple[Work, Any]] = {}
        #: True: they were not acknowledged; False: a transaction was aborted with them
        self.silent = silent
        #: how often they failed alone, while others succeeded before
        self.tries = 0
        self.add(works)

    def add(self, works: Sequence[Work]) -> None:
        self.suspected.update({id(work.outputs): (work, work.outputs) for work in works})


class Culprits:
    """The bisecting search for the output that makes transactions fail.

    Two things make one fail without naming an output. The broker aborts it because of its content:
    then it is sent in halves, down to one output (`most`), until the half without the culprit
    succeeds. Or it times out, for example because a partition without a leader acknowledges
    nothing: then the unacknowledged outputs are suspected if others were acknowledged.

    Both end in the same proof. Suspects are set aside with what is behind them in their lanes until
    the others are through; then they are sent alone. Those that fail alone twice, while others
    succeed in between, have failed an attempt. Without others nothing is proved: the broker is
    away.
    """

    def __init__(self) -> None:
        #: limit of outputs, all of one batch counted once; None for no limit
        self.most: int | None = None
        self._left = 0
        #: unexplained aborts in a row, and outputs in them that have not succeeded since
        self._aborts = 0
        self._fell: dict[int, tuple[Work, Any]] = {}
        self._aside: list[_Group] = []
        #: the current transaction takes only these
        self._alone: _Group | None = None
        #: other outputs were sent since, and succeeded
        self._others_went = self._proved = False
        self._due: Sequence[Partition] = ()

    @property
    def alone(self) -> bool:
        """Whether the current transaction takes suspects only."""
        return self._alone is not None

    @property
    def narrow(self) -> bool:
        """Whether a culprit is searched for: only necessary claims are sent along."""
        return self.alone or self.most is not None

    # -- choosing --------------------------------------------------------------------------------

    def choose(self, due: Sequence[Partition]) -> dict[Partition, list[Work]]:
        """The claims for the next transaction: all but suspects, or some of these alone."""
        self._alone, self._due, self._left = None, due, self.most or 0
        for group in self._aside:
            group.suspected = _waiting(group.suspected)
        self._aside = [group for group in self._aside if group.suspected]
        if not self._aside:
            return {partition: partition.commit.claims for partition in due}
        aside = {suspect for group in self._aside for suspect in group.suspected}
        others = {partition: without(partition.commit.claims, aside) for partition in due}
        if not self._others_went and any(others.values()):
            return others
        # They may be behind others in their lanes that are not sent yet: a portion at a time.
        # The first group that can go: its partition may have to wait after a refused commit.
        for group in self._aside:
            chosen = {p: without(p.commit.claims, group.suspected, not_in=True) for p in due}
            if any(chosen.values()):
                self._alone = group
                return chosen
        return others

    def first(self, claims: list[Work]) -> list[Work]:
        """As many of one partition's claims as may go; those without outputs always go."""
        if self.alone or self.most is None or not claims:
            return claims
        if self._left <= 0:
            return []
        outputs = 0
        for end, work in enumerate(claims):
            mate = end > 0 and work.outputs is claims[end - 1].outputs
            if work.outputs is None or mate:
                continue
            if outputs == self._left:
                self._left = 0
                return claims[:end]
            outputs += 1
        self._left -= max(1, outputs)  # a partition's offset alone may be what is refused
        return claims

    # -- how it ended ----------------------------------------------------------------------------

    def ended(
        self,
        sent: Sequence[Work],
        stuck: Sequence[Stuck],
        *,
        committed: bool,
        reason: ErrorInfo | None = None,
    ) -> list[Stuck]:
        """The transaction with these outputs is over; returns those that have failed an attempt.

        `reason`: it was aborted because of its content, and no output was named.
        """
        due, self._due = self._due, ()
        alone = self._alone
        for work, _ in stuck:
            self._fell.pop(id(work), None)
        if committed:
            self._through(sent)
        elif reason is not None and not stuck:
            if alone is None:
                self._aborted(due, sent)
            elif len(alone.suspected) > 1:  # only one of them may be at fault
                self._aside.remove(alone)
                for work, _ in alone.suspected.values():
                    self._set_aside(_Group([work], silent=False))
            else:
                return self._failed_alone(alone, [(work, reason) for work in sent])
        elif stuck and alone is not None and len(stuck) == len(sent):
            return self._failed_alone(alone, stuck)
        elif stuck and (len(stuck) < len(sent) or _more(due, sent)):
            self._hold([work for work, _ in stuck])
        return []

    def _aborted(self, due: Sequence[Partition], sent: Sequence[Work]) -> None:
        """An unexplained abort: tried unchanged, then in halves; a single output is suspected."""
        self._fell |= {id(work): (work, work.outputs) for work in sent}
        self._aborts += 1
        if self._aborts < UNSPLIT_TRIES:
            return
        outputs = len({id(work.outputs) for work in sent})
        single = self.most == 1 and outputs == 1
        self.most = max(1, outputs // 2)
        if single:
            self._accuse(due, sent)

    def _accuse(self, due: Sequence[Partition], sent: Sequence[Work]) -> bool:
        """Nothing else was in the transaction; False if no others wait, to prove it."""
        if not _more(due, sent):
            return False
        self._set_aside(_Group(sent, silent=False))
        for work in sent:
            self._fell.pop(id(work), None)
        return True

    def _through(self, sent: Sequence[Work]) -> None:
        alone = self._alone
        if alone is None:
            if self._aborts:
                # Raise the limit when outputs of a failed one succeed; others prove nothing.
                before = len(self._fell)
                for work in sent:
                    self._fell.pop(id(work), None)
                through = len(self._fell) < before
                self._fell = _waiting(self._fell)
                if not self._fell:
                    self.most, self._aborts = None, 0
                elif through and self.most is not None:
                    self.most *= 2
            self._others_went = True
            self._proved |= bool(sent)
            return
        for work in sent:
            alone.suspected.pop(id(work.outputs), None)
        alone.tries = 0
        self._others_went = False
        if not alone.silent:
            # It was the time and not the output; the same may be true of all set aside since.
            self._aside = [group for group in self._aside if group.silent or group.tries]

    def _hold(self, works: Sequence[Work]) -> None:
        """These were not acknowledged; they are sent alone together, as each takes a time-out."""
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

    def _failed_alone(self, group: _Group, failed: Sequence[Stuck]) -> list[Stuck]:
        """They failed if this is the second time, with others in between; then try the next."""
        group.tries += self._proved
        self._others_went = self._proved = False
        self._aside.remove(group)
        if group.tries >= TRIES:
            return list(failed)
        self._aside.append(group)
        return []


def _waiting(known: dict[int, tuple[Work, Any]]) -> dict[int, tuple[Work, Any]]:
    """Without those that are no longer claims; most likely their partition was revoked."""
    return {
        one: (work, outputs)
        for one, (work, outputs) in known.items()
        if work.state == states.PENDING and work.outputs is outputs
    }


def without(
    claims: Iterable[Work], outputs: Collection[int], *, not_in: bool = False
) -> list[Work]:
    """Claims of one partition without these outputs (or all others), and without what follows them.

    The lanes have continued since: later outputs may not appear before earlier ones.
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
    """Whether others wait: outputs that were not in this transaction, or records without any."""
    inside = {id(work.outputs) for work in sent}
    return any(id(work.outputs) not in inside for item in due for work in item.commit.claims)
