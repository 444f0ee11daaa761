"""The account: every record in one place, the true remainder, and who holds up most."""

from __future__ import annotations

import pytest

from perkey.account import begun
from perkey.account.account import SLICE_PARTITIONS, SLICE_RECORDS, copies, slices, take
from perkey.account.blockers import blockers
from perkey.account.finding import find, find_key
from perkey.account.shown import KEY_CHARS_MAX, TEXT_CHARS_MAX, shown_key, shown_text
from perkey.account.snapshot import NOT_LISTED, _oldest, snapshot
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.core.work import Tags
from perkey.observe.why import why
from perkey.policies import Batch, Hold, Retry
from perkey.types import ErrorInfo, Record

ERROR = ErrorInfo("ValueError", "bad \x1b[31m" + "x" * 1000)

#: what a halt tells of the calls that take every slot
OF_CALLS = {"acknowledged", "calls", "concurrency", "since", "for_s", "oldest"}


def shot_of(desk, epoch_s=1000.0):
    """The snapshot of a desk's engine; an account that only counts tells the same sums."""
    shot = snapshot(take(desk.engine, desk.now), epoch_s)
    counted = take(desk.engine, desk.now, records=False)
    halts = [
        {n: v for n, v in halt.items() if halt["cause"] != "slots" or n not in OF_CALLS}
        for halt in shot["halts"]
    ]
    nothing = {"blockers": [], "parked": [], "on_hold": []}
    left_out = {
        f"{name}_left_out": len(shot[name]) + shot[f"{name}_left_out"] for name in NOT_LISTED
    }
    sums = {**shot, **nothing, **left_out, "halts": halts}
    assert snapshot(counted, epoch_s, worst=False) == sums
    return shot


def places(desk) -> dict[str, int]:
    """What is anywhere in the first partition."""
    row = shot_of(desk)["partitions"][0]
    return {name: count for name, count in row["places"].items() if count}


def test_each_place_is_reported(make_desk):
    """Running, behind, retrying and parked records are counted where they are."""
    desk = make_desk(HandlerSpec("h", concurrency=2, retry=Retry(attempts=2, delay_s=9, jitter=0)))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, 2, key=b"a")
    desk.poll(partition, 3, key=b"b")
    desk.poll(partition, 4, key=b"c")
    assert places(desk) == {"running": 2, "behind": 2, "ready": 1}
    first, _ = desk.started()
    desk.do("calls_ended", [], [Failed(first, ERROR)])
    assert places(desk) == {"running": 2, "behind": 2, "retrying": 1}
    desk.do("calls_ended", [], [Failed(work, ERROR, final=True) for work in desk.started()])
    assert places(desk) == {"running": 1, "behind": 2, "retrying": 1, "parked": 1}


def test_a_call_that_has_not_begun_is_not_running(make_desk):
    """Workers that open, a prefetch that loads: granted, and no handler has it."""
    desk = make_desk(HandlerSpec("h", concurrency=2))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, 2, key=None)
    first, second = desk.started()
    begun.waiting([first, second])
    row = shot_of(desk)["partitions"][0]
    assert places(desk) == {"not_begun": 2, "ready": 1}
    assert row["in_flight"] == 0
    account = take(desk.engine, desk.now)
    worst = blockers(account, account.parts())
    assert [one.place for one in worst] == ["not_begun"] * 2
    begun.begun([first], desk.now)
    assert places(desk) == {"not_begun": 1, "running": 1, "ready": 1}


