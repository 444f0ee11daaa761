"""Engines that change something twice when two owners obey one command (S18)."""

from __future__ import annotations

from typing import Any

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core.commands import Commands
from perkey.core.events import Command
from perkey.core.work import Work
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Commands, "_skip", "S18", first_seed=profiles.OWNERS)
def _skipped_before_it_is_stored(original: Any) -> Any:
    def skip(self: Commands, partition: Any, command: Any, work: Work) -> Any:
        waiting = partition.commit.answers
        row = original(self, partition, command, work)
        return row if row is not None else waiting.pop()[1]

    return skip


@mutant(Commands, "_record", "S18", first_seed=profiles.OWNERS)
def _the_next_owner_answers_as_the_one_before(original: Any) -> Any:
    words = {"hold": "held", "release": "released", "retry": "retried", "skip": "skipped"}

    def record(self: Commands, partition: Any, command: Any, offset: int) -> Any:
        row: fx.Obeyed | None = original(self, partition, command, offset)
        done = row is not None and row.outcome == "unchanged" and "done" in row.detail
        return row._replace(outcome=words[command.action]) if row and done else row

    return record


@mutant(Commands, "_proceed", "S18", first_seed=profiles.OWNERS)
def _each_owner_charges_an_attempt(original: Any) -> Any:
    def proceed(self: Commands, partition: Any, command: Any, work: Work) -> Any:
        row = original(self, partition, command, work)
        if work.failure is not None and row.outcome == "retried":
            work.failure.attempts += 1
        return row

    return proceed


@mutant(Commands, "_in", "S13", first_seed=profiles.OWNERS + 1_841)
def _a_refused_release_ends_holds_to_come(original: Any) -> Any:
    def obey(self: Commands, partition: Any, command: Command) -> Any:
        row = original(self, partition, command)
        ends = command.target.offset is None and command.action in ("release", "retry")
        if ends and row is not None and row.outcome == "refused":
            known = partition.memory._known  # noqa: SLF001  # no method ends a hold and nothing else
            for offset, one in known.items():
                if isinstance(one, Remembered) and one.held:
                    known[offset] = one._replace(held=False, until_s=None)
        return row

    return obey
