"""Perform the effects of the engine. All of it runs inside the door, so nothing here may wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perkey.core import effects as fx
from perkey.kafka.clientlog import Sparse
from perkey.runtime.logs import event
from perkey.runtime.member.committing import Committer
from perkey.runtime.member.group_membership import GroupMembership
from perkey.runtime.member.member_config import MemberConfig
from perkey.runtime.member.outputs import Outputs
from perkey.runtime.member.refetching import Refetcher
from perkey.runtime.member.run_log import RunLog
from perkey.runtime.member.transactor import Transactor


class Performer:
    """Turns each effect into a call of the responsible part."""

    def __init__(
        self,
        membership: GroupMembership,
        config: MemberConfig,
        outputs: Outputs,
        committer: Committer,
        run_log: RunLog,
        refetcher: Refetcher,
        *,
        served: Callable[[], None],
        drained: Callable[[], None],
    ) -> None:
        """`served`: outputs have answers. `drained`: nothing remains, so the member leaves."""
        self._membership = membership
        self._config = config
        self._outputs = outputs
        self._served = served
        self._on_drained = drained
        #: with exactly_once; set before the group is joined
        self.transactor: Transactor | None = None
        #: used inside the door only, like the following fields
        self._finished: list[fx.Finished] = []
        self._sparse = Sparse()
        self._do: dict[type, Callable[[Any], None]] = {
            fx.Start: self._start,
            fx.Send: lambda effect: outputs.send(effect.work, effect.outputs),
            fx.SendDeadLetter: lambda effect: outputs.send_dead_letter(
                effect.work, effect.topic, effect.error
            ),
            fx.AskExhausted: lambda effect: membership.callbacks.call(self._decide, effect),
            fx.CommitOffsets: committer.plan,
            fx.Transact: self._transact,
            fx.ReadCommitted: lambda effect: membership.background(
                lambda: committer.read_back(effect.partitions)
            ),
            fx.PauseIntake: lambda effect: membership.on_poll_thread(
                lambda: membership.consumer.pause([part.where for part in effect.partitions])
            ),
            fx.ResumeIntake: lambda effect: membership.on_poll_thread(
                lambda: membership.consumer.resume([part.where for part in effect.partitions])
            ),
            fx.Refetch: refetcher.ask,
            fx.Finished: self._finished.append,
            fx.CommitsStored: lambda effect: membership.callbacks.call(
                config.on_commit, effect.committed
            ),
            fx.Answered: self._answered,
            fx.Note: self._note,
            fx.Troubled: run_log.trouble,
            fx.Drained: self._drained,
            fx.Fatal: lambda effect: membership.fail(effect.reason, effect.error),
        }

    def perform(self, effects: list[fx.Effect]) -> None:
        """Do all of these, in order."""
        for effect in effects:
            self._do[type(effect)](effect)
        if self._outputs.answered:  # refused immediately, or stored already
            self._served()
        if self._finished:
            finished = self._finished.copy()
            self._finished.clear()
            self._config.on_finished(finished)

    def _start(self, effect: fx.Start) -> None:
        executor = self._membership.executors[effect.handler]
        if effect.together:
            executor.start_batch(effect.works)
        else:
            executor.start(effect.works)

    def _transact(self, effect: fx.Transact) -> None:
        assert self.transactor is not None
        self.transactor.begin(effect)

    def _answered(self, effect: fx.Answered) -> None:
        action, reason = effect.command.action, effect.command.reason
        for row in effect.rows:
            event("info", "command", action=action, reason=reason, **row._asdict())
        for listener in tuple(self._membership.answered):
            listener(effect)

    def _decide(self, effect: fx.AskExhausted) -> None:
        """On the callbacks' thread: call the user's function, behind the calls that wait there."""
        assert self._config.decide is not None
        answer = self._config.decide(effect)
        self._membership.door.post(lambda engine, now: engine.decided(now, [answer]))

    def _note(self, effect: fx.Note) -> None:
        # There may be thousands, such as parked records: one line per ten seconds.
        left_out = self._sparse.left_out(effect.event)
        if left_out is not None:
            omitted = {"alike": left_out} if left_out else {}
            event(effect.level, effect.event, **(effect.fields | omitted))

    def _drained(self, _effect: fx.Drained) -> None:
        self._on_drained()
        self._membership.on_poll_thread(lambda: None)
