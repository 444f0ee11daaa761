"""Exactly once: outputs and offsets go into one transaction, and are seen together or not at all.

A record that is handled is PENDING: a claim with its outputs. Its lane continues immediately; a
transaction takes the claims since the last one, in the order in which they were handled: a lane's
outputs keep theirs. Records that share outputs (a batch) go together or wait together.

What the broker refuses by name fails its record's attempt (`Endings.outputs_refused`); the others
are produced again without it. What holds a transaction up without being named is searched for
(`Culprits`). `Portions` decides how much goes into one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from weft.core import again, states
from weft.core import effects as fx
from weft.core.delivery import AtLeastOnce, complete
from weft.core.partition import Partition
from weft.core.work import Work
from weft.types import ErrorInfo

if TYPE_CHECKING:
    from weft.core.delivery import MostClaims
    from weft.core.events import Stuck
    from weft.core.spec import Limits

HELD_SHARE = 0.25  # of `buffer_bytes`: with so much waiting for a transaction nothing starts
UNSPLIT_TRIES = 2  # aborts in a row before it is split: most of what aborts one passes
TRIES = 2  # so often an output fails alone, while others get through in between

Plan = Callable[[Partition, Sequence[Work]], fx.PlanItem | None]


class ExactlyOnce(AtLeastOnce):
    """Calls as at least once; keeps what is handled for the next transaction."""

    def send(self, work: Work, outputs: Any) -> None:
        """They wait for the transaction, charged to the budget of outputs."""
        work.outputs = outputs
        size_bytes = self._state.size_of(outputs)
        if size_bytes:
            work.partition.hold_outputs(work, size_bytes)
        self._handled(work)

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """So does a dead letter."""
        work.outputs = letter
        self._handled(work)

    def _handled(self, work: Work) -> None:
        self._state.finished_since_commit += 1
        self.handled(work)

    def handled(self, work: Work, *, report: bool = True) -> None:
        """Handled: it waits for a transaction, and its lane continues."""
        work.state = states.PENDING  # watched by the simulator: this is a hot path
        self._state.claim(work)
        if work.failure is None or not work.failure.left_lane:
            work.partition.release(work)
        else:
            work.partition.lanes.discharge(work)

    def transaction(self, due: Sequence[Partition], plan: Plan) -> list[fx.PlanItem]:
        """What the next one takes of these partitions."""
        portions = zip(due, self._state.portions.claims(due), strict=True)
        return self._untorn([plan(partition, claims) for partition, claims in portions], plan)

    def _untorn(self, plans: Sequence[fx.PlanItem | None], plan: Plan) -> list[fx.PlanItem]:
        """Records that share outputs go into one transaction, or all of them wait."""
        items = [item for item in plans if item is not None]
        torn = self._torn(items)
        if not any(id(work.outputs) in torn for item in items for work in item.claims if torn):
            narrow = self._state.portions.culprits.narrow and any(item.claims for item in items)
            return [i for i in items if i.claims or (i.partition.commit.dirty and not narrow)]
        less = [plan(item.partition, without(item.claims, torn)) for item in items]
        return self._untorn(less, plan)

    def _torn(self, items: Sequence[fx.PlanItem]) -> set[int]:
        """Outputs of records that are not all in these plans; only batches share outputs."""
        if not any(handler.batched for handler in self._state.handlers):
            return set()
        inside = {id(work) for item in items for work in item.claims}
        return {
            id(work.outputs)
            for partition in self._state.claiming
            for work in partition.commit.claims
            if work.outputs is not None and id(work) not in inside
        }

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """The transaction is committed: done."""
        plain = 0
        for work in claims:
            if partition.again and work in partition.again:
                again.handled(self._state, work)
                self._state.report(work, "done", None, work.outputs or ())
                continue
            partition.pending_done(work)
            if work.failure is None and not self._state.reporting:
                plain += 1
            else:
                complete(self._state, work)
        partition.handler.done += plain

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """Fewer claims: an output that was committed must never be forgotten."""
        return most()


class Portions:
    """What one transaction takes: less after one that ran out of time, slowly more again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.most_bytes = limits.transaction_bytes
        self._sent_bytes = 0
        self._turn = 0
        #: when each partition was the first of a transaction, by the number of that
        self._led: dict[Partition, int] = {}
        self.culprits = Culprits()

    def full(self, partitions: Iterable[Partition]) -> bool:
        """So many outputs wait that no call may make more of them."""
        held = sum([partition.outputs_bytes for partition in partitions])
        return held >= self._limits.buffer_bytes * HELD_SHARE

    def claims(self, due: Sequence[Partition]) -> list[list[Work]]:
        """For each of these partitions, what goes into the next transaction.

        The first ones, in the order in which they were handled: lanes keep theirs.
        """
        allowed = self.culprits.choose(due)
        sending = [one for one in due if one.outputs or _letters_bytes(one.commit.claims)]
        share = self.most_bytes // max(1, len(sending))
        chosen: dict[Partition, list[Work]] = {}
        self._sent_bytes = 0
        for partition in self._in_turn(due):
            claims = self.culprits.first(allowed[partition])
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
        if not self.culprits.alone:
            self._led = {one: at for one, at in self._led.items() if one.state != states.CLOSED}
            self._led[due[begin]] = self._turn
        return [*due[begin:], *due[:begin]]

    def _first(
        self, partition: Partition, claims: list[Work], share: int
    ) -> tuple[list[Work], int]:
        """Of these as much as is its share, and how many bytes that is."""
        taken = 0
        if claims is partition.commit.claims:
            whole = partition.outputs_bytes + _letters_bytes(claims)
            if whole <= share:
                return claims, whole
        for end, work in enumerate(claims):
            size = partition.outputs.get(work, 0) or _letters_bytes([work])
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
        if committed and 2 * self._sent_bytes >= self.most_bytes:
            more = self.most_bytes + self.most_bytes // 8 + 1
            self.most_bytes = min(self._limits.transaction_bytes, more)
        # Where nothing at all got through it was not too much.
        elif slow and not committed and len(stuck) < max(1, len(sent)):
            self.most_bytes = max(1, min(self.most_bytes, self._sent_bytes) // 2)
        return self.culprits.ended(sent, stuck, committed=committed, reason=reason)


def _letters_bytes(claims: Iterable[Work]) -> int:
    """Their dead letters: their records, which are in the buffers and so in no other budget."""
    return sum(
        work.size
        for work in claims
        if work.failure is not None and isinstance(work.outputs, fx.SendDeadLetter)
    )


class _Group:
    """Outputs that go alone together, by identity: a batch's records share theirs."""

    __slots__ = ("silent", "suspected", "tries")

    def __init__(self, works: Sequence[Work], *, silent: bool) -> None:
        #: id of the outputs -> one record that waits with them, and them
        self.suspected: dict[int, tuple[Work, Any]] = {}
        #: they were not acknowledged; else it is one that a transaction was aborted with
        self.silent = silent
        #: so often they failed alone, with others that got through before
        self.tries = 0
        self.add(works)

    def add(self, works: Sequence[Work]) -> None:
        self.suspected.update({id(work.outputs): (work, work.outputs) for work in works})


class Culprits:
    """The bisecting search for the output that no transaction gets through with.

    Two things hold a transaction up without naming an output. The broker aborts it for something
    that is in it: then it is sent in halves, down to one output (`most`), until the half without
    the culprit gets through. Or it runs out of time, as a partition without a leader acknowledges
    nothing: then what was not acknowledged where other outputs were is suspected.

    Both end in the same proof. Suspects are set aside with what is behind them in their lanes,
    until the others are through; then they go alone. Those that fail alone twice, while others get
    through in between, have failed an attempt. Without others nothing is proved: the broker is
    away.
    """

    def __init__(self) -> None:
        #: so many outputs at most, all of one batch counted once; None for all
        self.most: int | None = None
        self._left = 0
        #: aborts in a row for which nothing was named, and what fell with them and is not through
        self._aborts = 0
        self._fell: dict[int, tuple[Work, Any]] = {}
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

    @property
    def narrow(self) -> bool:
        """A culprit is searched for: nothing goes along that need not."""
        return self.alone or self.most is not None

    # -- what goes -------------------------------------------------------------------------------

    def choose(self, due: Sequence[Partition]) -> dict[Partition, list[Work]]:
        """What may go into the next transaction: all but the suspects, or some of these alone."""
        self._alone, self._due, self._left = None, due, self.most or 0
        for group in self._aside:
            group.suspected = _waiting(group.suspected)
        self._aside = [group for group in self._aside if group.suspected]
        if not self._aside:
            return {partition: partition.commit.claims for partition in due}
        aside = {one for group in self._aside for one in group.suspected}
        others = {partition: without(partition.commit.claims, aside) for partition in due}
        if not self._others_went and any(others.values()):
            return others
        # They may stand behind others in their lanes, which did not go yet: a portion at a time.
        # The first group that can go: its partition may wait after a commit that was refused.
        for group in self._aside:
            chosen = {p: without(p.commit.claims, group.suspected, not_in=True) for p in due}
            if any(chosen.values()):
                self._alone = group
                return chosen
        return others

    def first(self, claims: list[Work]) -> list[Work]:
        """Of one partition's as many as may go; what has no outputs goes along."""
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
        """The transaction with these outputs is over; who has failed an attempt by it.

        `reason`: it was aborted for what is in it, and nothing was named.
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
            elif len(alone.suspected) > 1:  # only one of them need be at fault
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
        """With nothing named: tried as it is, then in halves; the only output is suspected."""
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
        """Nothing else was in the transaction; False where no others wait, to prove it."""
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
                self._widen(sent)
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

    def _widen(self, sent: Sequence[Work]) -> None:
        """More again where some that fell are through; others prove nothing of them."""
        before = len(self._fell)
        for work in sent:
            self._fell.pop(id(work), None)
        through = len(self._fell) < before
        self._fell = _waiting(self._fell)
        if not self._fell:
            self.most, self._aborts = None, 0
        elif through and self.most is not None:
            self.most *= 2

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

    def _failed_alone(self, group: _Group, failed: Sequence[Stuck]) -> list[Stuck]:
        """They have failed once it was so twice, with others in between; another one is next."""
        group.tries += self._proved
        self._others_went = self._proved = False
        self._aside.remove(group)
        if group.tries >= TRIES:
            return list(failed)
        self._aside.append(group)
        return []


def _waiting(known: dict[int, tuple[Work, Any]]) -> dict[int, tuple[Work, Any]]:
    """Without those that went another way: their partition did, most likely."""
    return {
        one: (work, outputs)
        for one, (work, outputs) in known.items()
        if work.state == states.PENDING and work.outputs is outputs
    }


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
