"""The page's routes without a browser: headers, bad queries, and how many may watch."""

from __future__ import annotations

import http.client
import time

import pytest
from starlette.applications import Starlette
from tests.unit.observe.test_http import get

from perkey.errors import ConfigError
from perkey.observe import feed as module
from perkey.observe.feed import Feed, view_of
from perkey.observe.page import FILES, page_routes
from perkey.observe.serving import Serving, listening


@pytest.fixture
def port():
    """The page of a group without members."""
    feed = Feed(list, None)
    server = Serving(
        Starlette(routes=page_routes(feed)), listening("http", "127.0.0.1", 0), feed.close
    )
    yield server.port
    server.close()


def test_every_file_is_there_and_locked_in(port):
    """Each is served with its type, and the browser is told to take nothing from elsewhere."""
    for path, (_, kind) in FILES.items():
        status, body, headers = get(port, path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
        assert headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "https://" not in body


def test_a_query_that_cannot_be_is_one_line(port):
    """400 with what is wrong."""
    assert get(port, "/events?start=x")[:2] == (400, "start is a whole number from 0\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"order": "x"}, "order is one of worst"),
        ({"count": "0"}, "count is 1 to 200"),
        ({"count": "201"}, "count is 1 to 200"),
        ({"partition": "-1"}, "partition is a whole number"),
        ({"offset": "1" * 20}, "offset is a whole number"),
        ({"topic": "t" * 301}, "at most 300 characters"),
    ],
)
def test_views_have_limits(given, said):
    """Beyond them a ConfigError that names the limit; at them they are fine."""
    with pytest.raises(ConfigError, match=said):
        view_of(given)
    assert view_of({"count": "200", "topic": "t" * 300, "offset": "1" * 19})["count"] == 200


def test_a_list_is_sent_to_those_who_look_at_it():
    """And to no other page; a list that does not exist is refused."""
    feed = Feed(list, None)
    feed.close()
    for asked, other in (("parked", "on_hold"), ("on_hold", "parked")):
        sent = feed.event(view_of({"list": asked}))
        assert (sent[asked], other in sent) == ([], False)
    with pytest.raises(ConfigError, match="list is one of parked, on_hold"):
        view_of({"list": "held"})


def test_while_no_one_watches_only_sums_are_asked_for():
    """Blockers walk over every record; they are looked up when somebody comes, before it is told."""
    asked = []

    def told(name):
        def ask():
            asked.append(name)
            return []

        return ask

    feed = Feed(told("all"), None, told("sums"))
    deadline = time.monotonic() + 20
    while not asked:
        assert time.monotonic() < deadline
    feed.enter()
    while feed.number < 1:
        assert time.monotonic() < deadline
    feed.close()
    assert (asked[0], "all" in asked) == ("sums", True)
    assert len(feed.history()) == len(asked)


def test_so_many_may_watch_and_no_more(port, monkeypatch):
    """One more than the limit is told so; when one leaves there is room again."""
    monkeypatch.setattr(module, "WATCHERS_MAX", 1)

    connections = []

    def watch():
        one = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        one.request("GET", "/events")
        stream = one.getresponse()
        connections.append((stream, one))
        return stream.readline()

    def leave():
        for both in connections.pop():
            both.close()

    assert watch() == b"event: history\n"
    assert watch() == b"event: refused\n"
    leave()
    leave()
    deadline = time.monotonic() + 20
    while (told := watch()) != b"event: history\n":
        assert time.monotonic() < deadline, told
        leave()
    leave()


def test_a_look_that_fails_is_logged_once_and_the_page_continues(caplog):
    """Whatever a snapshot has in it, the next look is near."""
    asked = []

    def told():
        asked.append(1)
        if len(asked) < 4:
            raise KeyError("frontier")
        return []

    feed = Feed(told, None)
    try:
        feed.enter()
        deadline = time.monotonic() + 20
        while feed.number < 1:
            feed._wake.set()
            assert time.monotonic() < deadline
    finally:
        feed.close()
    assert [one.exc_info[0] for one in caplog.records if one.exc_info] == [KeyError]


def test_a_question_that_fails_does_not_end_the_stream(caplog):
    """What one watcher asks for is logged once; the next look answers."""
    asked = []

    class Looks:
        def find_key(self, key, topic):
            asked.append(key)
            if len(asked) < 3:
                raise KeyError("topic")
            return []

    feed = Feed(list, Looks())
    server = Serving(
        Starlette(routes=page_routes(feed)), listening("http", "127.0.0.1", 0), feed.close
    )
    try:
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        line.request("GET", "/events?key=k")
        with line.getresponse() as answer:
            while not answer.readline().startswith(b"event: look"):
                feed._wake.set()
        line.close()
    finally:
        server.close()
    assert [one.exc_info[0] for one in caplog.records if one.exc_info] == [KeyError]