@pytest.mark.parametrize(
    ("for_s", "cause"), [(1.9, "slots"), (2.0, "not_begun"), (2.1, "not_begun")]
)
def test_calls_none_of_which_begins_are_a_cause(make_desk, for_s, cause):
    """After two seconds; before that it is nothing to speak of."""
    desk = make_desk(HandlerSpec("h", concurrency=2))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, 2, key=None)
    works = desk.started()
    begun.waiting(works)
    at = works[0].since + for_s
    (halt,) = snapshot(take(desk.engine, at))["halts"]
    assert halt["cause"] == cause
    if cause == "not_begun":
        assert (halt["calls"], halt["for_s"], halt["oldest"]["offset"]) == (2, for_s, 0)
    begun.begun(works[:1], desk.now)
    assert snapshot(take(desk.engine, at))["halts"] == [{"cause": "slots", "handler": "h"}]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"delivery": "at_most_once", "retry": Retry(attempts=1)}, "marking"),
        ({"batch": Batch(max_records=10, linger_s=5.0)}, "gathering"),
    ],
)
def test_places_before_the_call(make_desk, options, place):
    """A started-mark on the way, and a batch that still fills, are places of their own."""
    desk = make_desk(HandlerSpec("h", **options))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, key=None)
    assert places(desk) == {place: 2}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, "done"),
        ({"commit_each": True}, "committing"),
        ({"delivery": "exactly_once"}, "pending"),
    ],
)
def test_places_after_the_call(make_desk, options, place):
    """What is handled and waits for a commit or a transaction is told as that."""
    desk = make_desk(HandlerSpec("h", **options))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0)
    desk.do("calls_ended", desk.started())
    assert places(desk) == ({} if place == "done" else {place: 1})


def test_outputs_on_the_way_are_sending(make_desk):
    """A record whose outputs are not acknowledged is with the producer."""
    desk = make_desk()
    (partition,) = desk.assign(0)
    desk.poll(partition, 0)
    desk.do("calls_ended", [], [Returned(work, ("x",)) for work in desk.started()])
    assert places(desk) == {"sending": 1}


def test_past_the_room_of_the_map_is_a_place(make_desk):
    """With a map of almost no characters, records far past a stuck one are told as past it."""
    desk = make_desk(HandlerSpec("h"), limits=Limits(map_chars=16))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, key=b"stuck")
    for offset in range(1, 300):
        desk.poll(partition, offset, key=b"%d" % offset)
        desk.do("calls_ended", [w for w in desk.started() if w.record.key != b"stuck"])
    assert places(desk)["past_map"] > 100
    assert places(desk)["running"] == 1


def test_a_lane_of_an_older_epochs_call_is_held(make_desk):
    """A record whose lane waits for a call of an epoch that ended is told as held."""
    desk = make_desk()
    (partition,) = desk.assign(0)
    desk.poll(partition, 0)
    desk.do("closed", [partition], lost=True)
    (again,) = desk.assign(0)
    desk.poll(again, 0, 1)
    assert places(desk) == {"held": 1, "behind": 1}
    (worst,) = shot_of(desk)["blockers"][:1]
    assert (worst["place"], worst["offset"], worst["waiting_behind"]) == ("held", 0, 1)


def test_remaining_is_what_is_left(make_desk):
    """358 behind by lag, 11 left: what is done beyond the frontier does not count."""
    desk = make_desk(HandlerSpec("h", concurrency=1000))
    (partition,) = desk.assign(0)
    for offset in range(358):
        desk.poll(partition, offset, key=None)
    stuck = {0, *range(100, 110)}
    desk.do("calls_ended", [w for w in desk.started() if w.record.offset not in stuck])
    row = shot_of(desk)["partitions"][0]
    assert (row["lag"], row["remaining"], row["done_beyond"]) == (358, 11, 347)
    assert row["remaining"] == row["end"] - row["frontier"] - row["done_beyond"]
    assert (row["remaining_is_bound"], row["oldest_not_done"]) == (False, 0)
    partition.log_end = 500
    row = shot_of(desk)["partitions"][0]
    assert (row["remaining"], row["remaining_is_bound"]) == (11 + 142, True)


def test_remaining_after_a_restart(make_desk):
    """Holes of the restored map that are not fetched yet are left to do, and no more than they."""
    desk = make_desk()
    (partition,) = desk.assign(0, start=100, restored_top=200, restored_not_done=(100, 150))
    row = shot_of(desk)["partitions"][0]
    assert (row["frontier"], row["remaining"], row["done_beyond"], row["end"]) == (100, 0, 99, 100)
    partition.log_end = 201
    row = shot_of(desk)["partitions"][0]
    assert (row["remaining"], row["unfetched"], row["buffered"]) == (2, 2, 0)
    (worst,) = shot_of(desk)["blockers"]
    assert (worst["place"], worst["offset"], worst["done_beyond"]) == ("unfetched", 100, 99)
    desk.do("calls_ended", [])
    assert places(desk) == {}


