"""The page in a real browser: pause and resume, and commands that are complete as copied."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from tests.support.waiting import wait_for

import perkey


@pytest.fixture
def shop(kafka, browser, tmp_path):
    """An app that obeys commands, and its topic; the token is in every request."""
    token = "t" * 20
    (tmp_path / "token").write_text(token)
    topic = kafka.topic(1)
    app = kafka.app(
        group=f"shop-{topic}", http="127.0.0.1:0", http_token_file=str(tmp_path / "token"),
        allow_control=True,
    )  # fmt: skip
    browser.command("Network.enable")
    headers = {"Authorization": f"Bearer {token}"}
    browser.command("Network.setExtraHTTPHeaders", headers=headers)
    yield app, topic
    browser.command("Network.setExtraHTTPHeaders", headers={})


@pytest.fixture
def commanded(page, shop):
    """The app's page and topic, and what it has handled."""
    app, topic = shop
    done = []

    @app.consume(topic, concurrency=16, retry=perkey.Retry(attempts=1))
    def check(record):
        if record.value == b"bad" and not done:
            raise KeyError("no such customer")
        done.append(record.offset)

    return page(app), topic, done


def test_a_topic_is_paused_and_resumed_by_buttons(browser, kafka, commanded):
    """The dry run first, then the reason, then each member's answer; on a phone, too, in the dark."""
    address, topic, done = commanded
    with_password = address.replace("://", f"://any:{'t' * 20}@")
    browser.open(f"{with_password}/#/partition/{topic}/0", width=400, dark=True)
    browser.sees(f"{topic}[0]", "Pause")
    browser.click(".back button.act")
    browser.sees(f"Pause topic {topic}", "would: pause topic", selector="#command")
    browser.click("#order-go")  # without a reason the browser refuses it
    browser.sees("would: pause topic", selector="#command")
    browser.driver.find_element("id", "order-reason").send_keys("a test")
    browser.shoot("command-phone-dark")
    browser.click("#order-go")
    browser.sees(f"done: paused topic {topic} until", "Close", selector="#command")
    browser.click("#order-close")
    kafka.fill(topic, [{"value": b"1"}])
    browser.open(f"{address}/")
    browser.sees("paused by a command until", "(a test)")
    assert done == []
    browser.open(f"{address}/#/partition/{topic}/0")
    browser.sees("Resume", selector=".back")
    browser.click(".back button.act")
    browser.sees("would: resume", selector="#command")
    browser.driver.find_element("id", "order-reason").send_keys("enough")
    browser.click("#order-go")
    browser.sees("done: resumed", selector="#command")
    wait_for(lambda: done == [0])


@pytest.mark.long
def test_a_process_that_hangs_is_one_line(browser, commanded):
    """A browser waits without end for a process that is suspended; the page does not."""
    address, topic, _ = commanded
    browser.open(f"{address}/#/partition/{topic}/0")
    browser.sees("Pause")
    browser.run(
        "const real = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = () => real(50);"
        "window.fetch = (_, {signal}) => new Promise((_, refuse) =>"
        " signal.addEventListener('abort', () => refuse(signal.reason)))"
    )
    browser.click(".back button.act")
    browser.sees("no answer within 30 s: it may be done all the same", selector="#command")


def fits(browser, width):
    """Nothing is wider than the window: no scroll bar, and no button beyond its edge."""
    right = "Math.max(0, ...[...document.querySelectorAll('.copy')].map(e => e.getBoundingClientRect().right))"
    edges = browser.run(f"return [document.documentElement.scrollWidth, {right}]")
    return max(edges) <= width


def shown(browser, where="body"):
    """The commands that are shown there."""
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    return browser.run(script, f"{where} .command code")


def typed(command):
    """What a shell prints for a command as copied; it must succeed."""
    words = shlex.split(command.partition(" > ")[0])
    assert words[0] == "perkey"
    ran = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    return ran.stdout


def test_the_commands_for_a_parked_record_work_as_copied(browser, kafka, commanded):
    """The advice, and those of the record: with the address, the token, the group, the brokers."""
    address, topic, done = commanded
    kafka.fill(topic, [{"value": b"bad", "key": "cust-17"}])
    browser.open(address)
    browser.sees(f"perkey record retry {topic}:0:0", selector=".command code")
    (advice,) = shown(browser, ".why")
    assert " --reason TEXT --url http://127.0.0.1:" in advice
    assert " --token-file /" in advice
    browser.open(f"{address}/#/record/{topic}/0/0")
    browser.sees("parked", "Commands")
    assert browser.run("return document.querySelectorAll('main button.act').length") == 0
    commands = {" ".join(one.split()[1:3]): one for one in shown(browser, "details.commands")}
    assert set(commands) == {
        "record retry", "record skip", "key hold", "key release", "parked export",
    }  # fmt: skip
    wait_for(lambda: kafka.committed(f"shop-{topic}", topic) is not None)
    wait_for(lambda: '"value": "bad"' in typed(commands["parked export"]))
    kafka.fill(topic, [{"value": b"good", "key": "cust-18"}])  # from now on nothing fails
    wait_for(lambda: done == [1])
    assert "done: released 1" in typed(commands["key release"])
    wait_for(lambda: done == [1, 0])


