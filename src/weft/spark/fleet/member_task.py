"""One member's place in the fleet, as it travels to an executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.spark.table.line import TablePlan


@dataclass(frozen=True, slots=True, repr=False)
class MemberTask:
    """One member's place in the fleet, as it travels inside the Spark task. Holds secrets."""

    index: int
    #: how often the driver has submitted this member
    generation: int
    #: `{group}-{run}`: begins the static ids, so that two runs never fence each other
    name: str
    host: str
    port: int
    secret: bytes
    app: bytes
    #: where results go as rows; None for topics
    table: TablePlan | None = None

    @property
    def run(self) -> str:
        """The run that it is of."""
        return self.name.rpartition("-")[2]

    def __repr__(self) -> str:
        return f"<MemberTask {self.index} of {self.name}>"
