"""What the engine asks for, done. All of it runs inside the door, so none of it may wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.core import effects as fx
from weft.kafka.clientlog import Sparse
from weft.runtime.logs import event

if TYPE_CHECKING:
    from weft.runtime.member import Member

_log = logging.getLogger("weft")


class Performer:
    """Turns each effect into a call of the part that does it."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._finished: list[fx.Finished] = []
        self._sparse = Sparse()
        self._do: dict[type, Callable[[Any], None]] = {
            fx.Start: self._start,
            fx.StartBatch: self._start_batch,
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
            fx.Drained: self._drained,
            fx.Fatal: self._fatal,
        }

    def perform(self, effects: list[fx.Effect]) -> None:
        """Do all of these, in order."""
        for effect in effects:
            self._do[type(effect)](effect)
        if self._member.outputs.settled:  # refused at once, or stored before it was asked for
            self._member.outputs_served()
        if self._finished:
            finished, self._finished = self._finished, []
            self._member.config.on_finished(finished)

    def _start(self, effect: fx.Start) -> None:
        self._member.executors[effect.handler].start(effect.works)

    def _start_batch(self, effect: fx.StartBatch) -> None:
        self._member.executors[effect.handler].start_batch(effect.works)

    def _cancel(self, effect: fx.Cancel) -> None:
        self._member.executors[effect.handler].cancel(effect.work, expired=True)

    def _send(self, effect: fx.Send) -> None:
        self._member.outputs.send(effect.work, effect.outputs)

    def _send_dead_letter(self, effect: fx.SendDeadLetter) -> None:
        self._member.outputs.send_dead_letter(effect.work, effect.topic, effect.error)

    def _commit(self, effect: fx.CommitOffsets) -> None:
        self._member.committer.plan(effect)

    def _transact(self, effect: fx.Transact) -> None:
        assert self._member.transactor is not None
        self._member.transactor.begin(effect)

    def _read_committed(self, effect: fx.ReadCommitted) -> None:
        self._member.background(lambda: self._member.committer.read_back(effect.partitions))

    def _pause(self, effect: fx.PauseIntake) -> None:
        where = [(p.topic, p.number) for p in effect.partitions]
        self._member.on_poll_thread(lambda: self._member.consumer.pause(where))

    def _resume(self, effect: fx.ResumeIntake) -> None:
        where = [(p.topic, p.number) for p in effect.partitions]
        self._member.on_poll_thread(lambda: self._member.consumer.resume(where))

    def _finish(self, effect: fx.Finished) -> None:
        self._finished.append(effect)

    def _stored(self, effect: fx.CommitsStored) -> None:
        self._member.callbacks.call(self._member.config.on_commit, effect.committed)

    def _note(self, effect: fx.Note) -> None:
        # Of records by the thousand, as those that are parked, one line in ten seconds.
        left_out = self._sparse.left_out(effect.event)
        if left_out is not None:
            more = {"alike": left_out} if left_out else {}
            event(_log, effect.level, effect.event, **effect.fields, **more)

    def _drained(self, _effect: fx.Drained) -> None:
        self._member.leaving = True
        self._member.on_poll_thread(lambda: None)

    def _fatal(self, effect: fx.Fatal) -> None:
        self._member.fail(effect.reason, effect.error)
