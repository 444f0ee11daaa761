"""The handler on its way to the executors: by value, with the modules it is written in."""

from __future__ import annotations

import pickle
from typing import cast

from weft.errors import ConfigError
from weft.spark.fleet import pickles, shipping
from weft.spark.fleet.limits import APP_BYTES_MAX
from weft.spark.processing.settings import TaskSettings, name_of


def packed(settings: TaskSettings) -> bytes:
    """The settings as the tasks load them; raises ConfigError that names what cannot travel."""
    options = settings.options
    carried = [options.function, settings.lifespan, options.value, options.prefetch]
    where = f"process({name_of(options.function)})"
    with shipping.by_value(shipping.modules_behind(carried)):
        try:
            data = pickles.dumps(settings)
        except Exception as error:
            culprit = shipping.unpicklable_name([options.function, settings.lifespan], settings.app)
            why = culprit or f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{where}: the handler cannot be sent to Spark's executors: {why}: open what "
                "belongs to one process (clients, sessions, locks) in lifespan="
            ) from error
    if len(data) > APP_BYTES_MAX:
        raise ConfigError(
            f"{where}: the handler is {len(data)} bytes with the globals it uses, more than "
            f"{APP_BYTES_MAX}: load large data in lifespan= instead"
        )
    return data


def unpacked(payload: bytes) -> TaskSettings:
    """The settings, in a task."""
    return cast("TaskSettings", pickle.loads(payload))  # noqa: S301  # our own driver wrote it
