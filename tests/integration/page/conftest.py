"""A real browser on a real broker's data. Screenshots land in test-out/page/."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.integration.app.conftest import _kafka, kafka
from tests.support.waiting import wait_for

from perkey.observe.feed import Feed
from perkey.observe.page import page_routes
from perkey.observe.serving import Serving, listening

__all__ = ["_kafka", "kafka"]

OUT = Path(__file__).parents[3] / "test-out" / "page"
WAIT_S = 30.0
#: the browser that a test has used
OPEN = pytest.StashKey[Any]()
NEEDED = (
    "no Chromium here: `apt-get install chromium chromium-driver` (Debian), then run this again"
)


class Browser:
    """Chromium on one page, in the words of these tests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """A page, anew, in a window of this size."""
        self.driver.get("about:blank")
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get(url)

    def command(self, name: str, **given: Any) -> Any:
        """A command of the browser's own protocol."""
        return self.driver.execute_cdp_cmd(name, given)

    def run(self, script: str, *given: Any) -> Any:
        """What a function of JavaScript returns."""
        return self.driver.execute_script(script, *given)

    def text(self, selector: str = "body") -> str:
        """The visible text of the first such element; empty when there is none."""
        return self.run(
            "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector
        )

    def sees(self, *words: str, selector: str = "body") -> str:
        """Wait until all of these are to be seen; the whole text."""
        try:
            wait_for(lambda: all(word in self.text(selector) for word in words), WAIT_S)
        except AssertionError:
            self.shoot("failed")
            text = self.text(selector)
            missing = [word for word in words if word not in text]
            raise AssertionError(f"not seen within {WAIT_S} s: {missing}\n{text[:3000]}") from None
        return self.text(selector)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def click(self, selector: str) -> None:
        """Click the first such element."""
        self.driver.find_element("css selector", selector).click()

    def log(self) -> list[str]:
        """What the console was told since the last time: errors of scripts, refused loads."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def leave(self) -> list[str]:
        """Leave the page before its server ends; what the console has reported so far."""
        self.driver.get("about:blank")
        return self.log()

    def shoot(self, name: str) -> None:
        """A screenshot, to be looked at."""
        OUT.mkdir(parents=True, exist_ok=True)
        whole = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        (OUT / f"{name}.png").write_bytes(base64.b64decode(whole["data"]))


@pytest.fixture(scope="session")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(NEEDED)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--disable-background-networking", f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield Browser(opened)
    opened.quit()


@pytest.fixture
def browser(_browser: Browser, request: pytest.FixtureRequest) -> Browser:
    """The session's browser; a console that complains fails the test."""
    _browser.leave()
    request.node.stash[OPEN] = _browser
    return _browser


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Leave the page before any fixture ends: a page polls, and a refused request is a complaint.

    Fixtures end in an order of their own: those that a test names behind `browser` end before it.
    """
    browser = item.stash.get(OPEN, None)
    complaints = [] if browser is None else browser.leave()
    yield
    assert complaints == []


@pytest.fixture
def serve() -> Iterator[Callable[[Feed], str]]:
    """Serves the page of a feed until the test is over; its address."""
    opened: list[Serving] = []

    def start(feed: Feed) -> str:
        routes = Starlette(routes=page_routes(feed))
        opened.append(Serving(routes, listening("http", "127.0.0.1", 0), feed.close))
        return f"http://{opened[-1].address}"

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def page(kafka: Any) -> Callable[..., str]:
    """Starts an app with `http`; the address of its page."""

    def start(app: Any, **how: Any) -> str:
        run = kafka.start(app, **how)
        http = wait_for(lambda: run._outside._http)
        return f"http://{http.address}"

    return start
