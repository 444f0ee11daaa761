"""The page in a real browser, with what a real broker holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.broker.state import free_ports
from perkey.observe.feed import Feed, view_of

EVIL_KEY = "<script>document.title='owned'</script>"
EVIL_ERROR = "<img src=x onerror=\"document.title='owned'\">\x1b[2J\x00" + "x" * 1_000_000


POINT = """
const chart = [...document.querySelectorAll('svg.chart')].at(-1);
chart.scrollIntoView({block: 'center'});
const box = chart.getBoundingClientRect();
const at = {bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + 40};
chart.dispatchEvent(new PointerEvent('pointermove', at));
"""


#: lists what is not in line: tiles of a strip on several lines, cut text, cards of a row or column
ASKEW = """
const wrong = [], box = (e) => e.getBoundingClientRect();
const alike = (name, all, side) => {
  const found = new Set([...all].map((e) => Math.round(box(e)[side])));
  if (found.size > 1) wrong.push(`${name} ${side} ${[...found]}`);
};
for (const strip of document.querySelectorAll('.tiles')) alike('tiles', strip.children, 'top');
for (const row of document.querySelectorAll('.pair'))
  for (const side of ['top', 'bottom', 'width']) alike('pair', row.children, side);
for (const side of ['left', 'right']) alike('cards', document.querySelectorAll('main > .card'), side);
for (const e of document.querySelectorAll('.tile *, .badge, .said, .others .text, h2, th'))
  if (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
    if (getComputedStyle(e).overflow !== 'visible') wrong.push(`cut: ${e.innerText}`);
return wrong;
"""


class Trouble:
    """An app with a record that hangs, one that is parked, one that is retried, and much that is done."""

    def __init__(self, kafka, topic):
        self.go = threading.Event()
        self.app = kafka.app(group=f"shop-{topic}", http="127.0.0.1:0")

        @self.app.consume(topic, concurrency=16, retry=perkey.Retry(attempts=3, delay_s=0.2))
        def check(record):
            if record.key == b"cust-17":
                self.go.wait(60)
            elif record.key == EVIL_KEY.encode():
                raise ValueError(EVIL_ERROR)
            elif record.key == b"bad":
                raise KeyError("no such customer: 4711")
            elif record.key == b"later":
                raise perkey.RetryAfter(600)


@pytest.fixture
def trouble(kafka):
    """It runs on a topic of two partitions; what hangs goes on when the test is over."""
    topic = kafka.topic(2, name=kafka.name("orders"))
    one = Trouble(kafka, topic)
    kafka.fill(topic, [{"key": f"cust-{n}", "value": b""} for n in range(20)], partition=0)
    kafka.fill(topic, [{"key": "cust-17", "value": b""}] * 3, partition=0)
    kafka.fill(topic, [{"key": f"k{n}", "value": b""} for n in range(300)], partition=0)
    kafka.fill(topic, [{"key": "later", "value": b""}], partition=1)
    kafka.fill(topic, [{"key": f"k{n}", "value": b""} for n in range(40)], partition=1)
    kafka.fill(topic, [{"key": "bad", "value": b""}], partition=1)
    yield one, topic
    one.go.set()


def test_the_group_at_a_glance(browser, page, trouble):
    """What is left beside the plain lag, who holds up, handlers, failures, members, partitions."""
    one, topic = trouble
    browser.open(page(one.app))
    text = browser.sees(
        "KeyError", "parked", "cust-17", f"{topic}[0]", "records beyond it are done"
    )
    browser.sees("live")
    for word in (
        "Remaining",
        "Records per second",
        "since the start",
        "check",
        "Members",
        "running",
        "p99",
    ):
        assert word in text

    def tile(name):
        tiles = browser.text(".tiles").split("\n")
        return int(tiles[tiles.index(name) - 1])

    wait_for(lambda: tile("remaining") == 6)
    assert tile("plain lag") > 300
    browser.sees("given up after")
    assert browser.text("#group") == f"group shop-{topic}"
    # One headline: how bad, which record in bold, and what to type. A call of less than 5 s is no hang.
    wait_for(lambda: browser.text(".why .badge") in ("Hangs", "Stuck"))
    assert f"{topic}[" in browser.text(".why .said b")
    browser.sees(f"perkey why {topic}:", "--url http://127.0.0.1:", selector=".command code")
    wait_for(lambda: browser.run(POINT) or "records/s" in browser.text("#tip"))
    browser.shoot("group")


def test_everything_is_in_line(browser, page, trouble):
    """Tiles do not wrap, cards are aligned, and no headline, label or number is cut."""
    one, topic = trouble
    address, too_long = page(one.app), "1" * 60
    for where in (address, f"{address}/#/partition/{topic}/0"):
        browser.open(where)
        browser.sees("cust-17", "Next: ", "Records that block")
        assert browser.run(ASKEW) == []
        lengthen = f"document.querySelector('.tile b').innerText = '{too_long}';"
        assert browser.run(lengthen + ASKEW) == [f"cut: {too_long}"]


def cells(browser):
    """The squares of a partition, a letter each: what is done meanwhile changes them."""
    return browser.run(
        "return [...document.querySelectorAll('.cells i')].map(e => e.className.slice(2)).join('')"
    )


def test_a_partition_with_its_holes(browser, page, trouble):
    """The record at the frontier is named, and each hole stands in the picture."""
    one, topic = trouble
    browser.open(f"{page(one.app)}/#/partition/{topic}/0")
    browser.sees("blocks it", "cust-17", "done beyond")
    wait_for(lambda: cells(browser) == "rddqqq" + "d" * 300, what=lambda: cells(browser))
    assert browser.run("return document.querySelector('.cells i').title") == "17: running"
    assert "1 running, 302 done, 3 waits" in browser.run(
        "return document.querySelector('.cells').ariaLabel"
    )
    browser.shoot("partition")
    browser.open(f"{browser.driver.current_url.replace('/0', '/1')}")
    browser.sees("blocks it", "later")
    wait_for(lambda: cells(browser).startswith("fdd"), what=lambda: cells(browser))


class Drawn:
    """A partition whose map is full: a square is ten offsets."""

    def __init__(self, row):
        self.row = row

    def picture(self, topic, partition):
        return {
            "partition": self.row, "records": [], "from": 0, "to": 4_000, "per_cell": 10,
            "cells": "r" + "d" * 299 + "q" * 100, "shares": "0" * 300 + "9" * 100, "edge": 3_505,
        }  # fmt: skip


def test_the_reach_of_the_map_is_drawn(browser, serve, kafka):
    """A line at the first square past which nothing starts; squares are shaded by their share."""
    topic, app = kafka.topic(), kafka.app()
    app.consume(topic)(print)
    run = kafka.start(app)
    wait_for(lambda: run.snapshot()["partitions"])
    shot = run.snapshot()
    address = serve(Feed(lambda: [shot], Drawn(shot["partitions"][0])))
    browser.open(f"{address}/#/partition/{topic}/0")
    browser.sees("the map's reach: past 3,505 nothing starts", selector=".legend")
    kinds = browser.run("return [...document.querySelectorAll('.cells i')].map(e => e.className)")
    assert [at for at, kind in enumerate(kinds) if "edge" in kind] == [350]
    assert (kinds[0], kinds[1], kinds[-1]) == ("c-r s0", "c-d", "c-q s9")


def test_the_story_of_a_record(browser, page, trouble):
    """Attempt after attempt with its time, found by its place and by its key."""
    one, topic = trouble
    address = page(one.app)
    browser.open(f"{address}/#/record/{topic}/1/41")
    browser.sees("parked", "given up: Park", "next attempt in")
    assert len(browser.driver.find_elements("css selector", "ol.story li")) == 7
    browser.shoot("record")
    browser.press("/")
    browser.press("key=cust-17", "\ue007")
    browser.sees("Key cust-17", "running", "behind another of its lane")
    browser.press("/")
    browser.press(f"{topic}:0", "\ue007")
    browser.sees("Offsets 17 to")


def test_what_comes_with_records_is_text(browser, page, kafka, trouble):
    """A key that is a script and an error of a megabyte of markup are shown, short, and run nothing."""
    one, topic = trouble
    kafka.fill(topic, [{"key": EVIL_KEY, "value": b""}], partition=1)
    browser.open(page(one.app))
    browser.sees(EVIL_KEY, "<img src=x onerror=")
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    browser.sees("x" * 200, selector='[data-key="check ValueError"] pre')
    browser.shoot("hostile")
    assert browser.run("return document.title") != "owned"
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
    assert len(browser.text()) < 20_000
    policy = browser.run(
        "return fetch('/').then(a => [a.headers.get('content-security-policy'), a.headers.get('x-content-type-options')])"
    )
    assert policy[0].startswith("default-src 'self'")
    assert "frame-ancestors 'none'" in policy[0]
    assert policy[1] == "nosniff"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_telephone(browser, page, trouble, dark):
    """At 400 pixels nothing but tables goes over the edge, light or dark."""
    one, topic = trouble
    browser.open(page(one.app), width=400, height=860, dark=dark)
    browser.sees("KeyError", "cust-17")
    assert browser.run("return document.documentElement.scrollWidth") <= 400
    browser.shoot(f"phone-{'dark' if dark else 'light'}")
    browser.run(f"location.hash = '#/partition/{topic}/0'")
    browser.sees("Offsets 17 to")
    assert browser.run("return document.documentElement.scrollWidth") <= 400
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(15, 21, 20)") is dark


def test_keys_are_enough(browser, page, trouble):
    """Pressing j and Enter opens what holds up most, Escape goes back, t turns the light off, ? tells all."""
    one, _topic = trouble
    browser.open(page(one.app))
    browser.sees("cust-17", "Members")
    browser.press("j", "\ue007")
    browser.sees("Its story")
    browser.press("\ue00c")
    browser.sees("Members")
    browser.press("t")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    browser.shoot("group-dark")
    browser.press("t", "?")
    browser.sees("freeze", selector="dialog[open]")
    browser.press("\ue00c")
    wait_for(lambda: not browser.text("dialog[open]"))
    wait_for(lambda: browser.run("return document.activeElement === document.body"))
    browser.press(" ")
    browser.sees("frozen", selector="#live")
    browser.press(" ")
    browser.sees("live", selector="#live")


def test_it_is_live(browser, page, kafka, trouble):
    """What is done while one watches goes from the page; what is opened stays open."""
    one, topic = trouble
    browser.open(page(one.app))
    browser.sees("cust-17", "KeyError")
    browser.run("document.querySelector('[data-key=\"check KeyError\"]').open = true")
    browser.sees("Traceback", "no such customer", selector="details[open] pre")
    one.go.set()
    wait_for(lambda: "cust-17" not in browser.text("main"), 30)
    browser.sees("Traceback", selector="details[open] pre")
    browser.open(f"{browser.driver.current_url.split('#')[0]}#/partition/{topic}/0")
    browser.sees("All that was read is done")
    kafka.fill(topic, [{"key": "later", "value": b""}], partition=0)
    browser.sees("blocks it", "waits for a retry")


MEMBER = """
import sys, time, perkey
app = perkey.App(group=sys.argv[2], kafka={"bootstrap.servers": sys.argv[1]}, http=sys.argv[4])
@app.consume(sys.argv[3])
def check(record):
    time.sleep(0.05)
app.run()
"""


def test_a_member_dies_while_one_watches(browser, kafka, tmp_path):
    """Killed with -9, it is said at once; what it last said stays to be read, and says so."""
    topic, script = kafka.topic(), tmp_path / "member.py"
    script.write_text(MEMBER)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    kafka.fill(topic, [{"key": f"k{n}", "value": b""} for n in range(20)])
    member = subprocess.Popen(
        [sys.executable, str(script), kafka.bootstrap, kafka.name("g"), topic, address]
    )
    try:
        wait_for(lambda: answers(f"http://{address}/livez"), 60)
        browser.open(f"http://{address}")
        browser.sees("live", f"{topic}[0]", "check")
        member.send_signal(signal.SIGKILL)
        browser.sees(
            "No answer since", "the process has ended or is unreachable", selector="#alarm"
        )
        browser.sees("no answer", selector="#live")
        assert f"{topic}[0]" in browser.text("main")
        browser.shoot("died")
        assert all("ERR_" in line for line in browser.leave())  # that it tried again
    finally:
        member.kill()
        member.wait()


def answers(url):
    """Somebody listens there."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_one_spike_does_not_flatten_a_chart(browser, serve):
    """The scale is that of the other values; the spike is cut off, and its height is written."""
    feed = Feed(list, None)
    sample = {"remaining": 5, "lag": 9, "failures": 0, "p99_ms": {}}
    for second in range(200):
        rate = 90_000 if second == 150 else 800 + second
        feed._history.append({**sample, "at": 1000.0 + second, "rate_per_s": rate})
    browser.open(serve(feed))
    browser.sees("90,000", selector=".peak")
    highest = browser.run("return document.querySelectorAll('.ys')[1].innerText.split('\\n')[0]")
    assert 999 <= int(highest.replace(",", "")) <= 2_000


class Many:
    """Ten thousand partitions, as a member would tell of them."""

    def __init__(self, shot, count):
        (row,) = shot["partitions"]
        rows = [{**row, "partition": number, "remaining": number} for number in range(count)]
        self.shot = {**shot, "partitions": rows}

    def members(self):
        return [
            self.shot,
            {
                **self.shot,
                "partitions": [],
                "silent_s": 90.0,
                "app": {"group": "g", "member": "m2"},
            },
        ]

    def picture(self, topic, partition):
        return None


def test_ten_thousand_partitions(browser, serve, kafka):
    """They are paged through, filtered and ordered; a member not heard of is marked."""
    app = kafka.app()
    app.consume(kafka.topic())(print)
    run = kafka.start(app)
    wait_for(lambda: run.snapshot()["partitions"])
    many = Many(run.snapshot(), 10_000)
    feed = Feed(many.members, many)
    browser.open(serve(feed))
    browser.sees("1–50 of 10,000", "[9999]", "silent for 90 s", "No report from: m2")
    browser.press("n", "n")
    browser.sees("101–150 of 10,000", "[9899]", selector="#partitions")
    browser.press("p")
    browser.sees("51–100 of 10,000", selector="#partitions")
    browser.shoot("many")
    browser.click("#text")
    browser.press(":777")
    browser.sees("1–11 of 11", "[7779]", selector="#partitions")
    assert len(json.dumps(feed.event(view_of({})))) < 100_000
