"""`perkey status`: the worst first, what is well in one line, and nothing cut."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

import perkey
from perkey.cli.seen import LINES_MAX, _json, _repeat, _status_shown, _why_shown
from perkey.cli.sources import _reported
from perkey.testing import run

LONG = "eu-west-1.logistics.positions.vehicles.enriched.v2"


@pytest.fixture(scope="module")
def shot():
    """A real snapshot: one record parked, one that runs."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    seen = []

    @app.consume("orders", concurrency=1, retry=perkey.Retry(attempts=1))
    def check(record):
        if record.offset == 0:
            raise ValueError("no")
        if record.offset == 5:
            seen.append(app.snapshot())

    run(app, [(b"cust-17", b""), (b"cust-17", b""), *[(b"k%d" % n, b"") for n in range(4)]])
    return seen[0]


def of(shot, member, count=1, bad=(), topic="orders", **more):
    """The snapshot of another member, all well but for these partitions."""
    (row,) = shot["partitions"]
    well = {**row, "parked": 0, "in_flight": 0, "topic": topic}
    rows = [{**well, "partition": n, "remaining": n, **({} if n not in bad else {"parked": 1})}
            for n in range(count)]  # fmt: skip
    blockers = [
        {**one, "partition": n, "topic": topic} for n in bad for one in shot["blockers"][:1]
    ]
    app = {**shot["app"], "member": member}
    return {**shot, "app": app, "partitions": rows, "blockers": blockers, "halts": [], **more}


def told(*shots, width=80, every=False):
    """The lines on a screen that wide."""
    stream = StringIO()
    answers = [(one.get("app", {}).get("member", "m"), one) for one in shots]
    Console(file=stream, width=width).print(_status_shown(answers, every=every, width=width))
    return stream.getvalue().splitlines()


def test_three_members_fit_a_screen_with_the_worst_first(shot):
    """Of 70 lines 24 at most; the member with a parked record is first, the others are one line."""
    lines = told(of(shot, "m1", 40), of(shot, "m2", 40, bad=(7,)), of(shot, "m3", 40))
    assert len(lines) <= LINES_MAX
    assert lines[0].startswith("g  m2  running")
    assert "orders[7]" in next(line for line in lines if line.startswith("orders["))
    assert "well: 39 partitions" in "\n".join(lines)
    assert lines[-1].startswith("well: g m1, g m3: ")
    assert len(told(of(shot, "m1", 40), of(shot, "m2", 40, bad=(7,)), every=True)) > 80


def test_what_to_do_stands_under_the_run(shot):
    """The first sentence of `perkey why`, and its next step."""
    text = " ".join(told(of(shot, "m2", 3, bad=(1,))))
    assert "is parked" in text
    assert "Next: fix the cause and release it" in text


def test_a_long_topic_keeps_both_ends(shot):
    """Nothing is wider than the screen; where there is room nothing is shortened."""
    one = of(shot, "m1", 12, bad=(11,), topic=LONG)
    lines = told(one)
    assert max(map(len, lines)) <= 80
    assert any("…" in line and line.split()[0].endswith("v2[11]") for line in lines)
    assert any(line.startswith(f"{LONG}[11]") for line in told(one, width=200))


def test_many_bad_partitions_are_counted(shot):
    """Without --all the worst ten; never more lines than a screen has."""
    lines = told(of(shot, "m1", 100, bad=range(100)))
    assert len(lines) <= LINES_MAX
    assert any("and 90 more like these" in line for line in lines)


def test_the_map_is_shown_as_a_share_of_its_true_limit(shot):
    """A partition with keys past the map comes first, at 100 %."""
    one = of(shot, "m1", 3)
    one["partitions"][2] |= {"past_map": 53, "map_used": 1.0, "map_chars": 28}
    (line,) = [line for line in told(one) if line.startswith("orders[2]")]
    assert line.split()[3:5] == ["53", "100"]


def test_what_remains_is_unknown_while_no_broker_answers(shot):
    """Not 0: a member without a partition does not know."""
    one = of(shot, "m1", 0, halts=[{"cause": "unassigned"}, {"cause": "broker", "for_s": 45.0}])
    lines = told(one)
    assert "unknown remaining in 0 partitions" in lines[0]
    assert lines[1].startswith("No broker has answered for 45 s")


def test_why_asks_several_runs_and_reports_it_once():
    """`perkey why nosuch` of three members of a group: one line, with the topics that there are."""
    row = {"text": "nosuch is not with this member now; it has orders.", "next": "",
           "about": "elsewhere", "stack": [], "rank": 8}  # fmt: skip
    stream = StringIO()
    answers = [(name, {"sentences": [row], "found": []}) for name in ("m1", "m2", "m3")]
    Console(file=stream, width=80).print(_why_shown(answers))
    assert stream.getvalue().splitlines() == [row["text"]]


