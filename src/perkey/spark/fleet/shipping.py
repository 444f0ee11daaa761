"""The app and its sources, shipped to the executors.

The app is shipped by value: its options as they are on the driver, its handlers with the globals
that they use, from whatever module. Modules that the app imports from its own folder are shipped as
sources, and so is Perkey, so that executors run the driver's version of both. Packages with
compiled code cannot be shipped like this; they must be installed on the executors.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import marshal
import os
import sys
import types
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from perkey.app_options import Hosted
from perkey.errors import ConfigError
from perkey.spark.fleet.limits import APP_BYTES_MAX, SOURCE_BYTES_MAX, SOURCE_FILES_MAX

#: A fixed date, so that the same sources give the same file.
_DATE = (1980, 1, 1, 0, 0, 0)
#: Modules of Perkey that a member imports; Python does not compile what comes from a zip by itself.
_COMPILED = tuple(
    f"perkey/{part}"
    for part in (
        "__init__", "_version", "app", "errors", "options", "policies", "routing", "types",
        "codec/", "core/", "kafka/", "ledger/", "runtime/", "spark/__init__", "spark/fleet/",
        "spark/table/",
    )
)  # fmt: skip
#: Flags of a .pyc that has its source's hash and is not checked against it.
_UNCHECKED = (0b01).to_bytes(4, "little")
#: folders that hold no sources of the app
_NOT_SHIPPED = {"__pycache__", ".git", ".venv", "venv", "node_modules"}


def packed(app: Hosted) -> bytes:
    """The app as executors load it; raises ConfigError that names what cannot be shipped."""
    with by_value(modules_of(app)):
        try:
            data = dumps(app)
        except Exception as error:
            raise ConfigError(
                f"the app cannot be sent to Spark's executors: {_culprit(app, error)}: open what "
                "belongs to one process (clients, sessions, locks) in lifespan= and keep it in "
                "app.state"
            ) from error
    if len(data) > APP_BYTES_MAX:
        raise ConfigError(
            f"the app is {len(data)} bytes with the globals its handlers use, more than "
            f"{APP_BYTES_MAX}: load large data in lifespan= instead"
        )
    return data


def modules_of(app: Hosted) -> list[types.ModuleType]:
    """The app's own modules: their functions and classes are shipped by value."""
    values = [app.options.lifespan]
    for handler in app.handlers:
        values += [handler.function, handler.value, getattr(handler, "prefetch", None)]
    return modules_behind(values)


def modules_behind(values: Iterable[Any]) -> list[types.ModuleType]:
    """The user's modules that define these functions and classes."""
    found: dict[str, types.ModuleType] = {}
    for value in values:
        # A callable object belongs to its class, a wrapped function to the module it was written in
        holder = value if isinstance(value, type | types.FunctionType) else type(value)
        name = getattr(getattr(value, "__wrapped__", None), "__module__", None) or holder.__module__
        module = sys.modules.get(name)
        # Neither Python's nor installed, so executors may not have it. cloudpickle takes everything
        # of __main__ by value anyway.
        if module is None or module.__name__.split(".")[0] in (*THERE, "__main__"):
            continue
        source = getattr(module, "__file__", None)
        if source is not None and not is_installed(Path(source)):
            found[module.__name__] = module
    return list(found.values())


#: Installed on executors, wherever the driver imports it from.
THERE = frozenset(sys.stdlib_module_names) | {"perkey", "pyspark"}


def is_installed(source: Path) -> bool:
    """Whether it belongs to a package that is installed on executors, too."""
    return "site-packages" in source.parts or "dist-packages" in source.parts


