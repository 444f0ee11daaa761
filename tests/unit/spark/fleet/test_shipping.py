"""The app and its sources on their way to executors."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

import perkey
from perkey.spark.fleet import shipping

pytestmark = pytest.mark.push

APP = """
import perkey, helper, package.inner
from pydantic import BaseModel

class Position(BaseModel):
    vehicle: str
    lat: float

app = perkey.App(group="g", kafka={"bootstrap.servers": "h:1"}, on_commit=print)

@app.consume("positions", value=Position)
async def handle(record):
    assert app.state == 7
    return helper.double(record.value.lat) + package.inner.ONE
"""

ZIPPED = """
import pathlib, shippedapp
from perkey.spark.fleet import shipping
name, content = shipping.sources_zip(shippedapp.app)
pathlib.Path(name).write_bytes(content)
print(pathlib.Path(name).resolve())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app with a module and a package beside it."""
    (tmp_path / "shippedapp.py").write_text(APP)
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("ONE = 1\n")
    return tmp_path


def python(folder: Path, text: str, *path: str) -> str:
    """What a fresh Python in that folder prints."""
    source = str(Path(perkey.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=folder, env={"PYTHONPATH": ":".join(path or (source, str(folder)))},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_app_travels_with_its_neighbours(folder, tmp_path_factory) -> None:
    """Executors that have neither Perkey nor the app's folder run its handler and its model."""
    packed = python(
        folder,
        """
        import pathlib, shippedapp
        from perkey.spark.fleet import shipping
        pathlib.Path("app.bin").write_bytes(shipping.packed(shippedapp.app))
        name, content = shipping.sources_zip(shippedapp.app)
        pathlib.Path(name).write_bytes(content)
        print(pathlib.Path(name).resolve())
        """,
    )
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    answer = python(
        elsewhere,
        f"""
        import asyncio, pickle, perkey
        app = pickle.load(open({str(folder / "app.bin")!r}, "rb"))
        app.state = 7
        handler = app.handlers[0]
        value = handler.value.model_validate_json(b'{{"vehicle": "v", "lat": 4}}')
        record = perkey.Record("positions", 0, 0, 0, None, value)
        print(asyncio.run(handler.function(record)), app.options.on_commit, ".zip" in perkey.__file__)
        """,
        packed,
    )
    assert answer == "9.0 None True"


def test_the_sources_are_the_same_file_for_the_same_app(folder) -> None:
    """The zip's name follows from its content, and Perkey's modules are in it compiled."""
    first, second = python(folder, ZIPPED), python(folder, ZIPPED)
    assert Path(first).name == Path(second).name
    names = zipfile.ZipFile(first).namelist()
    assert {"perkey/core/engine.pyc", "perkey/observe/static/page.html", "helper.py"} <= set(names)


def test_an_executor_without_dependencies_reports_it(folder, tmp_path_factory) -> None:
    """The task needs nothing but Python to tell what is missing."""
    packed = python(folder, ZIPPED)
    answer = python(
        tmp_path_factory.mktemp("bare"),
        """
        import importlib.util, sys
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name: None if name == "confluent_kafka" else real(name)
        from perkey.spark.fleet.membership import MemberTask
        from perkey.spark.fleet.task import Unusable, _loaded
        try:
            _loaded(MemberTask(0, 0, "g", "h", 1, b"", b""))
        except Unusable as error:
            print(error)
        print("confluent_kafka" in sys.modules)
        """,
        packed,
    )
    assert "lacks confluent_kafka: install Perkey's dependencies there" in answer
    assert answer.endswith("False")


def test_an_app_that_needs_more_reports_what(folder) -> None:
    """An import that fails on the executor is named, with the cure."""
    answer = python(
        folder,
        """
        import pickle
        from perkey.spark.fleet.membership import MemberTask
        from perkey.spark.fleet.task import Unusable, _loaded
        try:
            _loaded(MemberTask(0, 0, "g", "h", 1, b"", b"cnowhere\\nname\\n."))
        except Unusable as error:
            print(error)
        """,
    )
    assert "cannot import nowhere, which the app uses: install it there, or ship it" in answer


SECRETS = (".env", "service-account.json", "key.pem", "notes.txt")
PACKAGE_APP = """
import perkey

app = perkey.App(group="g", kafka={"bootstrap.servers": "h:1"})

@app.consume("t")
def handle(record):
    pass
"""


@pytest.mark.parametrize(
    ("patterns", "shipped"),
    [
        ([], set()),
        (["shop/templates/*.html"], {"shop/templates/a.html"}),
        (["*.json"], {"shop/service-account.json"}),
        (["shop/*"], {f"shop/{n}" for n in SECRETS[1:]} | {"shop/templates/a.html"}),
        (["shop/.env"], {"shop/.env"}),
    ],
)
def test_data_beside_the_sources_travels_only_when_asked_for(tmp_path, patterns, shipped) -> None:
    """Secrets stand beside sources: of a package its Python files travel, and what is named."""
    package = tmp_path / "shop"
    (package / "templates").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(PACKAGE_APP)
    (package / "native.so").write_text("")
    (package / "templates" / "a.html").write_text("<p>")
    for name in SECRETS:
        (package / name).write_text("s3cret")
    answer = python(
        tmp_path,
        f"""
        import io, zipfile
        from shop.app import app
        from perkey.spark.fleet import shipping
        _, content = shipping.sources_zip(app, {patterns!r})
        print("\\n".join(zipfile.ZipFile(io.BytesIO(content)).namelist()))
        """,
    )
    names = set(answer.splitlines())
    assert {one for one in names if one.startswith("shop/")} == {
        "shop/__init__.py", "shop/app.py", *shipped
    }  # fmt: skip
    assert "perkey/observe/static/page.html" in names


def app_with(handler: Any, **more: Any) -> perkey.App:
    """An app of one handler."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "h:1", **more})
    app.consume("t")(handler)
    return app


LOCK = threading.Lock()


def test_the_culprit_is_named() -> None:
    """A global, or a captured variable, that cannot be pickled is named with its handler."""

    def uses_global(record: perkey.Record) -> None:
        LOCK.acquire()

    captured = threading.Lock()

    def uses_captured(record: perkey.Record) -> None:
        captured.acquire()

    with pytest.raises(perkey.ConfigError, match="uses_global uses 'LOCK', a lock"):
        shipping.packed(app_with(uses_global))
    with pytest.raises(perkey.ConfigError, match="uses_captured uses 'captured', a lock"):
        shipping.packed(app_with(uses_captured))


@pytest.mark.parametrize(("over", "good"), [(-1, True), (0, True), (1, False)])
def test_an_app_has_a_largest_size(monkeypatch, over, good) -> None:
    """Large globals do not travel; the message says where to load them."""
    app = app_with(print_record)
    monkeypatch.setattr(shipping, "APP_BYTES_MAX", len(shipping.packed(app)) - over)
    if good:
        assert shipping.packed(app)
    else:
        with pytest.raises(perkey.ConfigError, match="load large data in lifespan="):
            shipping.packed(app)


def print_record(record: perkey.Record) -> None:
    """A handler."""
