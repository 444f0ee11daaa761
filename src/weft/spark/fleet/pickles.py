"""PySpark's cloudpickle, which has no types of its own."""

from __future__ import annotations

import types
from typing import Any

from pyspark import cloudpickle

_dumps: Any = cloudpickle.dumps
_known: Any = cloudpickle.list_registry_pickle_by_value
_register: Any = cloudpickle.register_pickle_by_value
_unregister: Any = cloudpickle.unregister_pickle_by_value


def dumps(value: Any) -> bytes:
    """The value with the functions and classes it needs."""
    data: bytes = _dumps(value)
    return data


def by_value(module: types.ModuleType) -> bool:
    """Have what stands in this module travel by value; False when it does already."""
    if module.__name__ in _known():
        return False
    _register(module)
    return True


def by_reference(module: types.ModuleType) -> None:
    """Have it travel by name again."""
    _unregister(module)