@contextmanager
def by_value(modules: Iterable[types.ModuleType]) -> Iterator[None]:
    """A context in which everything in these modules is pickled by value."""
    # PySpark's cloudpickle has no types.
    known: Any = cloudpickle.list_registry_pickle_by_value
    register: Any = cloudpickle.register_pickle_by_value
    with ExitStack() as stack:
        for module in modules:
            if module.__name__ not in known():
                register(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _culprit(app: Hosted, error: Exception) -> str:
    """The global and its function, if they can be found; otherwise Python's own message."""
    functions = [*(handler.function for handler in app.handlers), app.options.lifespan]
    named = unpicklable_name(functions, app)
    if named is not None:
        return named
    for name, value in {"kafka": app.options.kafka, "producer": app.options.producer}.items():
        if not _travels(value):
            return f"{name}= holds what cannot be pickled"
    return f"{type(error).__name__}: {error}"


def unpicklable_name(functions: Iterable[Any], app: Hosted | None) -> str | None:
    """The function and the global in it that cannot be pickled, as text; None if there is none."""
    for function in functions:
        code: types.CodeType | None = getattr(function, "__code__", None)
        if code is None:
            continue
        known, cells = function.__globals__, function.__closure__ or ()
        used = chain(
            ((name, known[name]) for name in code.co_names if name in known),
            ((n, cell.cell_contents) for n, cell in zip(code.co_freevars, cells, strict=True)),
        )
        for name, value in used:
            if not isinstance(value, types.ModuleType) and value is not app and not _travels(value):
                who = getattr(function, "__name__", type(function).__name__)
                return f"{who} uses {name!r}, a {type(value).__name__}"
    return None


def _travels(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


# -- pickles ---------------------------------------------------------------------------------------


#: What pydantic builds from a model's fields. It cannot always be loaded again: two fields of one
#: model, with postponed annotations, raise a KeyError('type') there. So it is left out, and rebuilt
#: at the model's first use.
BUILT = frozenset({"__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"})
_MOCKS = "pydantic._internal._mock_val_ser"


class _Pickler(cloudpickle.Pickler):
    """PySpark's, with support for pydantic models that are shipped by value."""

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
    """Fill the class of a model that was loaded empty; it is completed at its first use."""
    fill, attributes, slots = state
    fill(model, (attributes, slots))
    importlib.import_module(_MOCKS).set_model_mocks(model)


def dumps(value: Any) -> bytes:
    """The value with the functions and classes it needs."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)  # type: ignore[no-untyped-call]  # PySpark gives none
    return buffer.getvalue()


# -- sources ---------------------------------------------------------------------------------------


def sources_zip(app: Hosted, data: Sequence[str] = ()) -> tuple[str, bytes]:
    """A zip with Perkey's sources and those of the app's modules: its name and content.

    `data`: patterns of other files to include, such as `shop/templates/*.html`. Files beside
    sources may be secrets, so they are included only on request. The name has a hash of the
    content: Spark refuses a different content under an old name.
    """
    files = dict(_files_of("perkey", Path(__file__).parents[2], ("*",)))
    for module in [*modules_of(app), *main_of(handler.function for handler in app.handlers)]:
        files |= beside(module, data)
    size_bytes = sum(path.stat().st_size for path in files.values())
    if len(files) > SOURCE_FILES_MAX or size_bytes > SOURCE_BYTES_MAX:
        raise ConfigError(
            f"the app's folder holds more than {SOURCE_FILES_MAX} source files or "
            f"{SOURCE_BYTES_MAX} bytes: put the app into a separate folder or package"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, path in sorted(files.items()):
            source = path.read_bytes()
            # Not compressed: a restarted member reads it again.
            archive.writestr(zipfile.ZipInfo(name, _DATE), source)
            if name.startswith(_COMPILED) and name.endswith(".py"):
                archive.writestr(zipfile.ZipInfo(f"{name}c", _DATE), compiled(name, source))
    content = buffer.getvalue()
    return f"perkey-app-{hashlib.sha256(content).hexdigest()[:16]}.zip", content


def main_of(values: Iterable[Any]) -> list[types.ModuleType]:
    """The main script, if it defines one of these: it may import its neighbours."""
    inside = any(getattr(value, "__module__", "") == "__main__" for value in values)
    main = sys.modules.get("__main__")
    return [main] if inside and main is not None and getattr(main, "__file__", None) else []


def beside(module: types.ModuleType, data: Sequence[str] = ()) -> dict[str, Path]:
    """Name in the zip -> source: the module's package, or what was imported from its folder."""
    source = Path(str(module.__file__)).resolve()
    top, _, inside = module.__name__.partition(".")
    if inside:
        root = source.parents[inside.count(".") + (source.name == "__init__.py")]
        return dict(_files_of(top, root, data))
    files: dict[str, Path] = {}
    for name, other in list(sys.modules.items()):
        where = getattr(other, "__file__", None)
        if "." in name or name == "perkey" or not isinstance(where, str) or where[-3:] != ".py":
            continue
        path = Path(where).resolve()
        if is_installed(path):
            continue
        if path.parent == source.parent and path != source:
            files[path.name] = path
        elif path.name == "__init__.py" and path.parent.parent == source.parent:
            files |= _files_of(name, path.parent, data)
    return files


def _files_of(package: str, folder: Path, data: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Name in the zip -> file: the sources of a package, and its requested data."""
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _NOT_SHIPPED)
        for name in sorted(names):
            path = Path(base) / name
            inside = Path(package) / path.relative_to(folder)
            if name.endswith(".py") or _is_wanted_data(inside, data):
                yield str(inside), path


def _is_wanted_data(path: Path, patterns: Sequence[str]) -> bool:
    """Matches like a shell: a name that starts with a dot only by a pattern that does, too."""
    if path.suffix in (".pyc", ".so", ".pyd"):
        return False
    return any(
        fnmatch(str(path), pattern)
        and (not path.name.startswith(".") or Path(pattern).name.startswith("."))
        for pattern in patterns
    )


def compiled(name: str, source: bytes) -> bytes:
    """The .pyc of a source. An executor with another Python version ignores it, and compiles.

    It is never checked against its source (PEP 552), which is in the same zip.
    """
    code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + code


def forget(zipped: str) -> None:
    """Remove the zip of this name from the driver's own path, where Spark puts it, too."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(zipped)]
