"""The handler on its way to the executors: by value, with the modules it imports."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterable
from typing import Any, cast

from weft.errors import ConfigError
from weft.spark.fleet import pickles, shipping
from weft.spark.fleet.limits import APP_BYTES_MAX
from weft.spark.processing.modules import SHIPPED, sources_of
from weft.spark.processing.settings import TaskSettings, name_of


def packed(settings: TaskSettings) -> bytes:
    """The settings as the tasks load them; raises ConfigError that names what cannot travel."""
    options = settings.options
    carried = [options.function, settings.lifespan, options.value, options.prefetch]
    where = f"process({name_of(options.function)})"
    written_in = shipping.modules_behind(carried)
    with shipping.by_value(written_in):
        try:
            data = pickles.dumps(settings)
        except Exception as error:
            culprit = shipping.unpicklable_name([options.function, settings.lifespan], settings.app)
            why = culprit or f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{where}: the handler cannot be sent to Spark's executors: {why}: open what "
                "belongs to one process (clients, sessions, locks) in lifespan="
            ) from error
    data = pickle.dumps((sources_of([*written_in, *_main(carried)]), data))
    if len(data) > APP_BYTES_MAX:
        raise ConfigError(
            f"{where}: the handler is {len(data)} bytes with the globals and modules it uses, more "
            f"than {APP_BYTES_MAX}: load large data in lifespan= instead"
        )
    return data


def unpacked(payload: bytes) -> TaskSettings:
    """The settings, in a task."""
    sources, data = pickle.loads(payload)  # noqa: S301  # our own driver wrote it
    SHIPPED.replace(sources)
    return cast("TaskSettings", pickle.loads(data))  # noqa: S301  # our own driver wrote it


def _main(carried: Iterable[Any]) -> list[types.ModuleType]:
    """The script that is run, where the handler stands in it."""
    inside = any(getattr(value, "__module__", "") == "__main__" for value in carried)
    return [sys.modules["__main__"]] if inside else []
