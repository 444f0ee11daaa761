"""PySpark's cloudpickle, which has no types of its own."""

from __future__ import annotations

import importlib
import io
import types
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

_known: Any = cloudpickle.list_registry_pickle_by_value
_register: Any = cloudpickle.register_pickle_by_value
_unregister: Any = cloudpickle.unregister_pickle_by_value


#: What pydantic builds of a model's fields. It cannot always be loaded again: two fields of one
#: model, with postponed annotations, are a KeyError('type') there. So it is left out, and built
#: again where the model is first used.
BUILT = frozenset({"__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"})
_MOCKS = "pydantic._internal._mock_val_ser"


class _Pickler(cloudpickle.Pickler):
    """PySpark's, for models of pydantic that travel by value."""

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)  # type: ignore[no-untyped-call]  # PySpark gives none
        by_value = isinstance(reduced, tuple) and len(reduced) == 6
        if not (by_value and isinstance(value, type) and hasattr(value, "__pydantic_validator__")):
            return reduced
        make, arguments, (attributes, slots), _, _, fill = reduced
        kept = {name: one for name, one in attributes.items() if name not in BUILT}
        kept["__pydantic_complete__"] = False
        return make, arguments, (fill, kept, slots), None, None, filled_model


def filled_model(model: Any, state: tuple[Callable[..., Any], dict[str, Any], Any]) -> None:
    """Make a model of the class that was loaded empty; it is completed at its first use."""
    fill, attributes, slots = state
    fill(model, (attributes, slots))
    importlib.import_module(_MOCKS).set_model_mocks(model)


def dumps(value: Any) -> bytes:
    """The value with the functions and classes it needs."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)  # type: ignore[no-untyped-call]  # PySpark gives none
    return buffer.getvalue()


def by_value(module: types.ModuleType) -> bool:
    """Have what stands in this module travel by value; False when it does already."""
    if module.__name__ in _known():
        return False
    _register(module)
    return True


def by_reference(module: types.ModuleType) -> None:
    """Have it travel by name again."""
    _unregister(module)