def test_why_begins_with_the_worst_run():
    """One headline first, whichever run has it; with the stack of its call."""
    well = {"text": "Nothing is stuck: state running.", "next": "", "about": "healthy", "rank": 8}
    hung = {"text": "Nothing of check has ended for 312 s.", "next": "…", "about": "hangs",
            "rank": 2, "stack": ["shop.py:12 check: client.get()"]}  # fmt: skip
    stream = StringIO()
    answers = [
        ("m1", {"sentences": [well], "found": []}),
        ("m2", {"sentences": [hung], "found": []}),
    ]
    Console(file=stream, width=80).print(_why_shown(answers))
    assert [line.strip() for line in stream.getvalue().splitlines()[:4]] == [
        "m2", hung["text"], "Next: …", "shop.py:12 check: client.get()",
    ]  # fmt: skip


@pytest.mark.parametrize(("answers", "code"), [("ee", 1), ("es", 0), ("ss", 0), ("", 0)])
def test_no_run_that_answers_is_exit_code_1(capsys, answers, code):
    """One that hangs beside one that was killed is no success; one that answers is."""
    given = {"e": {"error": "no answer within 5 s"}, "s": {"state": "running"}}
    found = [(f"m{number}", given[one]) for number, one in enumerate(answers)]
    assert _repeat(watch=False, ask=lambda: found, show=_json) == code
    assert capsys.readouterr().out.count("no answer") == answers.count("e")


def test_records_of_one_key_behind_the_same_one_share_a_sentence():
    """The advice and the history of the record in front are printed once."""
    story = [{"at": 0.0, "what": "attempt 1 failed: ValueError: no"}]
    where = {"topic": "orders", "partition": 2}
    found = [{**where, "offset": 3, "story": story}]
    found += [{**where, "offset": n, "behind": {"offset": 3}, "story": story} for n in range(4, 14)]
    sentences = [{"text": "Record 3 is parked.", "next": "release it", "about": "parked"}]
    sentences += [
        {"text": f"Record {n} is queued behind record 3.", "next": "release it", "about": "queued"}
        for n in range(4, 14)
    ]
    stream = StringIO()
    shown = _why_shown([("m", {"sentences": sentences, "found": found})])
    Console(file=stream, width=200).print(shown)
    first, after, second, history = stream.getvalue().splitlines()
    assert (first, after.strip()) == ("Record 3 is parked.", "Next: release it")
    assert second == ("Record 4 is queued behind record 3. So are 9 more: 5, 6, 7, 8, 9, …")
    assert history.endswith("attempt 1 failed: ValueError: no")


def test_a_groups_report_with_many_records_that_wait_alike_is_shown():
    """They share a sentence, so there are fewer sentences than records."""
    error = {"type": "ValueError", "message": "no"}
    rows = [
        {
            "topic": "orders", "partition": 0, "offset": n, "key": "k", "handler": "check",
            "place": "retrying", "for_s": 1.0, "attempts": 3, "attempts_max": None, "due_in_s": 4.0,
            "last_error": error, "waiting_behind": 1, "done_beyond": 0, "at_frontier": False,
            "story": [{"at": 0.0, "what": "attempt 1 failed"}],
        }
        for n in range(20)
    ]  # fmt: skip
    shot = {
        "state": "running", "app": {"group": "shop", "member": "m1"}, "blockers": rows,
        "halts": [], "handlers": {}, "partitions": [], "silent_s": None,
    }  # fmt: skip
    answer = _reported(shot, {"ask": "why", "where": None, "key": None})
    stream = StringIO()
    Console(file=stream, width=200).print(_why_shown([("m1", answer)]))
    first, after = stream.getvalue().splitlines()
    assert first.endswith("The same applies to at least 19 more of this topic.")
    assert after.strip().startswith("Next: fix the error")
    answer = _reported(shot, {"ask": "why", "where": "orders:0:7", "key": None})
    assert [row["offset"] for row in answer["found"]] == [7]


def test_advice_is_printed_once_for_all_that_share_it():
    """Also for the third and the fifth."""
    sentences = [
        {"text": f"Record {n} fails.", "next": "fix it", "about": "retrying"} for n in range(5)
    ]
    stream = StringIO()
    Console(file=stream, width=200).print(
        _why_shown([("m", {"sentences": sentences, "found": []})])
    )
    assert stream.getvalue().count("fix it") == 1


def test_several_runs_are_named_by_group_and_member(shot):
    """As in `perkey status`; the name of a socket is of no use. One partition is singular."""
    answers = [
        (f"{n}-0", {"sentences": [{"text": text, "next": "", "about": "parked", "rank": 1}],
                    "found": [], "group": "shop", "member": f"vm-{n}"})
        for n, text in enumerate("xy")
    ]  # fmt: skip
    stream = StringIO()
    Console(file=stream, width=80).print(_why_shown(answers))
    assert stream.getvalue().split() == ["shop", "vm-0", "x", "shop", "vm-1", "y"]
    assert told(of(shot, "m1", 1))[0].endswith(" remaining in 1 partition")
