"""The page of a member that knows its group by the reports: two processes, one killed with -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from tests.support.command import perkey as cli
from tests.support.waiting import wait_for

from perkey.broker.state import free_ports

#: the same with shorter waits: reports each half second, silent after three
MEMBER = """
import sys, time, perkey
from perkey.observe import reports
reports.EVERY_S, reports.SILENT_S = 0.5, 3.0
bootstrap, group, topic, reported, http = sys.argv[1:]
app = perkey.App(
    group=group, reports=reported, http=http or None,
    kafka={"bootstrap.servers": bootstrap, "session.timeout.ms": 6000, "fetch.wait.max.ms": 50},
)
@app.consume(topic, retry=perkey.Retry(attempts=2, delay_s=0.1))
def check(record):
    if record.value == b"hang":
        time.sleep(600)
    if record.value == b"bad":
        raise ValueError(f"no customer {record.key.decode()}")
app.run()
"""


@pytest.fixture
def member(kafka, tmp_path):
    """Starts members as processes of their own; they are killed at the end."""
    script, started = tmp_path / "member.py", []
    script.write_text(MEMBER)

    def start(group, topic, reported, http=""):
        given = [kafka.bootstrap, group, topic, reported, http]
        started.append(subprocess.Popen([sys.executable, str(script), *given]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def free_address():
    """A port of this machine that nobody has."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def snapshot(address):
    """What the member tells of itself; None while it does not."""
    try:
        with urllib.request.urlopen(f"http://{address}/snapshot", timeout=60) as answer:
            return json.load(answer)
    except OSError:
        return None


@pytest.mark.long  # half a minute of waiting for sessions and silence
def test_the_group_is_on_the_page_of_each_member(browser, kafka, member):
    """Partitions, records, failures and members of both processes; the killed one is marked silent."""
    topic, group, reported = kafka.topic(2), kafka.name("g"), kafka.name("reports")
    address = free_address()
    watched = member(group, topic, reported, address)
    other = member(group, topic, reported)
    wait_for(lambda: (shot := snapshot(address)) and len(shot["partitions"]) == 1, 60)
    mine = snapshot(address)["partitions"][0]["partition"]
    theirs = 1 - mine
    for number, hanging in ((theirs, 4), (mine, 3)):  # the other member's blocks more: it is first
        kafka.fill(topic, [{"key": f"c{number}", "value": b"hang"}] * hanging, partition=number)
        kafka.fill(topic, [{"key": f"k{n}", "value": b""} for n in range(20)], partition=number)
    kafka.fill(topic, [{"key": "bad", "value": b"bad"}], partition=theirs)

    browser.open(f"http://{address}")
    names = [f"{os.uname().nodename}-{one.pid}" for one in (watched, other)]
    text = browser.sees(*names, f"{topic}[0]", f"{topic}[1]", "c0", "c1", "no customer bad")
    assert "No report from" not in text
    browser.sees(f"in member {names[1]}")  # who has the record that holds up its partition
    browser.shoot("group-of-two")
    browser.open(f"http://{address}/#/partition/{topic}/{theirs}")
    browser.sees(f"As member {names[1]} reported", f"c{theirs}", "blocks it", "bad")
    browser.sees("Offsets 0 to", "none of them done", "running", "parked", "done")
    browser.shoot("partition-of-another")
    with urllib.request.urlopen(f"http://{address}/why?where={topic}:{theirs}", timeout=60) as told:
        assert names[1] in json.load(told)["sentences"][0]["text"]

    browser.open(f"http://{address}")
    browser.sees(*names, "live")
    other.send_signal(signal.SIGKILL)
    browser.sees(f"No report from: {names[1]}", selector="#alarm")
    browser.sees("silent for", selector="main")
    browser.sees("No other member owns its partitions")
    assert f"in member {names[1]}" not in browser.text(".why")  # no call of it runs
    browser.shoot("member-killed")
    # The group gives its partition to the one that is left, which has its records now.
    wait_for(lambda: len(snapshot(address)["partitions"]) == 2, 60)
    wait_for(lambda: names[1] not in browser.text("#partitions"))

    asked = ["--group", group, "--bootstrap-servers", kafka.bootstrap, "--reports", reported]
    status = cli("status", *asked)
    assert status.returncode == 0, status.stderr
    assert names[0] in status.stdout
    silent = wait_for(lambda: [s for s in shots(asked) if s["silent_s"]], 60)
    assert [one["app"]["member"] for one in silent] == [names[1]]
    why = cli("why", f"{topic}:{theirs}", *asked)
    assert why.returncode == 0, why.stderr
    assert "silent for" in why.stdout
    assert f"in member {names[0]}" in " ".join(why.stdout.split())


def shots(asked):
    """The members as `perkey status --group` has them."""
    done = cli("status", *asked, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
