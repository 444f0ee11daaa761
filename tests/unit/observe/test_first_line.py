"""What a first line does not name, and commands that can be copied: what drills on brokers found."""

from __future__ import annotations

import pytest
from tests.unit.observe.test_sentences import BY, partition, record, shot

from perkey.observe.overview import NOT_BAD, severity
from perkey.observe.sentences import record_sentence
from perkey.observe.why import why
from perkey.reasons import INTENT, LOAD, MEMBER
from perkey.types import TOPIC_GONE


@pytest.mark.parametrize("p99_ms", [2_000.0, 60_000.0])
@pytest.mark.parametrize("place", ["running", "sending", "committing", "pending", "marking"])
def test_load_is_not_reported_as_a_stuck_record(place, p99_ms):
    """A call that takes as long as others blocks nothing: no advice about timeout_s, no restart."""
    for_s = p99_ms / 2_000.0 if place == "running" else 1.0
    busy = record(place, for_s=for_s, waiting_behind=3, done_beyond=5)
    latency = {"check": {"latency_ms": {"p50": p99_ms / 2, "p99": p99_ms}}}
    slots = {"cause": "slots", "handler": "check"}
    told = why(shot(busy, handlers=latency, halts=[slots]))
    assert [one.about for one in told] in (["slots"], ["slots", "lane"])
    (one, *_) = why(shot(record(place, for_s=1.0)), "orders", 3)
    assert "timeout_s" not in one.next
    assert "restart" not in one.next
    (one, *_) = why(shot(record(place, for_s=61.0), handlers=latency))
    assert one.about == place


@pytest.mark.parametrize(
    ("waiting", "for_s", "about"),
    [(4_538, 0.02, "lane"), (15, 2.0, "running"), (0, 2.0, "healthy"), (150, 0.02, "healthy")],
)
def test_a_lane_that_moves_and_is_long_is_named(waiting, for_s, about):
    """A hot partition or a slow key: nothing hangs, and what helps is not timeout_s."""
    hot = record(for_s=for_s, waiting_behind=waiting)
    latency = {"check": {"latency_ms": {"p50": 50.0, "p99": 60.0}}}
    (told,) = why(shot(hot, handlers=latency))
    assert told.about == about
    if about == "running":  # it may be the first seconds of a call that hangs
        assert (told.next, told.rank) == ("", LOAD)
    if about == "lane":
        assert told.text == (
            f"orders[3]: {waiting:,} records wait in one lane behind record 10,412 (key cust-17), "
            f"which runs for {for_s:.1f} s. They run one at a time (calls of check: median 50 ms)."
        )
        assert told.next.startswith("nothing is stuck; more concurrency does not help one lane")


@pytest.mark.parametrize(
    ("ordering", "cure"),
    [
        ("key", "make its calls faster, or spread its records over more keys; "),
        ("partition", 'make its calls faster, or use ordering="key", or add partitions'),
        (None, "make its calls faster"),  # reported by an older version
    ],
)
def test_a_long_lane_has_the_advice_of_its_ordering(ordering, cure):
    """Not the ordering that the handler has already."""
    latency = {"p50": 50.0, "p99": 60.0}
    handlers = {"check": {"latency_ms": latency, "ordering": ordering}}
    (told,) = why(shot(record(for_s=0.02, waiting_behind=4_538), handlers=handlers))
    assert told.next.partition("one lane: ")[2].startswith(cure)
    assert ordering != "key" or 'ordering="key"' not in told.next


PAUSE = {"cause": "command", "until": 0.0, "reason": "repair"}


@pytest.mark.parametrize(
    ("halt", "abouts"),
    [
        ({**PAUSE, "topic": "orders"}, ["command", "parked"]),
        ({**PAUSE}, ["command", "parked"]),
        ({"cause": "paused", "topic": None}, ["paused", "parked"]),
        ({**PAUSE, "topic": "others"}, ["parked", "command"]),
        ({**PAUSE, "handler": "other"}, ["parked", "command"]),
    ],
)
def test_a_pause_that_stops_everything_comes_before_a_parked_record(halt, abouts):
    """It is the cause of what waits; of another topic or handler it is not."""
    parked = record("parked", attempts=5)
    assert [one.about for one in why(shot(parked, halts=[halt]))] == abouts
    if halt.get("topic") in (None, "orders") and "handler" not in halt:
        assert [one.about for one in why(shot(parked, halts=[halt]), "orders", 3)] == abouts


