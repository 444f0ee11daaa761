"""Every place and every cause has its sentence, and what to do next."""

from __future__ import annotations

import time

import pytest

from perkey.observe.halts import HALTED_BY, halt_sentence
from perkey.observe.sentences import (
    partition_sentence,
    record_sentence,
    state_of,
)
from perkey.observe.why import why
from perkey.reasons import HALTS, PLACES
from perkey.types import LETTER_REFUSED

NOON = time.mktime((2026, 1, 31, 12, 3, 11, 0, 0, -1))


def record(place="running", **more):
    """A record of orders[3] somewhere."""
    return {
        "topic": "orders", "partition": 3, "offset": 10_412, "key": "cust-17", "handler": "check",
        "place": place, "for_s": 312.0, "since": NOON, "attempts": 0, "attempts_max": 5,
        "timeout_s": None, "due_in_s": None, "last_error": None, "waiting_behind": 3,
        "done_beyond": 48_100, "at_frontier": True, "story": [], **more,
    }  # fmt: skip


def partition(**more):
    """orders[3], whose commit stands."""
    return {
        "topic": "orders", "partition": 3, "handler": "check", "remaining": 60_000,
        "committed": 10_412, "committed_since": NOON, "committed_for_s": 312.0,
        "map_chars": 2_310, "map_limit": 4_096, "frontier": 10_412, **more,
    }  # fmt: skip


def shot(*blockers, halts=(), partitions=None, handlers=()):
    """A snapshot."""
    return {
        "handlers": handlers, "state": "running", "app": {"member": "m2"}, "blockers": list(blockers),
        "halts": list(halts), "partitions": [partition()] if partitions is None else partitions,
    }  # fmt: skip


def test_a_call_that_waits_for_its_ledger_is_not_the_handlers_fault():
    """A time-out in the handler, or a restart, would not unlock the database."""
    stack = [
        "ledger/ledger_run.py:127 handle: with engine.begin() as connection:",
        "engine/base.py:3244",
    ]
    one = record_sentence(record(executor="threads", stack=stack))
    assert one.next.startswith("the ledger's database is away or a transaction locks it: `fuser -v")
    own = record_sentence(
        record(executor="threads", stack=["shop/app.py:12 check: client.get(url)"])
    )
    assert own.next.startswith("a thread cannot be cancelled")


def test_a_refused_output_names_the_right_to_grant():
    """There is no traceback to look at."""
    error = {"type": "TOPIC_AUTHORIZATION_FAILED", "message": "output to alerts: denied"}
    told = halt_sentence({"cause": "failing", "handler": "check", "failed": 40, "error": error})
    assert told.next.startswith("give the producer's user the right WRITE on the topic; to keep")
    one = record_sentence(record("retrying", attempts=1, due_in_s=1.0, last_error=error))
    assert one.next == "give the producer's user the right WRITE on the topic"


def test_slots_that_acknowledged_batches_keep_are_named():
    """With what ends that."""
    halt = {"cause": "slots", "handler": "check", "acknowledged": 3}
    text, after = HALTED_BY["slots"](halt)
    assert "3 of them by batch calls that have acknowledged all" in text
    assert "timeout_s" in after


def test_the_sentence_of_the_issue():
    """Since when it is committed to what, which record, for how long, and how much waits."""
    (told,) = why(shot(record()), "orders", 3)
    assert told.text == (
        "orders[3] is committed to 10,412 since 12:03:11 (312 s). Record 10,412 (key cust-17) runs "
        "in member m2 for 312 s, attempt 1 of 5. 48,100 records beyond it are done (offset "
        "map 75 % full), 3 wait behind it."
    )
    assert told.next == "timeout_s on @app.consume would end it; none is set"


ERROR = {"type": "ValueError", "message": "no such customer"}
IN = {
    "ready": ({}, "is ready and waits for a free slot"),
    "gathering": ({}, "in a batch that is filling"),
    "behind": ({"behind": record(offset=7)}, "queued behind record 7, which runs for 312 s"),
    "past_map": ({}, "beyond the reach of the offset map"),
    "fetching": ({}, "is being read from the log again: it was released, or goes to"),
    "held": ({}, "a call of an earlier assignment"),
    "marking": ({}, "waits for 312 s for its started-mark"),
    "not_begun": (
        {"executor": "processes", "stack": ["worker process 7, which opens"]},
        "waits for 312 s for its call to begin, at worker process 7, which opens",
    ),
    "running": ({"timeout_s": 400.0}, "runs for 312 s, attempt 1 of 5"),
    "sending": ({}, "wait for 312 s for the broker's acknowledgement"),
    "committing": ({}, "waits for 312 s for its commit"),
    "pending": ({}, "waits for 312 s for its transaction"),
    "retrying": (
        {"attempts": 1, "last_error": ERROR, "due_in_s": 4.0},
        "failed once: ValueError: no such customer; attempt 2 of 5 starts in 4.0 s",
    ),
    "outage": ({}, "waits because the service that its handler calls is unavailable"),
    "budget": ({}, "waits in the queue of its handler's budget"),
    "on_hold": ({"due_in_s": 4.0}, "is held by a command for 4.0 s more"),
    "parked": (
        {"attempts": 5, "last_error": ERROR},
        "is parked for 312 s, given up after 5 attempts: ValueError: no such customer",
    ),
}


