"""`perkey top` by Textual's pilot: what it shows, its keys, and when nobody answers."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import pytest

import perkey
from perkey.cli import main
from perkey.cli.sources import Where
from perkey.cli.top import Asking
from perkey.cli.top_lines import PARTITIONS_MAX, Wanted, age, lines, middle, number
from perkey.cli.top_screen import Top
from perkey.errors import FatalError
from perkey.observe.overview import overview
from perkey.observe.sentences import Sentence
from perkey.testing import run

pytestmark = pytest.mark.push

SIZE = (80, 24)


@pytest.fixture(scope="module")
def shot():
    """A real snapshot: one record parked with one behind it, one that runs, much that is done."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    seen = []

    @app.consume("orders", concurrency=1, retry=perkey.Retry(attempts=1))
    def check(record):
        if record.offset == 0:
            raise ValueError("[bold]no[/bold]")
        if record.offset == 5:
            seen.append(app.snapshot())

    run(
        app,
        [(b"[red]cust-17", b""), (b"[red]cust-17", b""), *[(b"k%d" % n, b"") for n in range(4)]],
    )
    return seen[0]


def many(shot, count):
    (row,) = shot["partitions"]
    rows = [{**row, "partition": n, "remaining": n} for n in range(count)]
    return {**shot, "partitions": rows}


def piloted(ask, keys, steps=(), every_s=0.2):
    """The screen's text after these keys, at 80 by 24."""

    async def go():
        top = Top(ask, every_s)
        async with top.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: top._table().row_count or top._failed)
            for step in steps:
                step(top)
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            await pilot.pause()
            assert top._table().row_count <= PARTITIONS_MAX + 1
            return top, "\n".join(
                "".join(part.text for part in strip)
                for strip in top.screen._compositor.render_strips()
            )

    return asyncio.run(go())


async def until(pilot, true):
    for _ in range(3_000):
        if true():
            return
        await pilot.pause(0.02)
    raise AssertionError("not within 60 s")


def test_it_fits_80_by_24(shot):
    """Group, sparklines, handlers, partitions, the record that holds up, and the keys are there."""
    scrolls: list[int] = []
    _, text = piloted(lambda: [shot], [], [lambda top: scrolls.append(top._table().max_scroll_x)])
    assert scrolls == [0]
    rows = text.split("\n")
    assert (len(rows), {len(row) for row in rows}) == (24, {80})
    for word in (
        "g ",
        "1 member, running",
        "check",
        "orders[0]",
        "rate/s",
        "left",
        "ms p99",
        "Quit",
    ):
        assert word in text
    assert "Record 0 (key [red]cust-17) is parked" in " ".join(text.split())


def test_enter_opens_a_partition_to_its_lanes(shot):
    """Its lanes that stand come under it, and go again; markup in a key is text."""
    _, text = piloted(lambda: [shot], ["down", "enter"])
    assert "0 [red]cust-17" in text
    assert "parked" in text
    _, text = piloted(lambda: [shot], ["down", "enter", "enter"])
    assert "0 [red]cust-17  " not in text
    _, text = piloted(lambda: [shot], ["enter"])
    assert "orders[0]  " not in text


def test_failures_and_help_stand_below(shot):
    """Keys f, ? and b change what stands below the table."""
    _, text = piloted(lambda: [shot], ["f"])
    assert "1 × ValueError check, last orders[0] 0: [bold]no[/bold]" in text
    _, text = piloted(lambda: [shot], ["question_mark"])
    assert "freeze" in text
    _, text = piloted(lambda: [shot], ["f", "b"])
    assert "is parked" in " ".join(text.split())


def waiting(shot, count):
    """So many parked records, and one that is held; one more of each is not listed."""
    row = {**shot["parked"][0], "until": shot["at"] + 600.0}
    held = {**row, "place": "on_hold", "by": "ana@laptop", "reason": "being repaired", "key": None}
    parked = [{**row, "offset": n, "key": f"cust-{n}"} for n in range(count)]
    (part,) = shot["partitions"]
    places = {**part["places"], "parked": count + 1, "on_hold": 1}
    parts = [{**part, "places": places, "parked": count + 1}]
    return {**shot, "partitions": parts, "parked": parked, "on_hold": [held]}