def test_a_cut_list_has_the_true_count():
    """Of 750 parked records only the 20 that block most are listed."""
    rows = [record("parked", offset=n, at_frontier=False) for n in range(20)]
    (told,) = why(shot(*rows, partitions=[partition(places={"parked": 750})]))
    assert "The same applies to at least 19 more of this topic; in all 750 of its records are " in (
        told.text
    )
    (told,) = why(shot(*rows[:3]))
    assert "The same applies to 2 more of this topic." in told.text


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("cust-17", "--key cust-17"),
        (None, "--where 'partition == 3 and offset == 10412'"),
        ("x" * 64, "--where 'partition == 3 and offset == 10412'"),  # cut
        ("a\\x00b'", "--where 'partition == 3 and offset == 10412'"),  # escaped
    ],
)
def test_a_hold_is_released_by_a_command_to_copy(key, options):
    """Of a colleague who has gone home; a key that is shown in part would select nothing."""
    held = record("on_hold", due_in_s=7_198.0, by="ann", reason="repair", key=key)
    assert record_sentence(held).next == (
        f"to let its lane continue now: `perkey key release --topic orders {options} --reason TEXT`"
    )


@pytest.mark.parametrize("by", ["undecodable", "rejected"])
def test_a_record_that_no_attempt_can_handle_is_skipped_by_a_command_to_copy(by):
    """Another attempt of the same code fails again: it needs a new handler, or is given up."""
    assert record_sentence(record("parked", attempts=1, by=by)).next == (
        "`perkey record skip orders:3:10412 --reason TEXT` gives it up; or deploy a handler that "
        "accepts it and release it: `perkey record retry orders:3:10412 --reason TEXT`"
    )


def test_many_parked_records_are_released_by_one_command():
    """Not one by one."""
    error = {"type": "Timeout", "message": "503"}
    rows = [record("parked", offset=n, at_frontier=False, last_error=error) for n in range(3)]
    (told,) = why(shot(*rows))
    assert told.next == (
        "fix the cause and release all of them: `perkey key release --topic orders --where "
        '\'state == "parked" and error.type == "Timeout"\' --reason TEXT`'
    )


def test_a_blocked_loop_is_the_cause_of_all_async_calls():
    """No call of it is advised to have a time-out, which nothing could fire; others are as ever."""
    waits = record(executor="async", for_s=61.0)
    slots = {"cause": "slots", "handler": "check", "oldest": waits, "for_s": 60.0, "calls": 8}
    loop = {"cause": "loop", "for_s": 61.0, "oldest": waits}
    (told,) = why(shot(waits, halts=[slots, loop]))
    assert told.about == "loop"
    assert told.next.startswith("timeout_s cannot end it: write check as a plain def")
    other = {"cause": "loop", "for_s": 61.0, "reason": "shop/app.py:7 refresh: time.sleep(5)"}
    (told,) = why(shot(waits, halts=[slots, other]))
    assert ", by no handler, at shop/app.py:7 refresh" in told.text
    told, of_record = why(shot(waits, halts=[slots, loop]), "orders", 3)
    assert (told.about, of_record.about) == ("loop", "running")
    assert of_record.next == (
        "it continues when the handlers' loop does; timeout_s ends no call until then"
    )
    threads = record(executor="threads", offset=7, for_s=61.0)
    assert [one.about for one in why(shot(waits, threads, halts=[loop]))] == ["loop", "running"]


@pytest.mark.parametrize(
    ("because", "rank"), [("joining", LOAD), ("reserve", LOAD), ("group", MEMBER)]
)
def test_a_member_without_a_partition_is_a_fault_only_if_the_group_waits(because, rank):
    """Not in the seconds of a join, and not with more members than partitions."""
    reason = {} if because == "joining" else {"reason": "the group waits"}
    halt = {"cause": "unassigned", "for_s": 3.0, "why": because, **reason}
    (told,) = why(shot(halts=[halt], partitions=[]))
    assert (told.about, told.rank) == ("unassigned", rank)


