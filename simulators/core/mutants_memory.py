"""Mutants of what is remembered and commanded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.commands import Commands
from perkey.core.commits import Commits
from perkey.core.endings import Endings
from perkey.core.events import Command
from perkey.core.memory import Memory
from perkey.core.partition import Partition
from perkey.core.work import HeldBy, LaneKey, Work
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Memory, "keep", "S12")
def _failures_forgotten(original: Any) -> Any:
    return lambda _self, _work: None


@mutant(Memory, "entries", "S12")
def _one_attempt_less_is_told(original: Any) -> Any:
    def entries(self: Memory, *arguments: Any) -> list[Remembered]:
        told: Sequence[Remembered] = original(self, *arguments)
        return [one._replace(attempts=max(0, one.attempts - 1)) for one in told]

    return entries


@mutant(Memory, "recall", "S3", "S12")
def _what_came_is_not_looked_at(original: Any) -> Any:
    return lambda _self, _offset: None


@mutant(Endings, "_set_release", "S12", first_seed=profiles.COMMANDED)
def _released_immediately(original: Any) -> Any:
    def set_release(self: Endings, work: Work, failure: Any, due: Any = None) -> None:
        original(self, work, failure, due)
        self._state.retries.add(self._state.now, work)

    return set_release


@mutant(Partition, "set_hold", "S13", first_seed=profiles.COMMANDED)
def _held_in_words_only(original: Any) -> Any:
    return lambda _self, _key, _by: None


@mutant(Partition, "set_hold", "L1", "L2", "S1", first_seed=profiles.COMMANDED + 560)
def _a_hold_never_ends(original: Any) -> Any:
    def set_hold(self: Partition, key: LaneKey, by: HeldBy) -> None:
        original(self, key, by._replace(until=by.until + 10_000.0))

    return set_hold


@mutant(Commits, "_answer", "S13", first_seed=profiles.COMMANDED)
def _no_answer_to_a_skip(original: Any) -> Any:
    return lambda _self, _partition, _item: None


@mutant(Commands, "_skip_head", "S12", "S13", "S1", "L2", first_seed=profiles.COMMANDED + 16)
def _skipped_in_words_only(original: Any) -> Any:
    return lambda _self, _partition, _work, _reason: None


@mutant(Endings, "_ask", "S12", first_seed=profiles.DECIDED)
def _tried_again_before_it_is_decided(original: Any) -> Any:
    def ask(self: Endings, work: Work, failure: Any, error: Any) -> None:
        original(self, work, failure, error)
        failure.exhausted_by = ""
        work.partition.lift(work)
        self._state.retries.add(self._state.now, work)
        work.partition.wait(work, states.RETRYING)

    return ask


@mutant(Endings, "decided", "S1", "L2", "L4", first_seed=profiles.DECIDED + 114)
def _what_is_decided_is_not_done(original: Any) -> Any:
    return lambda _self, _answer: None


@mutant(Endings, "decided", "S3", "S12", first_seed=profiles.DECIDED + 834)
def _an_answer_counts_twice(original: Any) -> Any:
    def decided(self: Endings, answer: Any) -> None:
        work = answer.work
        original(self, answer)
        if work.state == states.RETRYING:  # the first answer was `Retry`
            work.partition.lift(work)
            work.partition.wait(work, states.ASKED)
            original(self, answer)

    return decided


@mutant(Commands, "_skip", "S18", first_seed=profiles.REPEATED)
def _skipped_before_it_is_stored(original: Any) -> Any:
    def skip(self: Commands, partition: Any, command: Any, work: Work) -> Any:
        waiting = partition.commit.answers
        row = original(self, partition, command, work)
        return row if row is not None else waiting.pop()[1]

    return skip


@mutant(Commands, "_record", "S18", first_seed=profiles.REPEATED)
def _the_second_answer_is_as_the_first(original: Any) -> Any:
    words = {"hold": "held", "release": "released", "retry": "retried", "skip": "skipped"}

    def record(self: Commands, partition: Any, command: Any, offset: int) -> Any:
        row: fx.Obeyed | None = original(self, partition, command, offset)
        done = row is not None and row.outcome == "unchanged" and "done" in row.detail
        return row._replace(outcome=words[command.action]) if row and done else row

    return record


@mutant(Commands, "_proceed", "S18", first_seed=profiles.REPEATED)
def _a_retry_charges_an_attempt(original: Any) -> Any:
    def proceed(self: Commands, partition: Any, command: Any, work: Work) -> Any:
        row = original(self, partition, command, work)
        if work.failure is not None and row.outcome == "retried":
            work.failure.attempts += 1
        return row

    return proceed


@mutant(Commands, "_in", "S13", first_seed=profiles.REPEATED + 1_363)
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