def test_parked_records_are_a_key_away(shot):
    """Their error, and what to do about the one under the cursor; the same key shows partitions."""
    _, text = piloted(lambda: [waiting(shot, 30)], ["r", "down", "down"], every_s=3600.0)
    rows = text.split("\n")
    assert "parked: 30 of 31, longest first" in rows[0]
    assert re.search(r" orders\[0\] 0 +cust-0 +ValueError +1 +[\d.]+ s +600 s", text)
    assert "record 2 (key cust-2) is parked" in text
    assert "perkey record retry orders:0:2" in " ".join(text.split())
    assert {len(row) for row in rows} == {80}
    for keys in (["r", "r"], ["r", "escape"], ["d", "r", "escape"]):
        _, text = piloted(lambda: [waiting(shot, 30)], keys, every_s=3600.0)
        assert "partitions 1-1 of 1" in text


def test_held_records_are_a_key_away(shot):
    """By whom, until when and why; where nothing is held, that is all there is."""
    _, text = piloted(lambda: [waiting(shot, 1)], ["d"])
    assert re.search(r" orders\[0\] 0 +\(no key\) +ana@laptop", text)
    assert "is held by a command of ana@laptop" in text
    assert "(being repaired)" in " ".join(text.split())
    _, text = piloted(lambda: [shot], ["d"])
    assert "No record is held." in text


def test_the_next_step_stands_under_the_worst_record(shot):
    """What to do is on the screen, not a command away."""
    _, text = piloted(lambda: [shot], [])
    assert "Next: fix the cause and release it" in " ".join(text.split())


def test_the_worst_partition_comes_first_and_the_order_changes(shot):
    """A parked record before a long backlog; with > by what is left."""
    big = many(shot, 30)
    big["partitions"][3]["past_map"] = 53
    once = {"every_s": 3600.0}
    _, text = piloted(lambda: [big], [], **once)
    assert "orders[3]" in text.split("\n")[5]
    _, text = piloted(lambda: [big], ["greater_than_sign"], **once)
    assert "by remaining" in text
    assert "orders[29]" in text.split("\n")[5]


def test_a_long_name_loses_its_middle(shot):
    """Topic and partition are told apart, and all columns are on the screen."""
    long = "eu-west-1.logistics.positions.vehicles.v2"
    other = {**shot, "partitions": [{**row, "topic": long} for row in shot["partitions"]]}
    _, text = piloted(lambda: [other], [])
    (line,) = [line for line in text.split("\n") if "cles.v2[0]" in line]
    assert line.startswith("   eu-west")
    assert "rate/s" in text


