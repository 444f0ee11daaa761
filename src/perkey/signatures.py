"""Check a handler's annotations against its calls.

A wrong annotation would make every record fail in production; here it fails at decoration.
Annotations that cannot be resolved, or are missing, pass.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable
from typing import Any, Literal

from perkey.errors import ConfigError
from perkey.types import Produce, Record

#: allowed results of a handler: nothing; outputs; or values for `output=`, too
Returns = Literal["nothing", "outputs", "values"]

_PLAIN = (str, bytes, bytearray, memoryview, int, float, complex, dict, set, frozenset, abc.Mapping)
_MANY = (list, tuple, abc.Iterable)


def check_call(what: str, name: str, function: Callable[..., Any], wanted: tuple[str, ...]) -> None:
    """ConfigError if a callback cannot be called with this many arguments.

    `name`: of the function in the example.
    """
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError as error:
        raise ConfigError(
            f"{what} is called with {len(wanted)} argument{'s' * (len(wanted) > 1)}: "
            f"def {name}({', '.join(wanted)}) ({error})"
        ) from None
    except ValueError:
        pass  # a builtin without a signature: its first call will show


def takes_argument(function: Callable[..., Any]) -> bool:
    """Whether a lifespan takes the app as argument, as FastAPI's do; ConfigError for more."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    left_out = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in left_out]
    if len(needed) > 1 or any(p.kind == p.KEYWORD_ONLY for p in needed):
        names = ", ".join(p.name for p in needed)
        raise ConfigError(f"App(lifespan=...) requires {names}: it gets the app, or nothing")
    return bool(needed)


def check_signature(
    where: str,
    function: Callable[..., Any],
    wanted: tuple[str, ...],
    returns: Returns,
    value: Any = None,
) -> None:
    """ConfigError if the parameters or their annotations do not fit `wanted`, or the return type.

    `wanted`: its arguments: "record" or "batch", and "tx" with a ledger. `value`: the option of
    that name.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a builtin without a signature: its first call will show
    try:
        bound = signature.bind(*wanted)
    except TypeError:
        name, given = getattr(function, "__name__", "handler"), ", ".join(signature.parameters)
        why = " (tx is the ledger's open transaction)" if "tx" in wanted else ""
        raise ConfigError(
            f"{where}: the handler must take {len(wanted)} argument{'s' * (len(wanted) > 1)}: "
            f"write def {name}({', '.join(wanted)}){why}, not {name}({given})"
        ) from None
    hints = hints_of(function)
    first = next(iter(bound.arguments), "")
    if first in hints and signature.parameters[first].kind is not inspect.Parameter.VAR_POSITIONAL:
        _check_first(where, first, hints[first], wanted[0])
        _check_values(where, hints[first], {"bytes": bytes, "str": str}.get(str(value), value))
    if "return" in hints:
        for one in members_of(hints["return"]):
            if returns == "values" and _is_several_values(one):
                raise ConfigError(
                    f"{where}: it returns {_shown(one)}: a list is of perkey.Produce only; one "
                    "value that is a list is perkey.Produce([...])"
                )
            if returns != "values" and _is_value(one):
                cure = (
                    "give @app.consume(output=TOPIC) for plain values, or return "
                    "perkey.Produce(...)"
                    if returns == "outputs"
                    else "return None"
                )
                raise ConfigError(
                    f"{where}: what it returns, {_shown(one)}, has no destination: {cure}"
                )
            if returns == "nothing" and one is Produce:
                raise ConfigError(
                    f"{where}: it returns perkey.Produce, but its outputs could be lost or belong "
                    "to batch.ack(record, outputs): return None"
                )


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations, resolved; empty if they are not available."""
    if isinstance(function, functools.partial):
        return {}
    if not inspect.isroutine(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004  # the method is looked at
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that only a type checker imports, or anything else
        return {}


def members_of(hint: Any) -> tuple[Any, ...]:
    """The parts of a union, or the annotation itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(one for part in typing.get_args(hint) for one in members_of(part))
    return (hint,)


def _check_first(where: str, name: str, hint: Any, wanted: str) -> None:
    fits = _takes_batch if wanted == "batch" else _takes_record
    if any(fits(one) for one in members_of(hint)):
        return
    kind = "perkey.RecordBatch" if wanted == "batch" else "perkey.Record"
    cure = f"def handler({name}: {kind})"
    if wanted == "record" and _is_batch(hint):
        cure += ", or give batch=perkey.Batch(...)"
    elif wanted == "batch" and _takes_record(hint):
        cure += ", or omit batch="
    elif wanted == "record":
        cure += f", with value= for what {name}.value is"
    raise ConfigError(
        f"{where}: the handler is called with a {kind}, not with {_shown(hint)}: write {cure}"
    )


def _check_values(where: str, hint: Any, value: Any) -> None:
    """`Record[M]` with a `value=` of another type; a union or a protocol may match."""
    declared = typing.get_args(hint)[0] if typing.get_origin(hint) is Record else Any
    kinds = members_of(declared)
    if not isinstance(value, type) or not all(map(_is_class, kinds)):
        return
    if not any(issubclass(value, typing.get_origin(kind) or kind) for kind in kinds):
        wanted = next((kind for kind in kinds if kind is not type(None)), declared)
        name = getattr(wanted, "__name__", str(wanted))
        cure = f'"{name}"' if wanted in (bytes, str) else name
        raise ConfigError(
            f"{where}: {_shown(hint)} is not the type that value= gives, {value.__name__}: give "
            f"value={cure}, or annotate it perkey.Record[{value.__name__}]"
        )


def _is_batch(hint: Any) -> bool:
    plain = typing.get_origin(hint) or hint
    return getattr(plain, "__name__", "") == "RecordBatch"


def _takes_record(hint: Any) -> bool:
    return not _is_class(hint) or issubclass(Record, typing.get_origin(hint) or hint)


def _takes_batch(hint: Any) -> bool:
    plain = typing.get_origin(hint) or hint
    return not _is_class(hint) or _is_batch(hint) or issubclass(abc.Sequence, plain)


def _is_class(hint: Any) -> bool:
    """Whether it is a class with fixed instances; Any, type variables and protocols are not."""
    plain = typing.get_origin(hint) or hint
    return (
        isinstance(plain, type) and plain is not Any and not getattr(plain, "_is_protocol", False)
    )


def _is_value(hint: Any) -> bool:
    """Whether this is certainly a plain value, or several of them."""
    if not _is_class(hint):
        return False
    plain = typing.get_origin(hint) or hint
    if issubclass(plain, _PLAIN) or hasattr(plain, "model_dump_json"):
        return True
    return _is_several_values(hint)


def _is_several_values(hint: Any) -> bool:
    plain, several = typing.get_origin(hint), typing.get_args(hint)
    if not (isinstance(plain, type) and issubclass(plain, _MANY) and several):
        return False
    return not issubclass(plain, _PLAIN) and all(map(_is_value, members_of(several[0])))


def _shown(hint: Any) -> str:
    return hint.__name__ if type(hint) is type else str(hint).replace("typing.", "")