@pytest.mark.parametrize("place", [place.name for place in PLACES])
def test_each_place_has_its_sentence_and_its_next_step(place):
    """No record is anywhere that `perkey why` has no words for."""
    more, said = IN[place]
    told = record_sentence(record(place, **more))
    assert told.text.startswith("orders[3]: record 10,412 (key cust-17) ")
    assert said in told.text
    assert told.next
    assert (told.about, str(told)) == (place, f"{told.text} Next: {told.next}")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("unfetched", "not fetched again yet"),
        ("done", "is done."),
        ("elsewhere", "this member does not own"),
        ("not_read", "the consumer is at 5,000"),
        ("not_there", "the log ends at 9,000"),
    ],
)
def test_records_that_are_not_held_have_sentences_too(place, said):
    """Looked up by offset: done, another member's, not read yet, not there at all."""
    row = {"topic": "t", "partition": 0, "offset": 9_999, "place": place}
    row |= {"position": 5_000, "end": 9_000}
    assert said in record_sentence(row).text


BY = {
    "starting": (
        {"why": "brokers", "value": "b:9092", "for_s": 12.0, "reason": "is it running?"},
        "The start has waited for 12 s for an answer of the brokers at b:9092: is it running?",
    ),
    "paused": ({"topic": "orders"}, "Nothing of orders starts: the application called app.pause()"),
    "stopping": ({"mode": "buffered"}, "a stop was requested (buffered)"),
    "revoking": ({"topic": "orders", "partition": 3}, "Nothing of orders[3] starts"),
    "broker": (
        {"for_s": 12.0},
        "No broker has answered for 12 s: nothing is fetched or committed.",
    ),
    "not_begun": (
        {"handler": "check", "for_s": 14.0, "calls": 4, "oldest": {"executor": "processes"}},
        "No call of check has begun for 14 s: 4 wait.",
    ),
    "rate_limit": ({"handler": "check"}, "Calls of check wait"),
    "outage": (
        {
            "handler": "check",
            "for_s": 34.0,
            "waiting": 1203,
            "probe_s": 5.0,
            "value": "acme",
            "error": {"type": "Unavailable", "message": "503"},
        },
        "The service that check calls has been unavailable for 34 s: Unavailable: 503. Records of",
    ),
    "brake": (
        {
            "handler": "check",
            "for_s": 34.0,
            "waiting": 1203,
            "probe_s": 5.0,
            "exhausted": 61,
            "ended": 200,
            "error": {"type": "KeyError", "message": "id"},
        },
        "61 of its last 200 records used up their attempts, the latest one with KeyError: id. 1,2",
    ),
    "budget": (
        {
            "handler": "check",
            "budget": "openai",
            "why": "rate",
            "per_s": 50.0,
            "in_flight": 20,
            "share": 0.25,
            "waiting": 1203,
            "due_in_s": 0.4,
            "error": None,
        },
        "(50 per second, 20 in flight), of which this member has 25 %: the next one starts in",
    ),
    "loop": (
        {"for_s": 34.0, "oldest": record(stack=["shop/app.py:12 check: time.sleep(5)"])},
        (
            "The handlers' loop is blocked for 34 s by the call of orders[3] record 10,412 (key "
            "cust-17), at shop/app.py:12 check: time.sleep(5). No async call continues."
        ),
    ),
    "unassigned": (
        {"for_s": 34.0, "why": "group", "reason": "the group waits for a member"},
        "This member has no partition for 34 s: the group waits for a member.",
    ),
    "slots": ({"handler": "check"}, "All concurrency slots of check"),
    "buffers": ({"topic": "orders", "partition": 3}, "Fetching of orders[3] is paused"),
    "open_transaction": (
        {"topic": "orders", "partition": 3, "stable_end": 12, "end": 40},
        "orders[3]: the records from offset 12 wait behind an open transaction of another producer",
    ),
    "start_unknown": (
        {"topic": "orders", "partition": 3, "for_s": 40.0, "reason": "no leader"},
        "orders[3] is assigned, but its start offset has been unknown for 40 s: no leader",
    ),
    "not_fetched": (
        {"topic": "orders", "partition": 3, "for_s": 40.0, "reason": "no record arrives"},
        "orders[3] has not been fetched for 40 s: no record arrives",
    ),
}


