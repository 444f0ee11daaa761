"""Commands from the page in a real browser, to an app on a real broker."""

from __future__ import annotations

import pytest
from tests.integration.page.conftest import wait_for

import weft


@pytest.fixture
def commanded(kafka, page, browser, tmp_path):
    """An app that obeys commands, the address of its page, and the token in every request."""
    token = "t" * 20
    (tmp_path / "token").write_text(token)
    topic = kafka.topic(1)
    app = kafka.app(
        group=f"shop-{topic}", http="127.0.0.1:0", http_token_file=str(tmp_path / "token"),
        allow_control=True,
    )  # fmt: skip
    done = []

    @app.consume(topic, concurrency=16, retry=weft.Retry(attempts=1))
    def check(record):
        if record.value == b"bad" and not done:
            raise KeyError("no such customer")
        done.append(record.offset)

    browser.command("Network.enable")
    headers = {"Authorization": f"Bearer {token}"}
    browser.command("Network.setExtraHTTPHeaders", headers=headers)
    yield page(app), topic, done
    browser.command("Network.setExtraHTTPHeaders", headers={})


def test_a_topic_is_paused_and_resumed_by_buttons(browser, kafka, commanded):
    """The dry run first, then the reason, then each member's answer; on a phone, too, in the dark."""
    address, topic, done = commanded
    browser.open(f"{address}/#/partition/{topic}/0", width=400, dark=True)
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
def test_concurrency_is_set_by_a_button(browser, commanded):
    """What the member refuses is shown in its words."""
    address, _, _ = commanded
    browser.open(f"{address}/")
    browser.sees("Set", "0 of 16", "Pause everything")
    browser.run(
        "[...document.querySelectorAll('button.act')].find(b => b.innerText === 'Set').click()"
    )
    browser.driver.find_element("id", "order-concurrency").send_keys("17")
    browser.driver.find_element("id", "order-reason").send_keys("a test")
    browser.sees("refused: concurrency=17: check is declared with 16", selector="#command")
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
    retried = f"weft record retry {topic}:0:0 --reason TEXT --url http://127.0.0.1:"
    browser.sees(retried, selector=".command code")
    browser.open(f"{address}/#/record/{topic}/0/0")
    browser.sees("parked", "Release", "Skip", "Hold key")
    kafka.fill(topic, [{"value": b"good", "key": "cust-18"}])
    wait_for(lambda: done == [1])
    browser.click("p.acts button.act")
    browser.sees(f"Release record {topic}[0] 0", "release: would 1", selector="#command")
    browser.driver.find_element("id", "order-reason").send_keys("mended")
    browser.click("#order-go")
    browser.sees("done: released 1", selector="#command")
    wait_for(lambda: done == [1, 0])


def test_no_buttons_unless_commands_are_allowed(browser, kafka, page):
    """Not on any page."""
    topic = kafka.topic(1)
    app = kafka.app(group=f"shop-{topic}", http="127.0.0.1:0")
    app.consume(topic)(lambda record: None)
    address = page(app)
    for where in ("", f"/#/partition/{topic}/0"):
        browser.open(f"{address}{where}")
        browser.sees(f"{topic}[0]")
        assert browser.run("return document.querySelectorAll('button.act').length") == 0
