"""Which budget a lane is charged to: that of healthy records, or that of failing ones.

A lane that fails gets one `LaneCharge`, shared by the records in it and those that join later. So
moving the whole lane between the budgets is one addition, not a walk along it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core import states
from weft.core.work import LaneCharge, Work

if TYPE_CHECKING:
    from weft.core.partition import Partition


def block_lane(partition: Partition, work: Work) -> None:
    """The lane's head failed: what the lane holds moves to the budget of failing records."""
    charge = work.charge
    if charge is None:
        charge = LaneCharge()
        member: Work | None = work
        while member is not None:
            left = member.state in (states.DONE, states.PENDING)  # before it, in its batch
            if member is work or not left:
                if member.charge is not None:  # one behind it in its batch failed first
                    leave(partition, member, member.charge)
                member.charge = charge
                charge.records += 1
                charge.bytes += member.size
            member = member.next
    if not charge.blocked:
        charge.blocked = True
        partition.blocked_records += charge.records
        partition.blocked_bytes += charge.bytes


def join(partition: Partition, work: Work, charge: LaneCharge) -> None:
    """A record comes into a lane that has a charge."""
    work.charge = charge
    charge.records += 1
    charge.bytes += work.size
    if charge.blocked:
        partition.blocked_records += 1
        partition.blocked_bytes += work.size


def leave(partition: Partition, work: Work, charge: LaneCharge) -> None:
    """A record leaves the head of such a lane."""
    if charge.blocked:  # its head is done, so the rest of the lane is healthy again
        charge.blocked = False
        partition.blocked_records -= charge.records
        partition.blocked_bytes -= charge.bytes
    charge.records -= 1
    charge.bytes -= work.size