@pytest.mark.parametrize(
    ("cause", "value", "text"),
    [
        ("rate_limit", "rate_limit_per_s=1", "Calls of check wait for its rate_limit_per_s: "),
        ("slots", "concurrency=1", "All concurrency slots of check are taken: "),
    ],
)
def test_a_setting_of_a_colleague_is_named_with_the_command_that_ends_it(cause, value, text):
    """Not the number in the code, which is as it was."""
    halt = {"cause": cause, "handler": "check", "value": value, "until": 1.0, "reason": "slow"}
    told = why(shot(record("ready"), halts=[halt]))
    assert [one.about for one in told] == [cause, "ready"]
    assert told[0].text == f"{text}a command has set {value} until 00:00:01Z (slow)."
    assert (
        told[0].next
        == f"`perkey set {value.partition('=')[0]}=default --handler check --reason TEXT`"
    )
    assert told[0].rank == INTENT
    halt |= {"value": "concurrency=1 timeout_s=3", "why": "all"}
    (one,) = why(shot(halts=[halt]))
    assert one.next == "`perkey set concurrency=default timeout_s=default --reason TEXT`"


def test_a_deleted_topic_is_recreated_by_a_command_to_copy():
    """Its leader is not what is missing."""
    halt = {"cause": "start_unknown", "topic": "orders", "partition": 3, "for_s": 26.0}
    (told,) = why(shot(halts=[{**halt, "reason": TOPIC_GONE}], partitions=[]))
    assert "unknown for 26 s: its topic does not exist any more." in told.text
    assert "`perkey topics create orders --bootstrap-servers HOST:9092`" in told.next
    (told,) = why(shot(halts=[{**halt, "reason": "no leader"}], partitions=[]))
    assert "--describe --topic orders`" in told.next


def test_a_run_that_ends_with_an_error_names_it():
    """A commit that is refused is no request to stop."""
    (told,) = why(shot(halts=[{"cause": "stopping", "mode": "in_flight", "reason": "fenced."}]))
    assert told.text == "Nothing starts: the run ends with an error: fenced."


def test_a_service_that_asks_to_wait_is_the_cause_of_the_record_that_it_refused():
    """The budget comes first, and nobody is sent to fix an error or to give the record up."""
    error = {"type": "RetryAfter", "message": "retry after 25 s"}
    late = record("retrying", attempts=1, due_in_s=13.0, last_error=error)
    budget = {"cause": "budget", "handler": "check", **BY["budget"][0], "why": "asked"}
    told = why(shot(late, halts=[budget]))
    assert [one.about for one in told] == ["budget", "retrying"]
    assert told[1].next == "wait: the handler, or the service that it calls, asked for this delay"
    told = why(shot(late, halts=[{**budget, "why": "rate"}]))
    assert [one.about for one in told] == ["retrying", "budget"]


@pytest.mark.parametrize("cause", ["broker", "refused", "unassigned"])
def test_a_topic_of_a_member_without_partitions_is_answered_with_the_cause(cause):
    """Not with "not assigned to this member now" alone, while no broker answers."""
    halt = {"cause": cause, "for_s": 46.0, "why": "group", "reason": "the group waits"}
    told = why(shot(halts=[halt], partitions=[]), "orders")
    assert [one.about for one in told] == [cause, "elsewhere"]


@pytest.mark.parametrize(("by", "well"), [("user", False), ("command", False), ("buffers", True)])
def test_a_partition_that_is_paused_by_someone_is_not_among_the_healthy_ones(by, well):
    """`perkey status` added its records to those of the line "well"."""
    row = {
        "past_map": 0, "in_flight": 0, "places": {}, "committed_for_s": 1.0, "parked": 0,
        "retrying": 0, "committed": 3, "frontier": 3, "paused_by": [by],
    }  # fmt: skip
    assert (severity(row) >= NOT_BAD) == well