def test_parked_records_are_listed_with_commands_by_their_error(browser, kafka, commanded):
    """All that failed alike by one command; a telephone in the dark has no scroll bar."""
    address, topic, done = commanded
    kafka.fill(topic, [{"value": b"bad", "key": f"cust-{n}"} for n in range(3)])
    kafka.fill(topic, [{"value": b"behind", "key": "cust-1"}])
    browser.open(address)
    browser.sees("Parked 3", "Held 0", selector="nav")
    for width, dark in ((400, True), (1280, False)):
        browser.open(f"{address}/#/parked", width=width, dark=dark)
        browser.sees("cust-2", "KeyError", "attempts used up", "no such customer", "To export")
        assert fits(browser, width)
        browser.run("document.querySelectorAll('details').forEach(e => { e.open = true })")
        assert fits(browser, width)
        browser.shoot(f"parked-{'phone-dark' if dark else 'light'}")
    (release,) = shown(browser, ".card > details.commands")
    assert 'state == "parked" and error.type == "KeyError"' in release
    kafka.fill(topic, [{"value": b"good", "key": "other"}])  # from now on nothing fails
    wait_for(lambda: done == [4])
    assert "done: released 3" in typed(release)
    wait_for(lambda: sorted(done) == [0, 1, 2, 3, 4])
    browser.sees("No record is parked.")


def test_a_dead_letter_topic_has_the_command_of_its_replay(browser, kafka, page, shop):
    """A dry run as copied; on the first view and beside the parked records."""
    app, topic = shop

    @app.consume(
        topic, retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.DeadLetter("{topic}.dlq", on_missing="create"),
    )  # fmt: skip
    def check(record):
        raise KeyError("no such customer")

    address = page(app)
    kafka.fill(topic, [{"value": b"bad", "key": "cust-17"}])
    wait_for(lambda: kafka.committed(f"shop-{topic}", topic) == 1)
    for where in ("", "/#/parked"):
        browser.open(f"{address}{where}", width=400)
        browser.sees("Dead letters", f"{topic}.dlq")
        assert fits(browser, 400)
        (replay,) = shown(browser, ".letters")
    assert "1 letter to send" in typed(replay)


def test_held_records_are_listed_with_their_reason(browser, kafka, commanded):
    """Until when, by whom and why; the command releases one, light or dark."""
    address, topic, done = commanded
    browser.open(f"{address}/#/held", width=400)
    browser.sees("No record is held.", "once a record of it waits")
    assert fits(browser, 400)
    order = {"action": "hold", "topic": topic, "key": "cust-17", "for_s": 7000, "claimed_by": "ana"}
    browser.run(
        "return fetch('control', {method: 'POST', headers: {'Content-Type': 'application/json'},"
        " body: JSON.stringify(arguments[0])}).then(a => a.text())",
        {**order, "reason": "their orders are doubled"},
    )
    kafka.fill(topic, [{"value": b"1", "key": "cust-17"}, {"value": b"2", "key": "cust-17"}])
    for width, dark in ((400, False), (1280, True)):
        browser.open(f"{address}/#/held", width=width, dark=dark)
        browser.sees("cust-17", "ana", "min", "their orders are doubled")
        assert fits(browser, width)
        browser.shoot(f"held-{'dark' if dark else 'phone-light'}")
    commands = shown(browser, "tr.more details.commands")
    (release,) = [one for one in commands if one.startswith("perkey key release")]
    assert "done: released 1" in typed(release)
    wait_for(lambda: done == [0, 1])
    browser.sees("No record is held.")


def test_no_buttons_unless_commands_are_allowed(browser, kafka, page):
    """Not on any page; the commands are those of this machine, and of the brokers."""
    topic = kafka.topic(1)
    app = kafka.app(group=f"shop-{topic}", http="127.0.0.1:0")

    @app.consume(topic, retry=perkey.Retry(attempts=1))
    def check(record):
        raise KeyError("no such customer")

    address = page(app)
    kafka.fill(topic, [{"value": b"bad", "key": "cust-17"}])
    for where in ("", f"/#/partition/{topic}/0", "/#/parked"):
        browser.open(f"{address}{where}")
        browser.sees(f"{topic}[0]", "KeyError")
        assert browser.run("return document.querySelectorAll('button.act').length") == 0
    retry, *_ = shown(browser, "tr.more details.commands")
    assert retry == f"perkey record retry {topic}:0:0 --reason TEXT --group shop-{topic}"
