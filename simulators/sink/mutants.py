"""Ways to break the sink's protocol; `world` must see every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from perkey.spark.sink import protocol as p


def _each(steps: Any, answer: Callable[[Any], Any]) -> Any:
    """The steps, where `answer` may answer in Kafka's place: what is not None."""
    heard = None
    while True:
        try:
            ask = steps.send(heard)
        except StopIteration as stop:
            return stop.value
        heard = answer(ask)
        if heard is None:
            heard = yield ask


def _nothing_is_retired(original: Any) -> Any:
    return lambda task, chunks: _each(
        original(task, chunks), lambda ask: [] if isinstance(ask, p.Retire) else None
    )


def _own_marker_is_not_read(original: Any) -> Any:
    return lambda task, chunks: _each(
        original(task, chunks), lambda ask: p.Own() if isinstance(ask, p.ReadOwn) else None
    )


def _window_is_not_read(original: Any) -> Any:
    return lambda task, chunks: _each(
        original(task, chunks),
        lambda ask: p.Window([], 2**30) if isinstance(ask, p.ReadWindow) else None,
    )


def _any_session_may_write(_: Any) -> Any:
    return lambda _, shared: shared.planned


def _slots_are_not_noted(_: Any) -> Any:
    return lambda _: 1


def _rows_of_earlier_eras_are_forgotten(original: Any) -> Any:
    return lambda *args: original(*args)._replace(before=0)


def _spans_begin_at_the_end(original: Any) -> Any:
    def planned(*args: Any) -> p.Shared:
        shared: p.Shared = original(*args)
        return shared._replace(spans={at: (end, end) for at, (_, end) in shared.spans.items()})

    return planned


def _copies_are_not_counted(_: Any) -> Any:
    def settled(*_: Any) -> Any:
        return None
        yield

    return settled


MUTANTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    function.__name__.lstrip("_"): (where, function)
    for where, function in (
        ("write_steps", _nothing_is_retired),
        ("write_steps", _own_marker_is_not_read),
        ("write_steps", _window_is_not_read),
        ("_is_ready", _any_session_may_write),
        ("slots_for", _slots_are_not_noted),
        ("planned", _rows_of_earlier_eras_are_forgotten),
        ("planned", _spans_begin_at_the_end),
        ("_settled", _copies_are_not_counted),
    )
}


@contextmanager
def alive(name: str) -> Iterator[None]:
    """The protocol is broken inside."""
    where, broken = MUTANTS[name]
    original = vars(p)[where]
    setattr(p, where, broken(original))
    try:
        yield
    finally:
        setattr(p, where, original)
