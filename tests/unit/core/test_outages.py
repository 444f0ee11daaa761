"""A handler that waits while what it calls is away, and one record that probes."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, in_batches, in_state, offsets

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Command, Failed, HandlerSpec, Returned, Target, Unhandled
from perkey.core.work import Tags
from perkey.policies import Hold, Park, Retry
from perkey.types import ErrorInfo, Record

AWAY = ErrorInfo("Unavailable", "503")
HOLD = Hold(on=(OSError,), probe_s=5, max_s=60)
BY = Hold(on=(OSError,), probe_s=5, max_s=60, by=lambda record: record.key[:1])


def handler(hold=HOLD, **options) -> HandlerSpec:
    """Unordered records, two attempts, then parked."""
    options = {"concurrency": 2, "retry": Retry(2, 1.0, jitter=0.0), **options}
    return HandlerSpec("h", ordering="unordered", hold=hold, on_exhausted=Park(), **options)


def poll(desk, part, *values: str) -> None:
    """Records from the next offset on, each of one of these values."""
    start = part.position
    records = [
        Record(part.topic, part.number, start + i, 0, value.encode(), b"v")
        for i, value in enumerate(values)
    ]
    said = {part: [Tags(value[0]) for value in values]}
    desk.do("polled", [(part, records, [100] * len(records))], said)


def end(desk, *works, error=AWAY, away=True) -> None:
    """These calls fail."""
    desk.do("calls_ended", (), [Failed(work, error, away=away) for work in works])


def opened(desk, *values: str):
    """An outage of the whole handler: two records failed; returns the partition."""
    (part,) = desk.assign(0)
    poll(desk, part, *values)
    end(desk, *desk.started())
    return part


def test_nothing_starts_while_it_is_away(make_desk):
    """Two calls failed with an error that the hold names: no other record starts."""
    desk = make_desk(handler())
    part = opened(desk, *"aaaa")
    assert desk.started() == []
    desk.pass_time(4.9)
    assert desk.started() == []
    assert part.in_flight == 0


def test_one_record_probes_and_all_go_on(make_desk):
    """After `probe_s` one call is made; when it returns, the others are."""
    desk = make_desk(handler())
    opened(desk, *"aaaa")
    desk.pass_time(5.0)
    (probe,) = desk.started()
    desk.pass_time(60.0 - 6)
    assert desk.started() == []
    desk.do("calls_ended", [probe])
    assert len(desk.started()) == 2
    assert not desk.engine.handlers[0].outages


def test_another_record_probes_next_time(make_desk):
    """A probe that fails goes behind the others: each probes once before the first does again."""
    desk = make_desk(handler())
    opened(desk, *"aaaa")
    probes = []
    for _ in range(5):
        desk.pass_time(5.0)
        (probe,) = desk.started()
        probes.append(probe.record.offset)
        end(desk, probe)
    assert sorted(probes[:4]) == [0, 1, 2, 3]
    assert probes[4] == probes[0]


def test_no_attempt_is_charged(make_desk):
    """However often it failed so, all its attempts are left; the handler is given the number."""
    desk = make_desk(handler())
    (part,) = desk.assign(0)
    poll(desk, part, "a")
    (work,) = desk.started()
    for count in range(1, 5):
        end(desk, work)
        assert work.failure.attempts - work.failure.shared == 0
        desk.pass_time(5.0)
        assert desk.started() == [work]
        assert work.record.attempt == count + 1
    end(desk, work, error=ERROR, away=False)
    assert (work.state, work.failure.shared) == (states.RETRYING, 4)


def test_a_probe_that_is_poison_is_charged(make_desk):
    """It fails with another error: that is an attempt as ever, and another record probes next."""
    desk = make_desk(handler(retry=Retry(1)))
    opened(desk, *"aaaa")
    desk.pass_time(5.0)
    (probe,) = desk.started()
    end(desk, probe, error=ERROR, away=False)
    assert probe.state == states.PARKED
    desk.pass_time(4.9)
    assert desk.started() == []
    desk.pass_time(0.1)
    (other,) = desk.started()
    assert other is not probe


def test_a_record_that_was_given_back_has_not_probed(make_desk):
    """Its call did not begin: the next one is made at once."""
    desk = make_desk(handler())
    opened(desk, *"aaaa")
    desk.pass_time(5.0)
    (probe,) = desk.started()
    desk.do("calls_ended", (), [Unhandled(probe)])
    assert len(desk.started()) == 1


def test_a_probe_of_an_ended_epoch_is_followed_at_once(make_desk):
    """Nobody will know how its call ended: another partition's record probes."""
    desk = make_desk(handler())
    parts = desk.assign(0, 1)
    for part in parts:
        poll(desk, part, *"aaa")
    end(desk, *desk.started())
    desk.pass_time(5.0)
    (probe,) = desk.started()
    desk.do("closed", [probe.partition])
    (other,) = desk.started()
    assert other.partition is not probe.partition


def test_outputs_of_a_probe_show_that_it_answers(make_desk):
    """Its call returned, whatever the broker says of what it returned."""
    desk = make_desk(handler())
    opened(desk, *"aaaa")
    desk.pass_time(5.0)
    (probe,) = desk.started()
    desk.do("calls_ended", (), [Returned(probe, ["output"])])
    assert len(desk.started()) == 2


@pytest.mark.parametrize(("after_s", "charged"), [(59.9, 0), (60.0, 1), (60.1, 1)])
def test_the_policy_takes_over_at_max_s(make_desk, after_s, charged):
    """A probe that ends then is an attempt, and all others go on."""
    desk = make_desk(handler())
    opened(desk, *"aaaa")
    desk.pass_time(55.0)
    (probe,) = desk.started()
    desk.pass_time(after_s - 55.0)
    assert len(desk.started()) == charged
    end(desk, probe)
    assert probe.failure.attempts - probe.failure.shared == charged


