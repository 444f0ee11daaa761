"""Load the app that `module:attribute` names; errors are one line."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perkey.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from perkey.app import App

_log = logging.getLogger("perkey")
_PERKEY = str(Path(__file__).parents[1]) + os.sep

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP", help="The app, such as geofence:app for app in geofence.py."
    ),
]


def load_app(target: str) -> App:
    """The app behind `module:attribute`, with the current folder importable."""
    from perkey.app import App

    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise ConfigError(f"{target}: {_as_target(name)}")
    if name.endswith(".py") or os.sep in name:
        raise ConfigError(f"{target}: name the module, not its file: {_as_target(name, attribute)}")
    module = load_module(name)
    found: Any = module
    for step in attribute.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            hint = _apps_in(module) or f": {did_you_mean(step, dir(found))}".rstrip(": ")
            raise ConfigError(f"{target}: {module.__name__} has no {step}{hint}") from None
    if not isinstance(found, App):
        kind = type(found).__name__
        raise ConfigError(f"{target} is of type {kind}, not a perkey.App{_apps_in(module)}")
    return found


def _as_target(name: str, attribute: str = "app") -> str:
    path = Path(name.removesuffix(".py"))
    return f"write MODULE:ATTRIBUTE, such as {'.'.join(path.parts[-1:]) or 'geofence'}:{attribute}"


def load_module(name: str) -> ModuleType:
    """Import a module; the current folder comes first, as with `python -m`."""
    here = os.getcwd()  # noqa: PTH109  # what sys.path wants is text
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            why = f"module {name} does not exist in this folder or among the installed packages"
        else:
            why = (
                f"module {name} cannot be imported: it imports {error.name}, which is not installed"
            )
        raise ConfigError(why) from error
    except SyntaxError as error:
        where = f"{Path(error.filename or name).name}:{error.lineno}"
        raise ConfigError(f"module {name} cannot be imported: {error.msg} ({where})") from error
    except SystemExit as error:
        raise ConfigError(
            f"module {name} exited while it was imported: put what it runs under "
            'if __name__ == "__main__":'
        ) from error
    except Exception as error:
        _log.debug("importing %s failed", name, exc_info=True)
        frames = traceback.extract_tb(error.__traceback__)
        # `<frozen os>` raises the KeyError of os.environ["X"]; it is not the user's code.
        own = [f for f in frames if "importlib" not in f.filename and f.filename[:1] != "<"]
        own = [f for f in own if not f.filename.startswith(_PERKEY)] or own
        where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
        raise ConfigError(
            f"module {name} cannot be imported: {type(error).__name__}: {error}{where}"
        ) from error


def _apps_in(module: ModuleType) -> str:
    from perkey.app import App

    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f": write {module.__name__}:{names[0]}" if names else ""
