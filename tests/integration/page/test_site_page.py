"""The built site in a real browser. Screenshots land in test-out/site/; `make site` builds it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import fields
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import perkey
from perkey.app_options import AppOptions
from perkey.options import HandlerOptions

ROOT = Path(__file__).parents[3]
SITE = ROOT / "site-out"
OUT = ROOT / "test-out" / "site"
LOOKED_AT = ("index", "guides/order-and-keys", "how-it-works/pictures", "reference/api")
#: of a page that is taller, the screenshot has the beginning
HEIGHT_MAX = 4000

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="`make site` builds it")


def open_page(browser: Any, page: str, width: int, *, dark: bool = False) -> None:
    """A page as a file, without a server."""
    browser.open(f"{(SITE / page).as_uri()}.html", width=width, dark=dark)


def shoot(browser: Any, name: str, width: int) -> None:
    """The whole page as a picture."""
    height = browser.run("return document.documentElement.scrollHeight")
    browser.command(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=min(height, HEIGHT_MAX), deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    picture = browser.command("Page.captureScreenshot", format="png")
    (OUT / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", LOOKED_AT)
def test_pages_fit_into_the_window(browser, page, width, dark):
    """No page is wider than its window, and each picture of it is kept to be looked at."""
    open_page(browser, page, width, dark=dark)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    scheme = "dark" if dark else "light"
    shoot(browser, f"{page.replace('/', '-')}-{width}-{scheme}", width)
    colour = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(13, 17, 23)") == dark


def test_the_colours_of_a_drawing_follow_the_theme(browser):
    """The reader's choice by the button counts for drawings too, against the system's scheme."""
    open_page(browser, "how-it-works/pictures", 1280)
    ink = "return getComputedStyle(document.querySelector('svg.pk text')).fill"
    light = browser.run(ink)
    browser.run("document.body.dataset.theme = 'dark'")
    assert browser.run(ink) != light


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The site as it is published: a folder with its version's name, beside versions.json."""
    version = perkey.__version__
    (tmp_path / version).symlink_to(SITE)
    (tmp_path / "versions.json").write_text(json.dumps([version, "0.0.1"]))

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(tmp_path))

        def log_message(self, *given: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{version}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_search_finds_a_page_by_its_words(browser, served):
    """The index is a script beside the page; no other service is asked."""
    browser.open(f"{served}/search.html?q=terminationGracePeriodSeconds")
    browser.sees("Kubernetes and KEDA")


def test_versions_are_listed_where_they_are_published(browser, served):
    """With versions.json beside the site's folder, a list of versions replaces the version."""
    browser.open(f"{served}/guarantees.html")
    browser.sees("0.0.1", selector="select.pk-version")


def test_the_reference_has_every_option():
    """The signatures of App and consume list the options of the code."""
    text = (SITE / "reference" / "api.html").read_text()
    options = [one.name for owner in (AppOptions, HandlerOptions) for one in fields(owner)]
    shown = [f'<span class="n"><span class="pre">{name}</span></span>' for name in options]
    assert [one for one in shown if one not in text and ">function<" not in one] == []