def test_a_pipe_is_refused(shot, monkeypatch, capsys):
    """One line and exit 2: what draws a screen needs one."""
    monkeypatch.setattr(Asking, "__call__", lambda self: [shot])
    assert main.run(["top", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == (
        "perkey: perkey top needs a terminal: use perkey status or perkey status --json\n"
    )


def test_json_needs_no_terminal(shot, monkeypatch, capsys):
    """The state of the runs once, as `perkey status --json` prints it."""
    monkeypatch.setattr(Asking, "__call__", lambda self: [shot])
    assert main.run(["top", "--url", "http://127.0.0.1:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps([shot]))


def test_ten_thousand_partitions_are_paged_through(shot):
    """A page has a bounded number of lines; the next begins after it; a filter finds one."""
    big = many(shot, 10_000)
    once = {"every_s": 3600.0}  # a slow machine would do nothing but look
    _, text = piloted(lambda: [big], ["right_square_bracket"], **once)
    assert f"partitions {PARTITIONS_MAX + 1}-{2 * PARTITIONS_MAX} of 10,000" in text
    _, text = piloted(
        lambda: [big], [*["right_square_bracket"] * 2, *["left_square_bracket"] * 5], **once
    )
    assert f"partitions 1-{PARTITIONS_MAX} of" in text
    _, text = piloted(lambda: [big], ["slash", *":7777", "enter"], **once)
    assert "orders[7777]" in text
    assert "1-1 of 1 " in text
    _, text = piloted(lambda: [big], ["slash", *":7777", "enter", "escape"], **once)
    assert "of 10,000" in text


def test_hold_still(shot):
    """While it holds still nothing changes; then it goes on."""
    shots = [[shot]]
    _, text = piloted(lambda: shots[0], ["space"], [])
    assert "frozen" in text
    top, text = piloted(lambda: shots[0], ["space", "space"])
    assert "frozen" not in text
    assert len(top._history["rate"]) >= 1


def test_when_no_one_answers_any_more(shot):
    """What was seen last stays, and for how long nobody has answered stands above it."""
    asked = threading.Event()

    def ask():
        if asked.is_set():
            raise FatalError("run-1: no answer within 5 s")
        asked.set()
        return [shot]

    async def go():
        top = Top(ask, 0.05)
        async with top.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: top._failed)
            await pilot.pause()
            assert top._table().row_count == 2
            head = str(top.query_one("#head").render())
            assert re.search(r"no answer for \d+ s: run-1: no answer within 5 s", head)

    asyncio.run(go())


def test_a_silent_member_is_marked(shot):
    """Its name stands above; partitions that nobody else has are its own, and marked."""
    silent = {**shot, "silent_s": 33.0}
    _, text = piloted(lambda: [silent], [])
    assert "silent: " in text
    found, _ = lines(overview([silent]), Wanted())
    assert found[1].cells[-1] == "silent"
    assert found[1].cells[5:8] == ("-", "-", "-")
    assert found[0].cells[5:8] == ("0", "0", "0")


def test_one_run_that_answers_is_enough(shot):
    """Others that do not are left out; only when none does it fails, naming one."""

    class Run:
        name = "run-1"

        def __init__(self, answer):
            self.answer = answer

        def ask(self, question):
            if self.answer is None:
                raise FatalError("no answer within 5 s")
            return self.answer

    ask = Asking(lambda: [Run(None), Run(shot)])
    assert ask() == [shot]
    assert ask.missing == ["no answer within 5 s"]
    with pytest.raises(FatalError, match=r"^no answer within 5 s$"):
        Asking(lambda: [Run(None)])()


def test_numbers_are_short():
    """Digits that fit a column."""
    assert [number(n) for n in (0, 3, 3.25, 1234, 12_345_678, 5e9)] == [
        "0", "3", "3.2", "1,234", "12.3M", "5.0G",
    ]  # fmt: skip
    assert (age(None), age(3), age(36_000), number(None)) == ("-", "3.0 s", "10 h", "-")
    assert (middle("abcdefgh", 6), middle("abcd", 4)) == ("a…efgh", "abcd")


def test_the_stack_of_a_hanging_call_is_a_key_away(shot):
    """Its last lines; without such a call it says so."""
    _, text = piloted(lambda: [shot], ["s"])
    assert "No call hangs." in text
    stack = [f"shop.py:{n} check: client.get()" for n in range(1, 10)]
    row = {**shot["blockers"][0], "place": "running", "for_s": 90.0, "stack": stack}
    _, text = piloted(lambda: [{**shot, "blockers": [row]}], ["s"])
    assert ("shop.py:9" in text, "shop.py:4" in text, "shop.py:3" in text) == (True, True, False)


@pytest.mark.parametrize(("group", "reached"), [("g", " --group g"), ("g, h", "")])
def test_commands_of_an_advice_reach_the_group(shot, group, reached):
    """As copied from the screen, where runs of several groups may be here."""
    top = Top(lambda: [shot], complete=Where().completed)
    top._view = {"group": group}
    one = Sentence("stuck.", "`perkey record retry t:0:5 --reason TEXT`", "parked")
    assert top._next(one) == f"`perkey record retry t:0:5 --reason TEXT{reached}`"
