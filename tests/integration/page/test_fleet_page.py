"""The page that a Spark fleet's driver serves: both members, their records, one killed with -9."""

from __future__ import annotations

import json
import signal
import urllib.request

import psutil
import pytest
from tests.integration.spark.fleet_kit import START_S, kill, running
from tests.support.waiting import wait_for

from perkey.broker.state import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(480)]

#: A member that is not back within 6 s loses its partitions to the other.
APP = """
import asyncio
import perkey

app = perkey.App(
    group={group!r},
    kafka={{
        "bootstrap.servers": {bootstrap!r}, "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 50,
    }},
)

@app.consume({topic!r}, retry=perkey.Retry(attempts=2, delay_s=0.1))
async def check(record):
    if record.value == b"hang":
        await asyncio.sleep(600)
    if record.value == b"bad":
        raise ValueError("no customer " + record.key.decode())
"""
BAD = 23  # its offset: after three that hang or wait and twenty that are done
ROWS = """
const heading = [...document.querySelectorAll('h2')].find(e => e.innerText.startsWith(arguments[0]));
if (!heading) return [];
const rows = heading.closest('section').querySelectorAll('tbody tr');
return [...rows].map(row => [...row.children].map(cell => cell.innerText.trim()));
"""


def told(address, path):
    """What the driver answers; None while it does not."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return json.load(answer)
    except OSError:
        return None


def two_members(address):
    """The driver's snapshot once each of two members has a partition."""
    shot = told(address, "/snapshot")
    return shot and len({part["member"] for part in shot["partitions"]}) == 2 and shot


def free_address():
    """A port of this machine that nobody has."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
def fleet(kafka, tmp_path):
    """Two members in local[2], a partition each: in each a record that hangs and one that fails."""
    topic, address = kafka.topic(2, name=kafka.name("orders")), free_address()
    for number in (0, 1):
        kafka.fill(topic, [{"key": f"c{number}", "value": b"hang"}] * 3, partition=number)
        kafka.fill(topic, [{"key": f"k{n}", "value": b""} for n in range(20)], partition=number)
        kafka.fill(topic, [{"key": f"bad{number}", "value": b"bad"}], partition=number)
    text = APP.format(group=f"shop-{topic}", bootstrap=kafka.bootstrap, topic=topic)
    (tmp_path / "fleetapp.py").write_text(text)
    arguments = ("--members", "2", "--master", "local[2]", "--http", address)
    with running(tmp_path, *arguments):
        wait_for(lambda: two_members(address), START_S)
        yield topic, address


def member_of(browser, topic, number):
    """The member that the list of partitions names."""
    rows = browser.run(ROWS, "Partitions")
    return next((row[-1] for row in rows if row[0] == f"{topic}[{number}]"), None)


def states(browser):
    """What the list of members says of each."""
    return {row[0]: row[1] for row in browser.run(ROWS, "Members")}


def test_the_page_of_a_fleet(browser, fleet):
    """Members, a partition's picture and a record's story come from the member that has them."""
    topic, address = fleet
    browser.open(f"http://{address}")
    browser.sees(f"{topic}[0]", f"{topic}[1]", "c0", "c1", "no customer bad", "given up after")
    assert browser.text("#group") == f"group shop-{topic}"
    wait_for(lambda: list(states(browser).values()) == ["running", "running"])
    holders = [member_of(browser, topic, number) for number in (0, 1)]
    assert set(holders) == set(states(browser))
    browser.sees(f"in member {holders[0]}", f"in member {holders[1]}")
    browser.shoot("fleet")

    for number in (0, 1):
        browser.open(f"http://{address}/#/partition/{topic}/{number}")
        browser.sees("Record 0 ", f"(key c{number}) blocks it: running", f"bad{number}")
        cells = browser.run(
            "return [...document.querySelectorAll('.cells i')].map(e => e.className.slice(2)).join('')"
        )
        assert cells == "rqq" + "d" * 20 + "p"
    browser.shoot("fleet-partition")
    browser.open(f"http://{address}/#/record/{topic}/1/{BAD}")
    browser.sees("parked", "bad1", "no customer bad1", "given up: Park")
    browser.shoot("fleet-record")
    browser.open(f"http://{address}/#/key/c1")
    browser.sees("Key c1", "running", "behind another of its lane")


def test_a_member_of_a_fleet_that_is_killed(browser, fleet):
    """It is shown as silent, its partition with the other; then it is back, and nothing alarms.

    Spark's daemon is held so that it can start no new process before the session is over.
    """
    topic, address = fleet
    (victim,) = [one for one in two_members(address)["members"] if one["member"] == 1]
    shot = wait_for(lambda: two_members(address))
    number = next(part["partition"] for part in shot["partitions"] if part["member"] == 1)
    browser.open(f"http://{address}")
    wait_for(lambda: list(states(browser).values()) == ["running", "running"])
    before = wait_for(lambda: member_of(browser, topic, number))
    (other,) = set(states(browser)) - {before}

    daemon = psutil.Process(victim["pid"]).parent()
    daemon.send_signal(signal.SIGSTOP)
    try:
        kill(victim["pid"])
        browser.sees(f"No report from: {before}", selector="#alarm")
        browser.sees("silent for", selector="main")
        assert states(browser)[before].startswith("silent for")
        browser.shoot("fleet-member-killed")
        wait_for(lambda: member_of(browser, topic, number) == other)
        assert states(browser)[before].startswith("silent for")
        browser.shoot("fleet-partition-moved")
        browser.open(f"http://{address}/#/partition/{topic}/{number}")
        browser.sees("Record 0 ", f"(key c{number}) blocks it: running")
        where = f"/why?where={topic}:{number}"
        assert f"in member {other}" in told(address, where)["sentences"][0]["text"]
    finally:
        daemon.send_signal(signal.SIGCONT)
    browser.open(f"http://{address}")
    wait_for(lambda: list(states(browser).values()) == ["running", "running"], START_S)
    wait_for(lambda: {member_of(browser, topic, n) for n in (0, 1)} == set(states(browser)))
    browser.sees("live")
    assert browser.text("#alarm") == ""
    browser.shoot("fleet-member-back")
