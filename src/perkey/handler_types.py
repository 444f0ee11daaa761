"""Types of `@app.consume` for type checkers, which then mark wrong handlers.

A handler's arguments and allowed results depend on `batch=`, `ledger=` and `output=`; each
combination is an overload of `Consume` with one of the variables below.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from perkey.ledger.policy import SqlLedger
from perkey.policies import Batch, Brake, Budget, Commit, Hold, OnExhausted, Retry
from perkey.types import DeliveryName, Ordering, Produce, Record

if TYPE_CHECKING:
    from perkey.runtime.calls.record_batch import RecordBatch

Topics = str | Sequence[str]
ExecutorName = Literal["auto", "async", "threads", "processes"]
#: a callable that takes bytes, or the record if it is a `@perkey.decoder`
Value = Literal["bytes", "str", "json"] | type[Any] | Callable[[Any], Any]


class _Model(Protocol):
    """A pydantic model: sent as its JSON."""

    def model_dump_json(self) -> str: ...


Outputs = None | Produce | list[Produce] | tuple[Produce, ...]
Values = Outputs | str | float | _Model | Mapping[str, Any] | Sequence[Any]

Called = Outputs | Awaitable[Outputs] | Iterator[Produce]
CalledForValues = Values | Awaitable[Values] | Iterator[Produce]
CalledForNothing = None | Awaitable[None]

#: handlers of records: without `output=`, with it, and with a ledger
F = TypeVar("F", bound=Callable[[Record[Any]], Called])
FV = TypeVar("FV", bound=Callable[[Record[Any]], CalledForValues])
FL = TypeVar("FL", bound=Callable[[Record[Any], Any], CalledForNothing])
#: the same for batches
B = TypeVar("B", bound="Callable[[RecordBatch[Any]], Called]")
BV = TypeVar("BV", bound="Callable[[RecordBatch[Any]], CalledForValues]")
BL = TypeVar("BL", bound="Callable[[RecordBatch[Any], Any], CalledForNothing]")


class RunOptions(TypedDict, total=False):
    """The arguments of `run()`, `start()` and `main()`; see docs/options.md."""

    engine: Literal["local", "spark"]
    until: Literal["drained"] | None
    members: int | None
    master: str | None
    spark: Any
    conf: Mapping[str, str] | None
    sink: Any


class Options(TypedDict, total=False):
    """The options without influence on the handler's signature; see docs/options.md."""

    ordering: Ordering
    concurrency: int
    executor: ExecutorName
    retry: Retry
    timeout_s: float | None
    on_exhausted: OnExhausted
    hold: Hold | None
    brake: Brake | None
    budget: Budget | None
    key: Value
    value: Value
    delivery: DeliveryName
    commit: Commit
    prefetch: Callable[..., Any] | None
    rate_limit_per_s: float | None


class Consume(Protocol):
    """`App.consume` as a type checker sees it."""

    @overload
    def __call__(
        self,
        topics: Topics,
        *,
        ledger: None = None,
        batch: None = None,
        output: None = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]: ...
    @overload
    def __call__(
        self,
        topics: Topics,
        *,
        output: str,
        ledger: None = None,
        batch: None = None,
        **options: Unpack[Options],
    ) -> Callable[[FV], FV]: ...
    @overload
    def __call__(
        self, topics: Topics, *, ledger: SqlLedger, batch: None = None, **options: Unpack[Options]
    ) -> Callable[[FL], FL]: ...
    @overload
    def __call__(
        self,
        topics: Topics,
        *,
        batch: Batch,
        ledger: None = None,
        output: None = None,
        **options: Unpack[Options],
    ) -> Callable[[B], B]: ...
    @overload
    def __call__(
        self,
        topics: Topics,
        *,
        batch: Batch,
        output: str,
        ledger: None = None,
        **options: Unpack[Options],
    ) -> Callable[[BV], BV]: ...
    @overload
    def __call__(
        self, topics: Topics, *, batch: Batch, ledger: SqlLedger, **options: Unpack[Options]
    ) -> Callable[[BL], BL]: ...


def as_consume(method: Callable[..., Any]) -> Consume:
    """The method itself, with another type."""
    return cast("Consume", method)
