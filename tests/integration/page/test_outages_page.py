"""Eleven outages on the page, in a real browser: the line that `perkey why` has is its headline."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import make_desk  # noqa: F401  # a fixture of the test below
from tests.unit.observe.test_outages import (
    OUTAGES,
    broker_away,
    login_refused,
    plain,
    stage,  # noqa: F401  # a fixture, too
    stale_leader,
    waiting_start,
)

from perkey.observe.feed import Feed

#: what remains is not known while these last
UNKNOWN = (broker_away, login_refused, stale_leader, waiting_start)
#: name of a picture -> the window
VIEWS = {
    "": {},
    "-dark": {"dark": True},
    "-phone": {"width": 400, "height": 860},
    "-phone-dark": {"width": 400, "height": 860, "dark": True},
}


def kept_for_pushes(outage):
    """A push keeps one that hangs and one that only a snapshot shows."""
    marks = [] if outage.__name__ == "hung_async" else [pytest.mark.long]
    return pytest.param(outage, marks=marks, id=outage.__name__)


@pytest.mark.parametrize("outage", [kept_for_pushes(one) for one in OUTAGES])
def test_the_headline_of_an_outage(browser, serve, stage, make_desk, monkeypatch, outage):  # noqa: F811  # the fixtures above
    """The cause, the cure with this page's address in its commands, and nothing over the edge."""
    told = outage(stage=stage, desk=make_desk, monkeypatch=monkeypatch)
    address = serve(Feed(stage.members, stage))
    for view, window in VIEWS.items():
        browser.open(address, **window)
        browser.sees("live", selector="#live")
        browser.sees("Next: ", selector=".why")
        assert plain(browser.text(".why .said")) == plain(told["text"])
        cure = browser.text(".why .next").replace(f" --url {address.rstrip('/')}", "")
        assert plain(cure) == plain(f"Next: {told['next']}")
        width = browser.run("return document.documentElement.scrollWidth")
        assert width <= window.get("width", 1280)
        assert (browser.text(".tile b") == "–") is (outage in UNKNOWN)
        browser.shoot(f"outage-{outage.__name__}{view}")
