"""The options of `process`: explicit arguments win over the decorator's, these over defaults."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from perkey.app import App, app_of
from perkey.errors import ConfigError
from perkey.numeric import is_positive, is_whole
from perkey.options import COMMIT, RETRY, HandlerOptions, checked
from perkey.policies import DeadLetter, Skip, Stop
from perkey.signatures import takes_argument
from perkey.spark.processing.leftovers import shared_folder

SLOTS_MAX = 100_000
#: The topic of outputs that name none: null in the row.
NO_TOPIC = ""
CARRY = (None, "failed", "all", "*")


class Unset(enum.Enum):
    """The type of an omitted argument, where None means something."""

    UNSET = "left out"

    def __repr__(self) -> str:
        return "<the decorator's, or the default>"


UNSET: Final = Unset.UNSET
LeftOut = Literal[Unset.UNSET]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of a task; shipped to the executors."""

    options: HandlerOptions
    lifespan: Callable[..., Any] | None
    #: the app whose `state` the handler reads; None for a handler without an app
    app: App | None
    #: a streaming task sorts its rows itself, as Spark refuses to
    sort: bool
    #: which rows carry the record's value, timestamp, headers and story: "failed" or "all"
    carry: str | None = None
    #: other columns that rows carry: name in the task's input -> name in its rows
    others: Mapping[str, str] = field(default_factory=dict)
    #: a folder for finished rows; None keeps nothing
    progress: str | None = None
    #: of a micro-batch: unfinished rows then wait for the next one, in `progress`
    deadline_s: float | None = None
    #: rows that count calls by their duration come last
    timed: bool = False
    #: values are structs, not bytes
    typed: bool = False


def handler_options(handler: Any, given: dict[str, Any]) -> HandlerOptions:
    """The options to run with; raises ConfigError that names what `process` cannot do."""
    where = where_of(handler)
    if not callable(handler):
        raise ConfigError(f"{where}: the handler is not callable: give a function")
    explicit = {name: value for name, value in given.items() if value is not UNSET}
    app = app_of(handler)
    if app is None:
        declared = HandlerOptions(handler, topics=("dataframe",), retry=RETRY, on_exhausted=Skip())
    else:
        declared = next(one for one in reversed(app.handlers) if one.function is handler)
    options = replace(declared, **explicit)
    output = NO_TOPIC if options.output is None else options.output
    options = replace(options, output=options.output or "rows")  # values become rows, topic or not
    _refuse(where, options)
    policy: object = options.on_exhausted
    if "on_exhausted" in explicit and not isinstance(policy, Skip | Stop | DeadLetter):
        raise ConfigError(
            f"{where}: on_exhausted={policy!r}: give perkey.Skip(), which makes the record a row "
            "with status failed, perkey.DeadLetter(topic), which gives that row an output for that "
            "topic, or perkey.Stop(), which ends the query"
        )
    try:
        options = checked(options)
    except ConfigError as error:
        # The same rules as for the decorator, but the user has called `process`.
        reason = str(error).removeprefix(f"@app.consume on {options.name}: ")
        raise ConfigError(f"{where}: {reason}") from None
    if not isinstance(options.on_exhausted, Stop | DeadLetter):
        options = replace(options, on_exhausted=Skip())
    # A task commits nothing, and waits for no group: what concerns these is left out.
    options = replace(options, delivery="at_least_once", commit=COMMIT, hold=None, brake=None)
    return replace(options, output=output)


def name_of(handler: Any) -> str:
    """What messages call the handler."""
    return getattr(handler, "__name__", type(handler).__name__)


def where_of(handler: Any) -> str:
    """How messages about this call of `process` start."""
    return f"process({name_of(handler)})"


def _refuse(where: str, options: HandlerOptions) -> None:
    """Refuse options that need a consumer, or that Spark's retries of tasks would break."""
    if options.kind == "processes":
        raise ConfigError(
            f'{where}: executor="processes" has no meaning in a Spark task: Spark\'s workers are '
            'processes already; decorate with executor="auto" and give slots='
        )
    if options.ledger is not None:
        raise ConfigError(
            f"{where}: a handler with a ledger cannot be used: its ids belong to a consumer group; "
            'run it as a fleet, app.run(engine="spark")'
        )
    if options.budget is not None:
        raise ConfigError(
            f"{where}: budget= is shared by the members of a consumer group, and Spark's tasks are "
            'none: give rate_limit_per_s, or run it as a fleet, app.run(engine="spark")'
        )
    if options.delivery == "at_most_once":
        raise ConfigError(
            f'{where}: delivery="at_most_once" cannot be kept: Spark runs a failed task again, '
            "which calls the handler again; give a handler without it"
        )


def lifespan_of(handler: Any, lifespan: Any) -> Callable[..., Any] | None:
    """The explicit lifespan or the app's."""
    where, app = where_of(handler), app_of(handler)
    if lifespan is None:
        return None if app is None else app.options.lifespan
    if not callable(lifespan):
        raise ConfigError(f"{where}: lifespan={lifespan!r} is not callable: give a function")
    if app is None and takes_argument(lifespan):
        raise ConfigError(
            f"{where}: lifespan takes the app, and the handler belongs to none: decorate it with "
            "@app.consume, or let lifespan take nothing"
        )
    return lifespan  # type: ignore[no-any-return]  # callable, as just seen


def check_arguments(
    where: str,
    *,
    streaming: bool,
    slots: object,
    carry: object,
    progress: object,
    deadline_s: object,
    metrics: object,
) -> None:
    """Raise ConfigError for an argument that is invalid, or not for a batch or a stream."""
    if slots is not None and not is_whole(slots, 1, SLOTS_MAX):
        raise ConfigError(
            f"{where}: slots={slots!r}: give a whole number of tasks from 1 to {SLOTS_MAX}, or None"
            " for one a core"
        )
    named = isinstance(carry, list | tuple) and all(isinstance(one, str) for one in carry)
    if not named and carry not in CARRY:
        raise ConfigError(
            f'{where}: carry={carry!r}: give None, "failed" or "all" (which rows carry the '
            "record's value, timestamp, headers and story), "
            '"*" or a list of columns that all rows carry'
        )
    if progress is not None and not (isinstance(progress, str) and progress.strip()):
        raise ConfigError(
            f"{where}: progress={progress!r:.80}: give a folder that all executors reach, as a path"
            " or a URI"
        )
    if deadline_s is not None:
        if not is_positive(deadline_s) or not isinstance(progress, str):
            raise ConfigError(
                f"{where}: deadline_s={deadline_s!r:.80}: give seconds above 0, and progress=, a "
                "shared folder in which unfinished rows wait for the next micro-batch"
            )
        if not streaming:
            raise ConfigError(f"{where}: deadline_s is for streams: a batch has no next one")
        shared_folder(progress)
    elif progress is not None and streaming:
        raise ConfigError(
            f"{where}: progress={progress!r}: a stream resumes from its checkpoint: leave it out,"
            " or give deadline_s= too"
        )
    if metrics is None or (isinstance(metrics, str) and metrics.strip()):
        return
    where += f": metrics={metrics!r:.80}"
    if type(metrics).__name__ != "Observation":
        raise ConfigError(f"{where}: give a name, or a pyspark.sql.Observation in a batch")
    if streaming:
        raise ConfigError(
            f"{where}: an Observation is for batches: give a name, under which the progress of the "
            "query has them in observedMetrics"
        )