@pytest.mark.parametrize("cause", [cause.name for cause in HALTS])
def test_each_cause_has_its_sentence_and_its_next_step(cause):
    """Nothing stands still for a reason that `perkey why` has no words for."""
    more, said = BY.get(cause, ({}, ""))
    told = halt_sentence({"cause": cause, **more})
    assert said in told.text
    assert told.next


def test_without_a_question_the_causes_come_first_then_the_three_worst():
    """At 3 a.m. nobody knows what to ask."""
    rows = [record(offset=n, at_frontier=False, handler=f"check{n}") for n in range(5)]
    told = why(shot(*rows, halts=[{"cause": "outputs"}]))
    assert [one.about for one in told] == ["outputs", "running", "running", "running"]
    assert told[1].text.endswith("3 wait behind it.")


@pytest.mark.parametrize(
    ("alike", "more"), [(0, ""), (1, "1 more"), (16, "16 more"), (17, "at least 17 more")]
)
def test_records_that_wait_alike_share_a_line(alike, more):
    """Fifteen retries leave room for what is parked; a call that started just now takes none.

    A snapshot has 20 records at most: there may be more then.
    """
    late = {"last_error": {"type": "RetryAfter", "message": ""}, "at_frontier": False}
    retries = [record("retrying", offset=n, **late) for n in range(alike + 1)]
    parked = record("parked", topic="payments", last_error={"type": "KeyError", "message": "x"})
    told = why(shot(record(), *retries, record(offset=5, for_s=0.1), parked))
    assert [one.about for one in told] == ["running", "retrying", "parked"]
    told = why(shot(record(), *retries, parked))
    assert [one.about for one in told] == ["running", "retrying", "parked"]
    said = f" The same applies to {more} of this topic." if more else ""
    assert told[1].text.partition(" wait behind it.")[2] == said


@pytest.mark.parametrize("question", [(), ("orders",)])
@pytest.mark.parametrize(("of", "first"), [({}, "command"), ({"topic": "other"}, "ready")])
def test_a_record_that_could_start_comes_after_what_stops_it(question, of, first):
    """A pause is a cause, the record that waits in it is not; that of another topic stops nothing."""
    pause = {"cause": "command", "until": NOON + 60.0, "reason": "x", **of}
    told = [one.about for one in why(shot(record("ready"), halts=[pause]), *question)]
    assert told[0] == first
    assert "ready" in told


def test_a_partition_behind_an_open_transaction_is_not_said_to_move():
    """The one sentence is about what holds it up."""
    cause = {"cause": "open_transaction", "topic": "orders", "partition": 3}
    halts = [{**cause, "stable_end": 12, "end": 40}]
    told = why(shot(partitions=[partition()], halts=halts), "orders", 3)
    assert [one.about for one in told] == ["open_transaction"]


@pytest.mark.parametrize("waiting", [0, 8, 4_538])
def test_a_record_that_fails_again_and_again_is_no_long_lane(waiting):
    """While its next attempt runs, too: the error is named, and not that nothing is stuck."""
    error = {"type": "ConnectionError", "message": "no answer"}
    failing = record(for_s=1.7, waiting_behind=waiting, attempts=3, last_error=error)
    latency = {"check": {"latency_ms": {"p50": 2_000.0, "p99": 2_000.0}}}
    (told,) = why(shot(failing, handlers=latency))
    assert told.about == "running"
    assert "runs in member m2 for 1.7 s, attempt 4 of 5; it failed 3 times" in told.text
    assert "ConnectionError: no answer" in told.text
    assert told.next == "fix the error; raise perkey.Reject in the handler to give up immediately"


def test_a_healthy_run_is_reported_to_be():
    """With how much is left."""
    quick = record(waiting_behind=0, done_beyond=0, for_s=0.2)
    (told,) = why(shot(quick))
    assert told.text == "Nothing is stuck: state running, 60,000 records remaining."