def test_the_worst_blocker_comes_first(make_desk):
    """A record with a long lane behind it outranks one that only has done ones beyond it."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=1)))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, key=b"alone")
    desk.poll(partition, 1, key=b"a")
    desk.poll(partition, *range(2, 50), key=b"slow")
    by_offset = {work.record.offset: work for work in desk.started()}
    desk.now = 7.0
    desk.do("calls_ended", [by_offset[1]], [Failed(by_offset[0], ERROR)])
    desk.now = 10.0
    slow, alone = shot_of(desk)["blockers"]
    assert (slow["offset"], slow["waiting_behind"], slow["done_beyond"]) == (2, 47, 0)
    assert (slow["place"], slow["for_s"], slow["since"], slow["key"]) == (
        "running", 10.0, 1000.0, "slow",
    )  # fmt: skip
    assert (alone["offset"], alone["place"], alone["done_beyond"]) == (0, "parked", 1)
    assert (alone["at_frontier"], slow["at_frontier"]) == (True, False)
    error = alone["last_error"]["type"]
    assert (alone["for_s"], alone["attempts"], error) == (3.0, 1, "ValueError")
    assert [one["at"] for one in alone["story"]] == [1007.0] * 3


def test_equal_blockers_are_in_order_of_their_names(make_desk):
    """Calls that started in one moment: by partition, not by which was assigned first."""
    desk = make_desk(HandlerSpec("h", concurrency=4))
    for number in (2, 0, 1):
        (partition,) = desk.assign(number)
        desk.poll(partition, 0)
    assert [row["partition"] for row in shot_of(desk)["blockers"]] == [0, 1, 2]


def test_a_batchs_lane_is_walked_once(make_desk):
    """Of many records of one lane in one batch, each waits for those behind the last of them."""
    desk = make_desk(HandlerSpec("h", batch=Batch(max_records=3, linger_s=0)))
    (partition,) = desk.assign(0)
    desk.poll(partition, *range(10))
    account = take(desk.engine, 0.0)
    found = {one.offset: one.waiting_behind for one in blockers(account, account.parts())}
    assert found == {0: 7, 1: 7, 2: 7}


def test_errors_and_keys_are_cut_and_escaped(make_desk):
    """Control characters and a megabyte of text do not reach whoever looks."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=1)))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, key=b"\x1b[2J<b>" + b"k" * 1_000_000)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    (one,) = shot_of(desk)["blockers"]
    assert one["key"].startswith("\\x1b[2J<b>")
    assert len(one["key"]) == KEY_CHARS_MAX
    assert len(one["last_error"]["message"]) == TEXT_CHARS_MAX
    assert "\x1b" not in str(shot_of(desk))


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, None), (b"", ""), (b"cust-17", "cust-17"), (b"\xff\x00", "\\xff\\x00"),
        ("Zürich 🚗".encode(), "Zürich 🚗"),
        (b"k" * KEY_CHARS_MAX, "k" * KEY_CHARS_MAX),
        (b"k" * (KEY_CHARS_MAX + 1), "k" * (KEY_CHARS_MAX - 1) + "…"),
    ],
)  # fmt: skip
def test_keys_as_text(key, shown):
    """A key is text where it is text, and is cut past its limit only."""
    assert shown_key(key) == shown


def test_text_is_one_line():
    """Line breaks of an error are told, not made."""
    assert shown_text("a\nb\u2028c") == "a\\nb\\u2028c"


def causes(desk) -> list[str]:
    """Why nothing starts."""
    return [halt["cause"] for halt in shot_of(desk)["halts"]]


