"""A handler whose own annotations or decoration cannot be right is refused where it stands."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pydantic
import pytest

import perkey

if TYPE_CHECKING:
    from decimal import Decimal as Unknown

T = TypeVar("T")


class Model(pydantic.BaseModel):
    """A value."""


class HasValue(Protocol):
    """Something with a value."""

    value: Any


LEDGER = perkey.SqlLedger("sqlite://")
BATCH = perkey.Batch()
EXPLICIT = perkey.Batch(ack="explicit")


@pytest.fixture
def app():
    return perkey.App(group="g", kafka={"bootstrap.servers": "kafka.example:9092"})


def refused(app, function, **options) -> str:
    with pytest.raises(perkey.ConfigError) as caught:
        app.consume("t", **options)(function)
    assert "\n" not in str(caught.value)
    assert app.handlers == ()
    return str(caught.value)


def a_dict(record: dict) -> None: ...
def a_model(record: Model) -> None: ...
def some_bytes(value: bytes | None) -> None: ...
def a_batch(batch: perkey.RecordBatch) -> None: ...
def a_record(record: perkey.Record) -> None: ...
def a_record_of(record: perkey.Record[Model]) -> None: ...
def anything(record: Any) -> None: ...
def some_object(record: object) -> None: ...
def a_protocol(record: HasValue) -> None: ...
def a_variable(record: T) -> T: ...
def unresolved(record: Unknown) -> None: ...
def a_union(record: perkey.Record | dict) -> None: ...
def everything(*arguments: int, **more: int) -> None: ...
def a_sequence(batch: Sequence[perkey.Record]) -> None: ...
def a_list(batch: list[perkey.Record]) -> None: ...
def bare(record): ...


class Callable_:
    """An object that is called."""

    def __call__(self, record: perkey.Record) -> None: ...


@pytest.mark.parametrize(
    "function", [a_dict, a_model, some_bytes, a_batch], ids=lambda f: f.__name__
)
def test_a_first_parameter_that_is_no_record(app, function):
    """It is named with what it must be, and where the value is."""
    said = refused(app, function)
    assert (
        f"@app.consume on {function.__name__}: the handler is called with a perkey.Record" in said
    )
    assert ("batch=perkey.Batch" if function is a_batch else ".value") in said


@pytest.mark.parametrize("function", [a_record, a_list, a_dict], ids=lambda f: f.__name__)
def test_a_first_parameter_that_is_no_batch(app, function):
    """A batch handler takes a RecordBatch, or any sequence."""
    said = refused(app, function, batch=BATCH)
    assert "is called with a perkey.RecordBatch" in said


@pytest.mark.parametrize(
    "function",
    [
        a_record, anything, some_object, a_protocol, a_variable, unresolved, a_union,
        everything, bare, Callable_(), functools.partial(a_record), print, lambda record: None,
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)  # fmt: skip
def test_what_may_be_a_record_passes(app, function):
    """Only what is surely wrong is refused."""
    app.consume("t")(function)
    assert len(app.handlers) == 1


class Other:
    """A class that is no model."""


def of_bytes(record: perkey.Record[bytes]) -> None: ...
def of_any(record: perkey.Record[Any]) -> None: ...
def of_either(record: perkey.Record[Model | None]) -> None: ...


@pytest.mark.parametrize(
    ("function", "value"),
    [(a_record_of, Model), (of_either, Model), (of_bytes, "bytes"), (of_any, Other),
     (a_record_of, "json"), (a_record_of, lambda data: data), (a_record, Other)],
)  # fmt: skip
def test_what_a_value_may_be_passes(app, function, value):
    """The kind of the value is what `value=` gives, or is not known here."""
    app.consume("t", value=value)(function)
    assert len(app.handlers) == 1


@pytest.mark.parametrize(
    ("function", "value", "fix"),
    [(a_record_of, Other, "give value=Model"), (a_record_of, "bytes", "give value=Model"),
     (of_bytes, "str", "perkey.Record[str]"), (of_either, Other, "give value=Model")],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(app, function, value, fix):
    """`Record[M]` with value=N: every call would find something else than it says."""
    with pytest.raises(perkey.ConfigError, match=re.escape(fix)):
        app.consume("t", value=value)(function)


@pytest.mark.parametrize(
    "function", [a_batch, a_sequence, anything, bare], ids=lambda f: f.__name__
)
def test_what_may_be_a_batch_passes(app, function):
    """Likewise for batches."""
    app.consume("t", batch=BATCH)(function)
    assert len(app.handlers) == 1


def text(record: perkey.Record) -> str: ...
def maybe_dict(record: perkey.Record) -> dict[str, Any] | None: ...
async def later(record: perkey.Record) -> bytes: ...
def model(record: perkey.Record) -> Model: ...
def texts(record: perkey.Record) -> list[str]: ...
def count(record: perkey.Record) -> int: ...
def mixed(record: perkey.Record) -> perkey.Produce | str: ...
def yields(record: perkey.Record) -> Iterator[str]:
    yield "x"


VALUES = [text, maybe_dict, later, model, count, mixed]


@pytest.mark.parametrize("function", [*VALUES, texts, yields], ids=lambda f: f.__name__)
def test_a_plain_value_without_an_output(app, function):
    """It would fail on every record; the two ways out are named."""
    said = refused(app, function)
    assert "has no destination" in said
    assert "output=TOPIC" in said
    assert "perkey.Produce" in said


@pytest.mark.parametrize("function", VALUES, ids=lambda f: f.__name__)
def test_a_plain_value_with_an_output(app, function):
    """With `output=` it is what is wanted."""
    app.consume("t", output="out")(function)
    assert len(app.handlers) == 1


def nothing(record: perkey.Record) -> None: ...
def produce(record: perkey.Record) -> perkey.Produce | None: ...
def produces(record: perkey.Record) -> list[perkey.Produce]: ...
def generates(record: perkey.Record) -> Iterator[perkey.Produce]: ...
def any_list(record: perkey.Record) -> list: ...
def whatever(record: perkey.Record) -> Any: ...


@pytest.mark.parametrize(
    "function",
    [nothing, produce, produces, generates, any_list, whatever],
    ids=lambda f: f.__name__,
)
def test_outputs_need_no_output(app, function):
    """What may be Produce, or nothing, is left to run."""
    app.consume("t")(function)
    assert len(app.handlers) == 1


def with_tx(record: perkey.Record, tx: Any) -> perkey.Produce: ...
def counts_with_tx(record: perkey.Record, tx: Any) -> int: ...
def explicit(batch: perkey.RecordBatch) -> perkey.Produce | None: ...


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (with_tx, {"ledger": LEDGER}),
        (counts_with_tx, {"ledger": LEDGER}),
        (explicit, {"batch": EXPLICIT}),
    ],
    ids=["produce", "value", "explicit"],
)
def test_where_nothing_may_be_returned(app, function, options):
    """With a ledger, and with explicit acknowledgements, a handler returns None."""
    assert "return None" in refused(app, function, **options)


def test_consume_without_parentheses(app):
    """The decorator would have replaced the function and handled nothing."""
    with pytest.raises(perkey.ConfigError) as caught:
        app.consume(a_record)
    assert str(caught.value) == (
        '@app.consume needs a topic: write @app.consume("TOPIC") above a_record'
    )


@pytest.mark.parametrize("topics", [None, 7, object()])
def test_topics_that_are_none(app, topics):
    """Said at once, not when a function is decorated."""
    with pytest.raises(perkey.ConfigError, match="is not a topic"):
        app.consume(topics)