@pytest.mark.parametrize("place", ["pending", "committing", "sending", "marking"])
@pytest.mark.parametrize(("for_s", "about"), [(29.9, "healthy"), (30.0, None), (30.1, None)])
def test_an_answer_of_the_broker_that_is_long_overdue_is_reported(place, for_s, about):
    """Also if nothing waits behind the record, and nothing is done beyond it."""
    row = record(place=place, waiting_behind=0, done_beyond=0, for_s=for_s, at_frontier=True)
    (told,) = why(shot(row))
    assert told.about == (about or place)


def test_a_partition_that_is_drained_or_not_ours():
    """Both are answers."""
    done = partition(remaining=0)
    assert "is drained" in why(shot(partitions=[done]), "orders", 3)[0].text
    assert "is not assigned to this member" in why(shot(), "orders", 4)[0].text
    assert "is not assigned to this member" in why(shot(), "other")[0].text


def test_a_topic_is_all_of_its_partitions():
    """Each with its own sentence, and the causes that concern one of them."""
    rows = [partition(), partition(partition=4)]
    halts = [{"cause": "paused", "topic": "else"}, {"cause": "paused", "topic": "orders"}]
    told = why(shot(record(), halts=halts, partitions=rows), "orders")
    assert [one.about for one in told] == ["paused", "running", "moving"]


def test_a_partition_without_a_commit():
    """It is said that there is none, not that it is -1."""
    told = partition_sentence(partition(committed=-1), None)
    assert (
        told.text == "orders[3] has no commit yet. 60,000 records remain; none blocks the commit."
    )


def test_of_many_partitions_that_stand_alike_one_is_reported():
    """A rebalance of ten thousand is two lines; another member's, or another cause, has its own."""
    halts = [
        {"cause": "revoking", "topic": "orders", "partition": n, "member": f"m{n % 2}"}
        for n in range(10_000)
    ]
    buffers = {"cause": "buffers", "topic": "orders", "partition": 3, "member": "m0"}
    told = [one.text for one in why(shot(halts=[*halts, buffers]))]
    assert len(told) == 3
    assert [text.endswith("The same applies to 4,999 more of this topic.") for text in told] == [
        True, True, False,
    ]  # fmt: skip


def test_a_topic_of_ten_thousand_partitions_is_answered_immediately():
    """Each cause is looked at once, not once for each partition: that was a hundred million."""
    blocker = record("ready")
    rows = [{**partition(), "partition": n, "blocker": blocker} for n in range(10_000)]
    halts = [{"cause": "revoking", "topic": "orders", "partition": n} for n in range(10_000)]
    began = time.process_time()
    told = why(shot(halts=halts, partitions=rows), "orders")
    assert len(told) == 20_000
    assert time.process_time() - began < 10  # a tenth of a second; it was minutes


def test_of_a_record_that_was_parked_before_only_that_is_known():
    """The commit remembers it without its error and its time: both are not made up."""
    assert record_sentence(record("parked", attempts=5)).text == (
        "orders[3]: record 10,412 (key cust-17) was parked before this member had its partition, "
        "given up after 5 attempts; see the log of that time."
    )


def test_a_parked_record_is_released_by_a_command_to_copy():
    """The record is named in it; of one that is behind another no place is known here."""
    parked = record("parked", attempts=5)
    assert "`perkey record retry orders:3:10412 --reason TEXT`" in record_sentence(parked).next
    assert "`" not in state_of({"place": "parked", "attempts": 5, "for_s": 1.0})[1]


def test_a_parked_record_of_a_held_key_is_released_with_its_key():
    """`perkey record retry` is refused until the hold is over."""
    sentence = record_sentence(record("parked", attempts=5, reason="being repaired"))
    assert sentence.text.endswith("its key is held by a command (being repaired).")
    assert sentence.next.startswith(
        "`perkey key release --topic orders --key cust-17 --reason TEXT` ends"
    )


def test_a_refused_dead_letter_names_its_topic_and_what_to_create():
    """And the record's own error, which the operator needs after that."""
    said = f"{LETTER_REFUSED}output to orders.dlq: Unknown topic; the record failed: ValueError: no"
    error = {"type": "_UNKNOWN_TOPIC", "message": said}
    sentence = record_sentence(record("parked", attempts=5, last_error=error))
    assert sentence.text.endswith(f"_UNKNOWN_TOPIC: {said}.")
    assert sentence.next == (
        "create the dead-letter topic and release it: `perkey record retry orders:3:10412 --reason "
        "TEXT`"
    )


