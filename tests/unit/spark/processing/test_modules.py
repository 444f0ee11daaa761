"""Which modules travel with a handler, and how they are imported where they arrive."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

from perkey.spark.processing.payload import Shipped, Source, imports, sources_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path with a small program in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("wt_")]:
        del sys.modules[name]


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))


def test_imports_are_followed_wherever_they_stand(folder):
    """At the top, in functions, relative, through packages; never into what is installed."""
    write(
        folder,
        wt_job="import wt_a, json, pyarrow\ndef f():\n    from wt_pkg.sub import thing\n",
        wt_a="import wt_b\n",
        wt_b="import wt_a\n",
        wt_unused="",
        wt_pkg__sub="from . import other\nthing = 1\n",
        wt_pkg__other="",
        wt_pkg__unused="",
    )
    (folder / "wt_pkg" / "__init__.py").write_text("")
    found = sources_of([importlib.import_module("wt_job")])
    assert set(found) == {"wt_a", "wt_b", "wt_pkg", "wt_pkg.sub", "wt_pkg.other"}
    assert found["wt_pkg"].is_package


def test_a_folder_without_init_is_a_package_too(folder):
    """A namespace package of the user's own."""
    write(folder, wt_job="import wt_ns.inner\n", wt_ns__inner="X = 1\n")
    found = sources_of([importlib.import_module("wt_job")])
    assert found["wt_ns"] == Source("", is_package=True)
    assert found["wt_ns.inner"].text == "X = 1\n"


@pytest.mark.parametrize(
    ("line", "package", "names"),
    [
        ("import a.b", "", ["a.b"]),
        ("from a import b", "", ["a", "a.b"]),
        ("from . import b", "p.q", ["p.q", "p.q.b"]),
        ("from ..c import d", "p.q", ["p.c", "p.c.d"]),
    ],
)
def test_names_in_import_statements(line, package, names):
    """Absolute and relative; a name may be a module or something in one."""
    assert list(imports(line, package)) == names


def test_another_jobs_modules_are_forgotten(monkeypatch):
    """A worker that Spark uses again imports the new text, not what it had before."""
    shipped = Shipped()
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    try:
        shipped.replace({"wt_shipped": Source("X = 1", is_package=False)})
        assert importlib.import_module("wt_shipped").X == 1
        shipped.replace({"wt_shipped": Source("X = 2", is_package=False)})
        assert importlib.import_module("wt_shipped").X == 2
        shipped.replace({})
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("wt_shipped")
    finally:
        sys.modules.pop("wt_shipped", None)
