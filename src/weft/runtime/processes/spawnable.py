"""What a new process can be told to call."""

from __future__ import annotations

import pickle
from typing import Any

from weft.errors import ConfigError


def check_spawnable(function: Any, lifespan: Any, name: str) -> None:
    """Raises ConfigError for what a new process could not import."""
    for what, one in ((f"the handler {name}", function), ("the lifespan", lifespan)):
        try:
            pickle.dumps(one)
        except Exception as error:
            raise ConfigError(
                f'executor="processes": {what} cannot be found by a new process: define it at the '
                f"top level of a module ({error})"
            ) from error