def test_full_slots_of_a_slow_service_name_its_time():
    """Beside an open transaction, too, of which they are no consequence."""
    halts = [
        {"cause": "slots", "handler": "check"},
        {"cause": "open_transaction", "topic": "other", "partition": 1, "stable_end": 3, "end": 9},
    ]
    slow = {"check": {"latency_ms": {"p50": 25_000.0, "p99": 26_000.0}}}
    first, slots = why({**shot(halts=halts), "handlers": slow})
    assert "describe-producers --topic other --partition 1`" in first.next
    assert slots.text == (
        "All concurrency slots of check are taken by calls of 25 s (median); calls end and others "
        "start."
    )
    assert slots.next.startswith("normal under load; if remaining grows")


def test_of_several_causes_the_first_is_named_and_its_consequences_last():
    """A broker that is away fills the buffers and the slots; the lines about those say so."""
    halts = [
        {"cause": "slots", "handler": "check"},
        {"cause": "buffers", "topic": "orders", "partition": 3},
        {"cause": "map", "topic": "orders", "partition": 3, "waiting": 7, "frontier": 10_412,
         "for_s": 312.0},
        {"cause": "not_begun", "handler": "check", "for_s": 14.0, "calls": 4},
        {"cause": "unassigned"},
        {"cause": "membership"},
        {"cause": "broker", "for_s": 12.0},
    ]  # fmt: skip
    told = why(shot(record(), halts=halts))
    assert [one.about for one in told] == ["broker", "not_begun", "map", "buffers", "slots"]
    assert {one.next for one in told[3:]} == {"a consequence of the first line, or temporary"}


def test_a_polling_thread_that_waited_for_a_broker_blames_no_machine():
    """What it waited for is named; without that the process was suspended, or had no processor."""
    (one,) = why(shot(halts=[{"cause": "membership", "reason": "the last commit"}]))
    assert "the polling thread has waited for the last commit, and no broker answered" in one.text
    assert "overloaded" not in one.next
    (one,) = why(shot(halts=[{"cause": "membership"}]))
    assert "was the process suspended, or the machine overloaded?" in one.next


THREAD = "a thread cannot be cancelled"
ENDS = {
    ("async", None): "timeout_s on @app.consume would end it; none is set",
    ("async", 400.0): "its timeout_s=400 ends it",
    ("async", 5.0): "timeout_s=5 cancelled it but it continues",
    ("processes", None): "timeout_s on @app.consume would end the worker process; none is set",
    ("processes", 400.0): "its timeout_s=400 ends it",
    ("processes", 5.0): "its timeout_s=5 ends it",
    ("threads", None): f"{THREAD}: set a time-out on what it waits for",
    ("threads", 400.0): f"{THREAD}; past timeout_s=400 it counts as overdue and fails",
    ("threads", 5.0): f"{THREAD}, so timeout_s=5 only counts it as overdue",
}


@pytest.mark.parametrize(("kind", "timeout_s"), ENDS)
def test_what_ends_a_call_depends_on_the_executor(kind, timeout_s):
    """Without a limit, within it and past it."""
    row = record("running", executor=kind, timeout_s=timeout_s)
    assert record_sentence(row).next.startswith(ENDS[kind, timeout_s])


BUDGET = {"cause": "budget", "handler": "check", "budget": "openai", "waiting": 3, "share": 1.0}


@pytest.mark.parametrize(
    ("halt", "text"),
    [
        ({"why": "asked", "per_s": 50.0, "until": 3_600.0, "error": {"type": "E", "message": "429"}},
         "(50 per second): the service asked to wait until 01:00:00Z: E: 429."),
        ({"why": "in_flight", "in_flight": 20, "calls": 20},
         "(20 in flight): 20 calls are in flight."),
        ({"why": "share", "per_s": 0.5},
         "(0.5 per second): how many partitions its topics have is not known yet."),
    ],
)  # fmt: skip
def test_what_a_budget_waits_for_is_named(halt, text):
    """Its numbers as declared, and why nothing starts."""
    told = halt_sentence({**BUDGET, **halt})
    assert told.text == f"3 keys of check wait for budget openai {text}"
    assert told.next
    one = halt_sentence({**BUDGET, **halt, "waiting": 1})
    assert one.text == f"1 key of check waits for budget openai {text}"


def test_a_budget_is_the_cause_not_the_records_in_its_queue():
    """They are in its sentence, and no line of their own is above it."""
    halt = {**BUDGET, "why": "rate", "per_s": 10.0, "in_flight": None, "due_in_s": 0.04}
    row = record("budget")
    (told,) = why(shot(row, halts=[halt]))
    assert (told.about, "starts in 0.1 s" in told.text) == ("budget", True)
    assert [one.about for one in why(shot(row))] == ["budget"]  # until the budget is known
