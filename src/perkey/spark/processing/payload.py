"""The handler, shipped to the executors by value, with the user's modules that it imports.

The driver reads the imports from the sources, also those inside functions, and follows them as long
as they lead to files that are not installed. In a task they are imported from memory.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import pickle
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from perkey.errors import ConfigError
from perkey.spark.fleet import shipping
from perkey.spark.fleet.limits import APP_BYTES_MAX
from perkey.spark.processing.settings import TaskSettings, where_of


def packed(settings: TaskSettings) -> bytes:
    """The settings as the tasks load them; raises ConfigError that names what cannot be shipped."""
    options = settings.options
    carried = [options.function, settings.lifespan, options.value, options.prefetch]
    where = where_of(options.function)
    written_in = shipping.modules_behind(carried)
    with shipping.by_value(written_in):
        try:
            data = shipping.dumps(settings)
        except Exception as error:
            culprit = shipping.unpicklable_name([options.function, settings.lifespan], settings.app)
            why = culprit or f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{where}: the handler cannot be sent to Spark's executors: {why}: open what "
                "belongs to one process (clients, sessions, locks) in lifespan="
            ) from error
    data = pickle.dumps((sources_of([*written_in, *shipping.main_of(carried)]), data))
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


# -- modules, on the driver ------------------------------------------------------------------------


class Source(NamedTuple):
    """One module: its source text, and whether it is a package."""

    text: str
    is_package: bool


def sources_of(modules: Iterable[types.ModuleType]) -> dict[str, Source]:
    """The sources of all the user's own modules that these modules import."""
    found: dict[str, Source] = {}
    waiting: list[str] = []
    for module in modules:
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            package = module.__package__ or ""
            waiting += imports(Path(path).read_text(encoding="utf-8"), package)
    while waiting:
        name = waiting.pop()
        if name in found or (path := _own_file(name)) is None:
            continue
        is_package = path.name == "__init__.py" or path.is_dir()
        text = "" if path.is_dir() else path.read_text(encoding="utf-8")
        found[name] = Source(text, is_package)
        waiting += imports(text, name if is_package else name.rpartition(".")[0])
        waiting += [name.rpartition(".")[0]] if "." in name else []
    return found


def imports(text: str, package: str) -> Iterator[str]:
    """Every name that may be a module in the import statements of a source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                up = parts[: len(parts) - node.level + 1]
                base = ".".join([*up, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _own_file(name: str) -> Path | None:
    """The file of a user's own module; None if it is installed or not a module."""
    top, *inside = name.split(".")
    if not top or top == "__main__" or top in shipping.THERE:
        return None
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        place = Path(next(iter(spec.submodule_search_locations)))
        place = place.parent.joinpath(top, *inside)
        places = (place / "__init__.py", place.with_name(f"{place.name}.py"), place)
        path = next((one for one in places if one.exists()), None)
    else:
        path = Path(spec.origin) if spec.origin and not inside else None
    if path is None or shipping.is_installed(path):
        return None
    return path if path.is_dir() or path.suffix == ".py" else None


# -- modules, in a task ----------------------------------------------------------------------------


class Shipped(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from the sources that were shipped with the handler."""

    def __init__(self) -> None:
        self.sources: Mapping[str, Source] = {}

    def replace(self, sources: Mapping[str, Source]) -> None:
        """Import these from now on; modules of another job's handler are dropped.

        Spark uses a worker for many jobs, and a notebook ships the same module again, changed.
        """
        if sources == self.sources:
            return
        for name in self.sources:
            if getattr(sys.modules.get(name), "__loader__", None) is self:
                del sys.modules[name]
        self.sources = sources
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module, if it was shipped."""
        source = self.sources.get(fullname)
        if source is None:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=source.is_package)

    def get_source(self, fullname: str) -> str:
        """The text of a module; tracebacks show its lines."""
        return self.sources[fullname].text

    def is_package(self, fullname: str) -> bool:
        """Whether it is a package."""
        return self.sources[fullname].is_package


SHIPPED = Shipped()
