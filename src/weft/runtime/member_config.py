"""What a member is told, and what it asks of the executors that call its handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from weft.core import effects as fx
from weft.core.partition import Partition
from weft.core.spec import Limits
from weft.core.starting import OnLost
from weft.core.work import Work
from weft.kafka.clock import REAL_CLOCK, Clock
from weft.kafka.ports import ConsumerPort, ProducerPort
from weft.runtime.plan import HandlerPlan
from weft.runtime.topic_ids import TopicIds

if TYPE_CHECKING:
    from weft.runtime.member import Member
    from weft.runtime.transactions import Transactor


class Executor(Protocol):
    """Calls one handler."""

    def start(self, works: Sequence[Work]) -> None:
        """Call it for each of these; never blocks."""

    def start_batch(self, works: list[Work]) -> None:
        """Call it once for all of these; never blocks."""

    def cancel(self, work: Work, *, expired: bool) -> None:
        """End this attempt if that can be done."""

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Tell running batches that these partitions, or all, go away."""

    def close(self) -> None:
        """Start nothing more."""


@dataclass(slots=True)
class MemberConfig:
    """What a member is told by the app."""

    group: str
    topics: list[str]
    plans: list[HandlerPlan]
    #: topic -> index of its handler
    route: Callable[[str], int]
    limits: Limits
    make_consumer: Callable[[], ConsumerPort]
    make_producer: Callable[[Callable[[], None]], ProducerPort]
    make_executors: Callable[[Member], list[Executor]]
    #: with exactly_once: the transactions of this member and the id they go under
    make_transactor: Callable[[Member], Transactor] | None = None
    #: opened again in each worker process
    lifespan: Callable[..., Any] | None = None
    drain_timeout_s: float = 20.0
    revoke_timeout_s: float = 5.0
    on_offset_lost: OnLost = "stop"
    on_commit: Callable[..., Any] | None = None
    on_assign: Callable[..., Any] | None = None
    on_revoke: Callable[..., Any] | None = None
    #: called with every batch of finished records, on whatever thread is inside the door
    on_finished: Callable[[list[fx.Finished]], None] = field(default=lambda _: None)
    topic_ids: TopicIds = field(default_factory=lambda: TopicIds(lambda _: {}))
    clock: Clock = REAL_CLOCK
