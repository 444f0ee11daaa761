"""Commands from the page in a real browser, to an app on a real broker."""

from __future__ import annotations

import json

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
def letters(kafka, page, shop):
    """An app whose first records were dead-lettered; its page, topic, and what it has handled."""
    app, topic = shop
    done = []

    @app.consume(
        topic, retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.DeadLetter("{topic}.dlq", on_missing="create"),
    )  # fmt: skip
    def check(record):
        if record.value == b"bad" and not done:
            raise KeyError("no such customer")
        done.append((record.offset, record.value))

    address = page(app)
    kafka.fill(topic, [{"value": b"bad", "key": f"cust-{n % 2}"} for n in range(4)])
    wait_for(lambda: kafka.committed(f"shop-{topic}", topic) == 4)
    kafka.fill(topic, [{"value": b"good", "key": "cust-1"}])  # from now on nothing fails
    wait_for(lambda: done == [(4, b"good")])
    return address, topic, done


@pytest.fixture
def commanded(page, shop, request):
    """The app's page and topic, and what it has handled."""
    app, topic = shop
    done = []

    @app.consume(topic, concurrency=16, retry=getattr(request, "param", perkey.Retry(attempts=1)))
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


@pytest.mark.long
def test_concurrency_is_set_by_a_button(browser, commanded):
    """What the member refuses is shown in its words."""
    address, _, _ = commanded
    browser.open(f"{address}/")
    browser.sees("Set", "0 of 16", "Pause everything")
    browser.run(
        "[...document.querySelectorAll('button.act')].find(b => b.innerText === 'Set').click()"
    )
    browser.driver.find_element("id", "order-concurrency").send_keys("1001")
    browser.driver.find_element("id", "order-reason").send_keys("a test")
    browser.sees(
        "refused: concurrency=1001: handler check runs at most 1,000 calls", selector="#command"
    )
    box = browser.driver.find_element("id", "order-concurrency")
    box.clear()
    box.send_keys("4")
    browser.driver.find_element("id", "order-reason").send_keys("!")
    browser.sees("would: set handler check: concurrency=4", selector="#command")
    browser.shoot("command")
    wait_for(lambda: browser.run("return !document.getElementById('order-go').disabled"))
    browser.click("#order-go")
    browser.sees("done: set handler check until", selector="#command")
    browser.click("#order-close")
    browser.sees("0 of 4")


def test_a_parked_record_is_released_by_a_button(browser, kafka, commanded):
    """From its own page, which offers what can be done where it is."""
    address, topic, done = commanded
    kafka.fill(topic, [{"value": b"bad", "key": "cust-17"}])
    browser.open(address)
    retried = f"perkey record retry {topic}:0:0 --reason TEXT --url http://127.0.0.1:"
    browser.sees(retried, selector=".command code")
    browser.open(f"{address}/#/record/{topic}/0/0")
    browser.sees("parked", "Release", "Skip", "Hold key")
    kafka.fill(topic, [{"value": b"good", "key": "cust-18"}])
    wait_for(lambda: done == [1])
    browser.click("p.acts button.act")
    browser.sees(f"Release record {topic}[0] 0", "release: released 1", selector="#command")
    browser.driver.find_element("id", "order-reason").send_keys("mended")
    browser.click("#order-go")
    browser.sees("done: released 1", selector="#command")
    wait_for(lambda: done == [1, 0])


@pytest.mark.parametrize(
    "commanded", [perkey.Retry(attempts=9, delay_s=600, delay_max_s=600)], indirect=True
)
def test_failing_records_are_held_skipped_and_retried_by_buttons(browser, kafka, commanded):
    """Each on its own page, at which its next attempt is minutes away."""
    address, topic, done = commanded
    kafka.fill(topic, [{"value": b"bad", "key": f"cust-{n}"} for n in range(2)])

    def press(offset, word):
        browser.open(f"{address}/#/record/{topic}/0/{offset}")
        browser.sees(word, selector="p.acts")
        browser.run(
            "[...document.querySelectorAll('p.acts button.act')]"
            ".find(b => b.innerText === arguments[0]).click()",
            word,
        )
        browser.sees(f"{word} record {topic}[0] {offset}", "would: ", selector="#command")

    press(1, "Hold")
    answer(browser, "being repaired", "done:")
    browser.sees("Release", selector="p.acts")  # it is held: it cannot be held again
    press(1, "Skip")
    answer(browser, "cancelled", "done:")
    kafka.fill(topic, [{"value": b"good", "key": "other"}])  # from now on nothing fails
    wait_for(lambda: done == [2])
    press(0, "Retry now")
    answer(browser, "the service is back", "done:")
    wait_for(lambda: done == [2, 0])
    wait_for(lambda: kafka.committed(f"shop-{topic}", topic) == 3)


def fits(browser, width):
    """Nothing is wider than the window: no scroll bar."""
    return browser.run("return document.documentElement.scrollWidth") <= width


def answer(browser, reason, *words):
    """Give the reason of the open command; the member's answer has these words."""
    browser.driver.find_element("id", "order-reason").send_keys(reason)
    browser.click("#order-go")
    browser.sees(*words, selector="#command")
    browser.click("#order-close")


