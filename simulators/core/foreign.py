"""Foreign changes to source logs: open transactions, and an earlier reader."""

from __future__ import annotations

from perkey.testing.memory import OffsetAndMetadata
from simulators.core.dice import Dice
from simulators.core.ledger import Source
from simulators.core.stage import GROUP, Stage

#: what a group that moves here finds: records, two of them in a transaction that is still open
THERE, OPEN = 9, (3, 4)


def write_open(stage: Stage, source: Source, count: int, dice: Dice) -> None:
    """Records in a transaction that stays open."""
    writer = stage.writers.get(source.tp)
    if writer is None:
        writer = stage.broker.init_producer(f"foreign-{source.tp}")
        stage.writers[source.tp] = writer
        stage.broker.begin(writer)
        stage.oracle.stats["foreign transactions"] += 1
    for _ in range(count):
        key = b"%d" % dice.below(stage.setup.keys)
        offset = stage.broker.produce(source.tp, key, b"v", producer=writer)
        source.write(offset, key)
        source.undecided.append(offset)


def end_foreign(stage: Stage, source: Source, *, committed: bool) -> None:
    """The other service commits or aborts what it has open in this log, if anything."""
    writer = stage.writers.pop(source.tp, None)
    if writer is not None:
        (stage.broker.commit if committed else stage.broker.abort)(writer)
        stage.oracle.decided(source, committed=committed)


def take_over(stage: Stage) -> None:
    """The group moves here from a reader that did not wait for transactions to end."""
    for tp, source in stage.oracle.sources.items():
        if stage.rng.random() < 0.7:
            continue
        for number in range(THERE):
            if number in OPEN:
                write_open(stage, source, 1, Dice(number))
            else:
                source.add(stage.broker.produce(tp, b"0", b"v"), b"0")
        offset = stage.rng.choice((OPEN[-1] + 1, OPEN[-1] + 2, THERE))
        stage.broker.group(GROUP).committed[tp] = OffsetAndMetadata(offset, "")
        source.remove(set(range(offset)))
        source.undecided.clear()  # the former reader has handled them
        stage.oracle.stats["taken over past the last stable offset"] += 1
