"""The settings of a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perkey.core import effects as fx
from perkey.core.commits import Found
from perkey.core.events import Decided, Limits
from perkey.kafka.log_reader import LogReader
from perkey.kafka.ports import REAL_CLOCK, Clock, ConsumerPort, ProducerPort
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan
from perkey.runtime.member.group_membership import Fail, GroupMembership
from perkey.runtime.member.topic_ids import TopicIds
from perkey.runtime.member.transactor import Transactor
from perkey.types import OnLost, TopicPartition


@dataclass(slots=True)
class MemberConfig:
    """The settings of a member, from the app's options."""

    group: str
    topics: list[str]
    plans: list[HandlerPlan]
    #: topic -> index of its handler
    route: Callable[[str], int]
    limits: Limits
    make_consumer: Callable[[], ConsumerPort]
    #: called when there are answers to serve, and with the reason when producing fails for good
    make_producer: Callable[[Callable[[], None], Callable[[str], None]], ProducerPort]
    make_executors: Callable[[Door, Fail], list[Executor]]
    #: with `limits.forget_parked`: reads released records again
    make_reader: Callable[[], LogReader] | None = None
    #: with exactly_once: the transactions of this member and their transactional id
    make_transactor: Callable[[GroupMembership], Transactor] | None = None
    drain_timeout_s: float = 20.0
    revoke_timeout_s: float = 5.0
    on_offset_lost: OnLost = "stop"
    on_commit: Callable[..., Any] | None = None
    on_assign: Callable[..., Any] | None = None
    on_revoke: Callable[..., Any] | None = None
    on_error: Callable[..., Any] | None = None
    #: calls a function given as `on_exhausted`
    decide: Callable[[fx.AskExhausted], Decided] | None = None
    #: called with every batch of finished records, on the thread that is inside the door
    on_finished: Callable[[list[fx.Finished]], None] = field(default=lambda _: None)
    #: called with the committed offsets of the assigned partitions
    on_found: Callable[[Mapping[TopicPartition, Found]], None] = field(default=lambda _: None)
    topic_ids: TopicIds = field(default_factory=lambda: TopicIds(lambda _: {}))
    clock: Clock = REAL_CLOCK