def test_parked_records_are_listed_and_released_by_their_error(browser, kafka, commanded):
    """All that failed alike by one button; a telephone in the dark has no scroll bar."""
    address, topic, done = commanded
    kafka.fill(topic, [{"value": b"bad", "key": f"cust-{n}"} for n in range(3)])
    kafka.fill(topic, [{"value": b"behind", "key": "cust-1"}])
    browser.open(address)
    browser.sees("Parked 3", "Held 0", selector="nav")
    for width, dark in ((400, True), (1280, False)):
        browser.open(f"{address}/#/parked", width=width, dark=dark)
        browser.sees(
            "cust-2", "KeyError", "attempts used up", "Release", "Skip", "no such customer"
        )
        browser.sees(f"Export all: {topic}")
        assert fits(browser, width)
        browser.shoot(f"parked-{'phone-dark' if dark else 'light'}")
    browser.click(".card > .acts button.act")
    where = 'where state == "parked" and error.type == "KeyError"'
    browser.sees(
        f"Release all of {topic} {where}", "would: release: released 3", selector="#command"
    )
    kafka.fill(topic, [{"value": b"good", "key": "other"}])  # from now on nothing fails
    wait_for(lambda: done == [4])
    answer(browser, "mended", "done: released 3")
    wait_for(lambda: sorted(done) == [0, 1, 2, 3, 4])
    browser.sees("No record is parked.")


def test_parked_records_are_exported_by_a_button(browser, kafka, commanded, tmp_path):
    """The dry run names them; with a reason the browser saves a file of lines with their values."""
    address, topic, _ = commanded
    browser.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    kafka.fill(topic, [{"value": b"bad", "key": f"cust-{n}"} for n in range(2)])
    wait_for(lambda: kafka.committed(f"shop-{topic}", topic) is not None)
    browser.open(f"{address}/#/parked", width=400, dark=True)
    browser.sees("cust-1", f"Export all: {topic}")
    wait_for(lambda: exportable(browser, topic, 2))
    browser.sees(f"would: export 2 records with their values: {topic}[0] 0, ", selector="#command")
    browser.shoot("export-phone-dark")
    answer(browser, "for support", "done: export 2 records")
    saved = wait_for(lambda: lines_of(tmp_path / f"{topic}.jsonl"))
    assert [(one["key"], one["value"]) for one in saved] == [("cust-0", "bad"), ("cust-1", "bad")]
    browser.open(f"{address}/#/record/{topic}/0/1")
    browser.sees("parked", "Export key")
    assert "perkey parked export" not in browser.text()


def choose(browser, name, value):
    """Set a field of the replay, as its user does."""
    browser.run(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        " e.dispatchEvent(new Event('change', {bubbles: true}))",
        f"replay-{name}", value,
    )  # fmt: skip


def test_dead_letters_are_replayed_by_a_button(browser, kafka, letters):
    """The dry run, a choice for those that are stale, the reason, and what went; on a phone, too."""
    address, topic, done = letters
    browser.open(f"{address}/#/parked", width=400, dark=True)
    browser.sees("No record is parked.", "Dead letters", f"{topic}.dlq", "Replay")
    browser.click("button.replay")
    browser.sees(
        f"Replay {topic}.dlq", "would: 4 letters of 4 to send: KeyError 4", "of 2 keys: cust-",
        f"to {topic}, which shop-{topic} reads",
        "2 of 4 letters would run after newer records of their key: choose", selector="#replay",
    )  # fmt: skip
    assert fits(browser, 400)
    browser.shoot("replay-phone-dark")
    choose(browser, "where", "error.type =")
    browser.sees("^", "Look again", selector="#replay")
    browser.shoot("replay-wrong")
    (complaint,) = browser.log()  # what the server refuses is an error to the browser
    assert "400 (Bad Request)" in complaint
    choose(browser, "where", 'key != "nobody"')
    choose(browser, "stale", "skip")
    browser.sees("2 letters of 4 to send: KeyError 2", "left out", selector="#replay")
    browser.driver.find_element("id", "replay-reason").send_keys("mended")
    browser.click("#replay-go")
    browser.sees(f"done: 2 letters sent to {topic}", "Close", selector="#replay")
    browser.click("#replay-close")
    wait_for(lambda: done == [(4, b"good"), (5, b"bad"), (6, b"bad")])
    browser.click("button.replay")
    browser.sees("2 brought back already", selector="#replay")


def exportable(browser, topic, count):
    """Open the dry run of an export anew, until the group's commit names so many records."""
    browser.run("document.getElementById('command').close()")
    browser.run(
        "[...document.querySelectorAll('button.act')]"
        ".find(b => b.innerText.startsWith('Export all')).click()"
    )
    browser.sees("export ", selector="#order-answers")
    return f"export {count} records" in browser.text("#order-answers")


def lines_of(path):
    """The file once it is whole."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()] if text.endswith("\n") else []


def test_held_records_are_listed_with_their_reason(browser, kafka, commanded):
    """Until when, by whom and why; one is released, light or dark."""
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
    browser.click("tr.more button.act")
    browser.sees(f"Release key cust-17 of {topic}", "on_hold, key cust-17", selector="#command")
    answer(browser, "they are right again", "done: released 1")
    wait_for(lambda: done == [0, 1])
    browser.sees("No record is held.")


def test_no_buttons_unless_commands_are_allowed(browser, kafka, page):
    """Not on any page; what is parked is listed all the same."""
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
    browser.sees("perkey parked export --group", selector=".command code")
