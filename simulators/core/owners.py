"""One command, two owners: a former one that does not know it yet, or the next, obeys it as well.

S18: that changes nothing twice. A skip is answered as such by one of them; what the group has as
done is neither held, released nor tried again; and no attempt is charged for a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulators.core import commanding
from simulators.core.dice import Dice
from simulators.core.violation import require

if TYPE_CHECKING:
    from perkey.core.events import Command
    from perkey.core.partition import Partition
    from simulators.core.member import Member
    from simulators.core.world import World


def relay(world: World, dice: Dice) -> None:
    """An owner obeys what was ordered before, and not obeyed in this epoch."""
    waiting = [
        (command, obeyed, member, part)
        for command, obeyed in world.orders
        for member in world.members.values()
        if (part := member.parts.get(_place(command))) is not None and part not in obeyed
    ]
    if not waiting:
        return
    command, obeyed, member, part = dice.pick(waiting)
    world.oracle.stats["obeyed by two owners"] += bool(obeyed)
    obeyed.add(part)
    give(world, member, part, command)


def give(world: World, member: Member, part: Partition, command: Command) -> None:
    """This member obeys, and charges no attempt for that."""
    before = _attempts(part, command)
    commanding.obey(world, member, command)
    after = _attempts(part, command)
    require(after in (before, 0), "S18", f"{command}: {before} attempts are {after} by it")


def _place(command: Command) -> tuple[str, int]:
    return command.target.topic, command.target.partition or 0


def _attempts(part: Partition, command: Command) -> int:
    offset = command.target.offset
    work = None if offset is None else part.offsets.incomplete.get(offset)
    failure = None if work is None else work.failure
    return 0 if failure is None else failure.attempts - failure.shared