def test_why_nothing_starts(make_desk):
    """No partition, a pause, full outputs, taken slots and a stop are told, each by its word."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    assert causes(desk) == ["unassigned"]
    (partition,) = desk.assign(0)
    assert causes(desk) == []
    desk.poll(partition, 0, 1, key=None)
    assert causes(desk) == ["slots"]
    desk.do("pause", "t", on=True)
    desk.do("halt", "outputs", on=True)
    desk.do("stop", "in_flight")
    assert causes(desk) == ["stopping", "paused", "outputs", "slots"]
    desk.do("revoking", [partition])
    assert "revoking" in causes(desk)


def test_taken_slots_report_since_when_no_call_has_ended(make_desk):
    """Since the youngest began, for one that ends begins another; the oldest is named."""
    desk = make_desk(HandlerSpec("h", concurrency=2))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, 2, key=None)
    desk.now += 7.0
    desk.do("calls_ended", [desk.started()[1]], [])
    desk.now += 5.0
    desk.poll(partition, 3, key=None)
    (halt,) = [one for one in shot_of(desk)["halts"] if one["cause"] == "slots"]
    assert (halt["calls"], halt["concurrency"], halt["for_s"]) == (2, 2, 5.0)
    assert (halt["oldest"]["offset"], halt["oldest"]["for_s"]) == (0, 12.0)


def test_of_calls_that_began_together_the_first_record_is_the_oldest(make_desk):
    """The frontier, not whichever call an executor lists first."""
    desk = make_desk(HandlerSpec("h", concurrency=3))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, 2, 3, key=None)
    works = desk.started()
    (handler,) = {work.partition.handler for work in works}
    for order in (works, works[::-1]):
        assert _oldest(handler, order, desk.now, 0.0, "running")["offset"] == 0


def test_slots_of_calls_that_have_acknowledged_all_are_counted(make_desk):
    """Nothing else names them: no record is theirs any more."""
    desk = make_desk(HandlerSpec("h", concurrency=2, batch=Batch(1, 0.0, "explicit")))
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, 2, key=None)
    desk.do("batch_progressed", desk.started()[:1], [])
    (halt,) = [one for one in shot_of(desk)["halts"] if one["cause"] == "slots"]
    assert halt == {"cause": "slots", "handler": "h", "acknowledged": 1}


def test_a_used_up_rate_limit_is_a_cause(make_desk):
    """With records ready and slots free, the rate limit is named."""
    desk = make_desk(HandlerSpec("h", rate_limit_per_s=1.0))
    (partition,) = desk.assign(0)
    desk.poll(partition, *range(10), key=None)
    assert causes(desk) == ["rate_limit"]


def test_full_buffers_are_a_cause(make_desk):
    """A partition that is not fetched because it holds too much is named."""
    desk = make_desk(limits=Limits(buffer_records=4))
    (partition,) = desk.assign(0)
    desk.poll(partition, *range(10))
    assert shot_of(desk)["halts"] == [{"cause": "buffers", "topic": "t", "partition": 0}]
    assert shot_of(desk)["partitions"][0]["paused_by"] == ["buffers"]


class TestFind:
    """Where one record is."""

    @pytest.fixture
    def desk(self, make_desk):
        """One lane of three, the first of them running; one record done; the log goes on."""
        desk = make_desk()
        (partition,) = desk.assign(0)
        desk.poll(partition, 0, 2, 3)
        desk.poll(partition, 1 + 3, key=b"other")
        desk.do("calls_ended", [w for w in desk.started() if w.record.key == b"other"])
        partition.log_end = 10
        return desk

    @pytest.mark.parametrize(
        ("offset", "place"),
        [
            (0, "running"),
            (2, "behind"),
            (4, "done"),
            (1, "done"),
            (7, "not_read"),
            (10, "not_there"),
        ],
    )
    def test_by_offset(self, desk, offset, place):
        """Held, done with, not read yet, or not in the log at all."""
        assert find(desk.engine, 1.0, 0.0, "t", 0, offset)["place"] == place

    def test_another_members(self, desk):
        """A partition that is not here is elsewhere."""
        assert find(desk.engine, 1.0, 0.0, "t", 1, 0)["place"] == "elsewhere"

    def test_whom_it_is_behind(self, desk):
        """A queued record names the one that its lane waits for."""
        row = find(desk.engine, 5.0, 0.0, "t", 0, 3)
        assert (row["behind"]["offset"], row["behind"]["place"], row["behind"]["for_s"]) == (
            0, "running", 5.0,
        )  # fmt: skip

    def test_by_key(self, desk):
        """All records held under a key, in their order."""
        rows = find_key(desk.engine, 1.0, 0.0, b"k")
        assert [(row["offset"], row["place"]) for row in rows] == [
            (0, "running"), (2, "behind"), (3, "behind"),
        ]  # fmt: skip
        assert find_key(desk.engine, 1.0, 0.0, b"nobody") == []


def test_an_account_is_a_copy(make_desk):
    """What happens after it was taken does not change what it counts."""
    desk = make_desk()
    (partition,) = desk.assign(0)
    desk.poll(partition, 0, 1, key=None)
    account = take(desk.engine, 0.0)
    desk.do("calls_ended", desk.started())
    assert account.parts()[0].places["running"] == 2
    assert snapshot(account)["partitions"][0]["buffered"] == 2
    assert snapshot(account)["blockers"] == []  # done meanwhile: they hold up nothing


def test_an_account_that_counts_keeps_one_record_of_a_partition(make_desk):
    """It is taken each second for metrics, whatever is held."""
    desk = make_desk()
    (partition,) = desk.assign(0, start=100, restored_top=200, restored_not_done=(100, 150))
    desk.poll(partition, 100, 150, *range(201, 300))
    (part,) = take(desk.engine, 0.0, records=False).parts()
    assert ([work.record.offset for work in part.works], part.not_done) == ([100], 101)
    assert [len(some) for some in slices([partition] * SLICE_PARTITIONS, records=False)] == [
        SLICE_PARTITIONS
    ]


def test_an_account_is_taken_in_slices(make_desk):
    """Many partitions, or many records, are copied a slice at a time; a closed one is left out."""
    desk = make_desk()
    partitions = desk.assign(*range(2 * SLICE_PARTITIONS + 1))
    assert [len(some) for some in slices(partitions)] == [SLICE_PARTITIONS] * 2 + [1]
    partitions[0].offsets.incomplete = dict.fromkeys(range(SLICE_RECORDS))
    assert [len(some) for some in slices(partitions[:3])] == [1, 2]
    assert list(slices([])) == []
    desk.engine.closed(0.0, partitions[1:2], lost=True)
    assert len(copies(desk.engine, partitions[1:3])) == 1


def test_an_outage_is_a_cause_and_of_one_value_a_place(make_desk):
    """Who waits since when, with which error, and how often a record probes."""
    by = Hold(on=(OSError,), by=lambda record: record.key)
    desk = make_desk(HandlerSpec("whole", hold=Hold(on=(OSError,))), HandlerSpec("by", hold=by))
    (first,), (second,) = desk.assign(0, topic="a"), desk.assign(0, topic="b", handler=1)
    said = {second: [Tags(b"acme")] * 3}
    for part, more in ((first, {}), (second, said)):
        records = [Record(part.topic, 0, offset, 0, b"%d" % offset, b"") for offset in range(3)]
        desk.do("polled", [(part, records, [1] * 3)], more)
        away = [Failed(work, ErrorInfo("Away", "503"), away=True) for work in desk.started()]
        desk.do("calls_ended", (), away)
    desk.pass_time(2.0)
    shot = shot_of(desk)
    told = {
        "cause": "outage", "error": {"type": "Away", "message": "503"}, "since": 1000.0, "for_s": 2.0,
        "waiting": 3, "failed": 3, "probe_s": 5.0,
    }  # fmt: skip
    assert shot["halts"] == [
        {**told, "handler": "whole"},
        {**told, "handler": "by", "value": "acme"},
    ]
    assert [part["places"]["outage"] for part in shot["partitions"]] == [0, 3]
    assert shot["blockers"][0]["place"] == "ready"
    assert shot["blockers"][1]["place"] == "outage"


def test_what_the_commit_has_no_room_to_remember_is_reported(make_desk):
    """Of the partition: how many start over after a restart; `perkey why` says so as long as it is."""
    retry = Retry(attempts=3, delay_s=9, jitter=0)
    desk = make_desk(HandlerSpec("h", "unordered", retry=retry), limits=Limits(map_chars=64))
    (partition,) = desk.assign(0, unix_s=1e9)
    desk.poll(partition, *range(20), key=None)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.pass_time(1.0)
    left_out = partition.memory.shed
    shot = shot_of(desk)
    assert 0 < left_out < 20
    assert shot["partitions"][0]["not_remembered"] == left_out
    (sentence, *_) = why(shot, "t")
    assert f"no room for {left_out} failing or parked records: after a restart" in sentence.text
    desk.pass_time(10.0)
    desk.do("calls_ended", desk.started())
    assert shot_of(desk)["partitions"][0]["not_remembered"] == 0
