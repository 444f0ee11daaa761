"""Execute the effects of the engine. All of it runs inside the door, so none of it may wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from weft.core import effects as fx
from weft.kafka.clientlog import Sparse
from weft.runtime.logs import event
from weft.runtime.member.committing import Committer
from weft.runtime.member.member_config import MemberConfig
from weft.runtime.member.outputs import Outputs
from weft.runtime.member.seat import Seat
from weft.runtime.member.telling import Telling
from weft.runtime.member.transactions import Transactor

_log = logging.getLogger("weft")


class Performer:
    """Turns each effect into a call of the part that does it."""

    def __init__(
        self,
        seat: Seat,
        config: MemberConfig,
        outputs: Outputs,
        committer: Committer,
        telling: Telling,
        *,
        served: Callable[[], None],
        drained: Callable[[], None],
    ) -> None:
        """`served`: outputs have answers. `drained`: nothing is left, the member is to leave."""
        self._seat = seat
        self._config = config
        self._outputs = outputs
        self._committer = committer
        self._served = served
        self._on_drained = drained
        #: with exactly_once; set before the group is joined
        self.transactor: Transactor | None = None
        #: used inside the door only, as all that follows
        self._finished: list[fx.Finished] = []
        self._sparse = Sparse()
        self._do: dict[type, Callable[[Any], None]] = {
            fx.Start: self._start,
            fx.Cancel: self._cancel,
            fx.Send: self._send,
            fx.SendDeadLetter: self._send_dead_letter,
            fx.CommitOffsets: self._commit,
            fx.Transact: self._transact,
            fx.ReadCommitted: self._read_committed,
            fx.PauseIntake: self._pause,
            fx.ResumeIntake: self._resume,
            fx.Finished: self._finish,
            fx.CommitsStored: self._stored,
            fx.Note: self._note,
            fx.Troubled: telling.trouble,
            fx.Drained: self._drained,
            fx.Fatal: self._fatal,
        }

    def perform(self, effects: list[fx.Effect]) -> None:
        """Do all of these, in order."""
        for effect in effects:
            self._do[type(effect)](effect)
        if self._outputs.answered:  # refused at once, or stored before it was asked for
            self._served()
        if self._finished:
            finished, self._finished = self._finished, []
            self._config.on_finished(finished)

    def _start(self, effect: fx.Start) -> None:
        executor = self._seat.executors[effect.handler]
        if effect.together:
            executor.start_batch(effect.works)
        else:
            executor.start(effect.works)

    def _cancel(self, effect: fx.Cancel) -> None:
        self._seat.executors[effect.handler].cancel(effect.work, expired=True)

    def _send(self, effect: fx.Send) -> None:
        self._outputs.send(effect.work, effect.outputs)

    def _send_dead_letter(self, effect: fx.SendDeadLetter) -> None:
        self._outputs.send_dead_letter(effect.work, effect.topic, effect.error)

    def _commit(self, effect: fx.CommitOffsets) -> None:
        self._committer.plan(effect)

    def _transact(self, effect: fx.Transact) -> None:
        assert self.transactor is not None
        self.transactor.begin(effect)

    def _read_committed(self, effect: fx.ReadCommitted) -> None:
        self._seat.background(lambda: self._committer.read_back(effect.partitions))

    def _pause(self, effect: fx.PauseIntake) -> None:
        where = [(p.topic, p.number) for p in effect.partitions]
        self._seat.on_poll_thread(lambda: self._seat.consumer.pause(where))

    def _resume(self, effect: fx.ResumeIntake) -> None:
        where = [(p.topic, p.number) for p in effect.partitions]
        self._seat.on_poll_thread(lambda: self._seat.consumer.resume(where))

    def _finish(self, effect: fx.Finished) -> None:
        self._finished.append(effect)

    def _stored(self, effect: fx.CommitsStored) -> None:
        self._seat.callbacks.call(self._config.on_commit, effect.committed)

    def _note(self, effect: fx.Note) -> None:
        # Of records by the thousand, as those that are parked, one line in ten seconds.
        left_out = self._sparse.left_out(effect.event)
        if left_out is not None:
            more = {"alike": left_out} if left_out else {}
            event(_log, effect.level, effect.event, **(effect.fields | more))

    def _drained(self, _effect: fx.Drained) -> None:
        self._on_drained()
        self._seat.on_poll_thread(lambda: None)

    def _fatal(self, effect: fx.Fatal) -> None:
        self._seat.fail(effect.reason, effect.error)
