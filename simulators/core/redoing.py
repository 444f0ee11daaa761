"""Records that are done and that someone has handled again: what is ordered, and what is checked.

S14: such a call runs beside no other of its lane, only after the command, and is answered once,
with what became of it; the rest of the world, commits above all, knows nothing of it. What it puts
out with exactly_once a reader sees once for each transaction that was committed with it, and the
offsets alone show how that ended, whatever else they say.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING, Any

from perkey.core import effects as fx
from perkey.core.events import EXACTLY_ONCE, Command, Ended, Failed, Target, Unhandled
from perkey.types import Record
from simulators.core.dice import Dice
from simulators.core.remembering import UNIX_S
from simulators.core.violation import require

if TYPE_CHECKING:
    from perkey.core.work import Work
    from simulators.core.ledger import Life
    from simulators.core.member import Member
    from simulators.core.world import World

WAITS, RUNS, GOOD, BAD = "waits", "runs", "redone", "failed"
#: its outputs are on the way; exactly_once: they wait for a transaction
SENDS, PENDS = "sends", "pends"


def order(world: World, dice: Dice) -> None:
    """Somebody wants a record again, mostly one that is done."""
    if not world.members:
        return
    member = dice.pick(list(world.members.values()))
    source = dice.pick(list(world.oracle.sources.values()))
    there = sorted(source.finished & source.alive)[-8:] or sorted(source.alive)[:2]
    part = member.parts.get(source.tp)
    if not there or part is None or world.oracle.former(part):
        return
    offset = dice.pick(there)
    record = Record(*source.tp, offset, 0, source.keys[offset], b"v")
    command = Command(
        "redo", Target(source.tp[0], None, source.tp[1], offset), str(world.step), 0.0, "drawn",
        None if dice.chance(0.1) else record,
    )  # fmt: skip
    world.ordered(command, part)
    obey(world, member, command)


def obey(world: World, member: Member, command: Command) -> None:
    """The engine obeys, and its answer comes when the call has ended."""
    topic, _, number, offset = command.target
    part = member.parts[topic, number or 0]
    if offset is None or world.oracle.former(part):
        return
    life = world.oracle.lives[part]
    before = dict(life.redoing)
    member.engine.obey(world.now, [command], UNIX_S + world.now)
    answers = [e for e in member.engine.state.effects if isinstance(e, fx.Answered)]
    rows = [row for effect in answers if effect.command is command for row in effect.rows]
    require(len(rows) <= 1, "S14", f"{command} is answered {rows}")
    if not rows:
        require(offset not in before, "S14", f"{command}: it is handled again already")
        life.redoing[offset] = WAITS
        member.unanswered.append(command)
        world.oracle.stats["redo begun"] += 1
    member.freed_at = world.now
    member.perform()


def starting(
    life: Life,
    offset: int,
    runs: dict[tuple[Any, ...], Any],
    place: tuple[Any, ...],
    now: float,
    call: object,
) -> None:
    """Its call is asked for; others of its lane may be in the same one."""
    what, lane = f"{life.source.tp}@{offset} is handled again", place[-1]
    require(life.state == "open", "S7", f"{what} when its epoch is not open")
    require(life.redoing[offset] == WAITS, "S14", f"{what}, and that {life.redoing[offset]}")
    require(runs.get(place, call) is call, "S14", f"{what} while its lane runs")
    require(not _sends(life, lane), "S14", f"{what} while another one of its lane is sent")
    require(life.holds.get(lane, 0.0) <= now + 1e-6, "S14", f"{what} in a held lane")
    life.redoing[offset] = RUNS


def _sends(life: Life, lane: Hashable) -> bool:
    """The first of the lane is sent; of a batch later ones may be, while it is tried again."""
    return life.next_of(lane) in life.sending


def sends(life: Life, lane: Hashable) -> bool:
    """The outputs of one that is handled again are on the way."""
    return any(s == SENDS and life.source.lane(o) == lane for o, s in life.redoing.items())


def check_lane(life: Life, lane: Hashable, what: object, inside: Collection[int]) -> None:
    """Nothing else of the lane starts while such a call, or its outputs, are under way.

    `inside`: those that are in the same batch.
    """
    for offset, state in life.redoing.items():
        under_way = (
            state in (RUNS, SENDS) and life.source.lane(offset) == lane and offset not in inside
        )
        require(not under_way, "S14", f"{what!r} starts while {offset} is handled again")


def is_one(life: Life, work: Work) -> bool:
    """The record is handled again."""
    return work.record.offset in life.redoing


def ended(life: Life, offset: int, ending: Ended | None) -> None:
    """Its call has ended."""
    if isinstance(ending, Unhandled):
        life.redoing[offset] = WAITS
    elif isinstance(ending, Failed):
        life.redoing[offset] = BAD
    elif ending is None:
        life.redoing[offset] = GOOD
    else:
        life.redoing[offset] = PENDS if life.spec.delivery == EXACTLY_ONCE else SENDS


def pending(life: Life) -> set[int]:
    """Their outputs go into the next transactions."""
    return {offset for offset, state in life.redoing.items() if state == PENDS}


def sent(life: Life, offset: int, *, refused: bool) -> None:
    """So has what it had to produce."""
    life.redoing[offset] = BAD if refused else GOOD


def answered(member: Member, effect: fx.Answered) -> None:
    """The answer to one of these commands."""
    for row in effect.rows:
        part = member.parts.get((row.topic, row.partition))
        life = None if part is None else member.oracle.lives.get(part)
        if row.outcome in ("refused", "not here"):
            continue
        waits = any(one is effect.command for one in member.unanswered)
        require(waits, "S14", f"{effect} is a second answer")
        if life is None or row.outcome == "lost":
            continue
        was = life.redoing.pop(row.offset, "")
        require(was == row.outcome, "S14", f"{effect} is answered, and it is {was!r}")