def test_after_max_s_a_success_begins_anew(make_desk):
    """One success, and the next failure opens an outage again, with all of its time."""
    desk = make_desk(handler(concurrency=1))
    opened(desk, *"aaaaaa")
    desk.pass_time(60.0)
    (one,) = desk.started()
    desk.do("calls_ended", [one])
    (other,) = desk.started()
    end(desk, other)
    assert other.failure.shared == 1
    desk.pass_time(4.0)
    assert desk.started() == []


def test_its_own_fault_stops_no_other(make_desk):
    """A record that fails again after another has succeeded waits alone, and at `max_s` it costs."""
    desk = make_desk(handler(concurrency=1))
    opened(desk, *"aaa")
    desk.pass_time(5.0)
    (probe,) = desk.started()
    desk.do("calls_ended", [probe])
    (again,) = desk.started()
    while again.record.offset != 0:
        desk.do("calls_ended", [again])
        (again,) = desk.started()
    end(desk, again)
    assert again.state == states.RETRYING
    assert not desk.engine.handlers[0].outages
    for _ in range(10):
        desk.pass_time(5.0)
        assert desk.started() == [again]
        end(desk, again)
    assert again.failure.attempts == again.failure.shared == 12
    desk.pass_time(5.0)
    desk.started()
    end(desk, again)
    assert again.failure.attempts - again.failure.shared == 1


def test_only_records_of_that_value_wait(make_desk):
    """Others start, are done and are fetched; what waits is charged as failing lanes are."""
    desk = make_desk(handler(BY))
    (part,) = desk.assign(0)
    poll(desk, part, "a1", "b1", "a2", "a3", "b2")
    first = desk.started()
    end(desk, first[0])
    desk.do("calls_ended", [first[1]])
    (b2,) = desk.started()
    assert b2.record.key == b"b2"
    assert in_state(part, states.OUTAGE) == [0, 2, 3]
    assert part.healthy == 1
    desk.pass_time(5.0)
    (probe,) = desk.started()
    assert probe.record.key == b"a2"
    desk.do("calls_ended", [probe, b2])
    assert [work.record.key for work in desk.started()] == [b"a3", b"a1"]
    assert in_state(part, states.OUTAGE) == []


def test_values_wait_each_for_its_own(make_desk):
    """A success of one value lets no record of another go on."""
    desk = make_desk(handler(BY, concurrency=4))
    (part,) = desk.assign(0)
    poll(desk, part, "a1", "b1")
    end(desk, *desk.started())
    assert len(desk.engine.handlers[0].outages) == 2
    desk.pass_time(5.0)
    a, b = desk.started()
    desk.do("calls_ended", [a])
    end(desk, b)
    assert list(desk.engine.handlers[0].outages) == [b.tags.hold]


def test_a_record_put_aside_can_be_skipped_and_held(make_desk):
    """Commands find it where it is."""
    desk = make_desk(handler(BY))
    (part,) = desk.assign(0)
    poll(desk, part, "a1", "a2", "a3", "a4")
    end(desk, *desk.started())
    for action, offset in (("skip", 2), ("hold", 3)):
        command = Command(action, Target("t", None, 0, offset), until_s=100.0, reason="r")
        desk.do("obey", [command], 0.0)
    assert in_state(part, states.OUTAGE) == [0, 1]
    assert in_state(part, states.HELD) == [3]


def test_what_was_put_aside_goes_with_its_epoch(make_desk):
    """A partition that goes away leaves nothing behind that would start."""
    desk = make_desk(handler(BY))
    (part,) = desk.assign(0)
    poll(desk, part, *["a"] * 4)
    end(desk, *desk.started())
    desk.do("closed", [part])
    desk.pass_time(5.0)
    (part,) = desk.assign(0)
    poll(desk, part, "a")
    assert len(desk.started()) == 1


def test_a_batch_probes_as_one(make_desk):
    """Of a batch handler one call is made, and its records are not tried in halves."""
    spec = in_batches(2, 0.0, concurrency=2, hold=HOLD, retry=Retry(2))
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, *range(6), key=None)
    first, second = desk.take(fx.Start)
    for call in (first, second):
        ended = [Failed(work, AWAY, away=True) for work in call.works]
        desk.do("batch_ended", 0, (), ended, whole=True)
    desk.pass_time(4.9)
    assert desk.take(fx.Start) == []
    desk.pass_time(0.1)
    (probe,) = desk.take(fx.Start)
    assert len(probe.works) == 2
    desk.do("batch_ended", 0, probe.works, ())
    assert sorted(len(call.works) for call in desk.take(fx.Start)) == [2, 2]


def test_a_batch_keeps_the_order_of_its_lanes(make_desk):
    """Two records of a lane that failed together come again in their order."""
    spec = in_batches(2, 0.0, concurrency=1, hold=HOLD, retry=Retry(2))
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (call,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, (), [Failed(w, AWAY, away=True) for w in call.works], whole=True)
    desk.pass_time(5.0)
    (call,) = desk.take(fx.Start)
    assert offsets(call.works) == [0, 1]


def test_a_rate_limit_is_not_spent_on_what_is_put_aside(make_desk):
    """Tokens of records that do not start are given back."""
    desk = make_desk(handler(BY, concurrency=10, rate_limit_per_s=1.0))
    (part,) = desk.assign(0)
    poll(desk, part, "a", "a", "a", "b")
    end(desk, *desk.started())
    desk.pass_time(1.0)
    assert [work.record.key for work in desk.started()] == [b"b"]
