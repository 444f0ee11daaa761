"""Commands to keys and records of a run on the in-memory broker."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.waiting import wait_for
from tests.unit.runtime.test_control import LIMIT_S

import perkey
from perkey.observe.orders import Order
from perkey.runtime.run.record_control import summary
from perkey.testing import MemoryKafka


class Started:
    """An app that runs: values that begin with b fail until it is mended."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka, self.mended = kafka, False
        self.done: list[str] = []
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})

        @app.consume("t", retry=perkey.Retry(attempts=2, delay_s=0.01))
        def check(record: perkey.Record[Any]) -> None:
            value = record.value.decode()
            if value.startswith("b") and not self.mended:
                raise KeyError(value)
            self.done.append(value)

        self.app = app
        self.run: Any = app.start()
        wait_for(lambda: app.snapshot()["partitions"])

    def parked(self) -> int:
        """How many are parked."""
        return sum(row["parked"] for row in self.app.snapshot()["partitions"])

    def obey(self, action: str, *offsets: int, **given: Any) -> Any:
        """The answer of the member; the records are of partition 0."""
        records = tuple((0, offset) for offset in offsets)
        return self.run.control.obey(Order(action, "a test", "id", "t", records=records, **given))


@pytest.fixture
def started():
    """One with two keys, the first record of each parked."""
    with MemoryKafka() as kafka:
        kafka.create_topic("t")
        made = Started(kafka)
        for value, key in (("b0", b"a"), ("b1", b"c"), ("2", b"a"), ("3", b"c")):
            kafka.produce("t", value.encode(), key)
        wait_for(lambda: made.parked() == 2)
        yield made
        made.run.stop("now")
        made.run.wait(LIMIT_S)


def test_released_records_are_handled_in_key_order(started):
    """Each with its attempts anew."""
    started.mended = True
    answer = started.obey("release", 0, 1)
    assert answer.outcome == "done"
    assert "released 2" in answer.detail
    wait_for(lambda: len(started.done) == 4)
    assert [one for one in started.done if one in ("b0", "2")] == ["b0", "2"]


def test_a_dry_run_names_records_and_keys(started):
    """And changes nothing."""
    answer = started.obey("release", 0, dry_run=True)
    assert answer.outcome == "would"
    assert "release: released 1: t:0:0 released: parked, key a" in answer.detail
    answer = started.obey("skip", key="c", dry_run=True)
    assert "t:0:1 skipped: parked, key c; 2 records of it here" in answer.detail
    answer = started.obey("hold", key="none", dry_run=True)
    assert (answer.outcome, "0 records of it here" in answer.detail) == ("would", True)
    assert started.parked() == 2


def test_a_condition_selects_keys(started):
    """Those of the records here that match now: all of such a lane waits, others do not."""
    started.mended = True
    where = 'error.message =~ "b0" and state == "parked" and attempts == 2'
    answer = started.obey("release", where=where, dry_run=True)
    assert (answer.outcome, "t:0:0 released: parked, key a" in answer.detail) == ("would", True)
    assert "; 1 record of 1 key match here" in answer.detail
    answer = started.obey("release", where=where)
    assert (answer.outcome, "released 1" in answer.detail) == ("done", True)
    wait_for(lambda: started.done == ["b0", "2"])
    assert started.parked() == 1
    assert started.obey("hold", where='key == "none"').outcome == "not here"
    assert started.obey("hold", where="offset == 1", for_s=600.0).outcome == "done"
    assert started.obey("release", where='state == "parked"').outcome == "done"
    wait_for(lambda: started.done == ["b0", "2", "b1", "3"])


def test_a_condition_asks_for_headers(started):
    """Those of a parked record are read from its topic: they are not in memory."""
    started.kafka.produce("t", b"b9", b"h", headers=(("tenant", b"acme"),))
    wait_for(lambda: started.parked() == 3)
    started.mended = True
    assert started.obey("retry", where='header.tenant == "acme"').outcome == "done"
    wait_for(lambda: started.done == ["b9"])


def test_a_key_that_is_no_text_is_named_by_its_bytes(started):
    r"""As \xNN, in a condition and in what a dry run shows: the same as in `perkey parked`."""
    started.kafka.produce("t", b"b9", b"\xffk")
    wait_for(lambda: started.parked() == 3)
    answer = started.obey("retry", where=r'key == "\xffk"', dry_run=True)
    assert (answer.outcome, r"key \xffk" in answer.detail) == ("would", True)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_condition_selects_no_more_than_a_command_takes(started, monkeypatch, most):
    """Two keys match: one too many is one line that names the cure, and changes nothing."""
    monkeypatch.setattr("perkey.runtime.run.record_control.RECORDS_MAX", most)
    answer = started.obey("hold", where="attempts >= 1", for_s=600.0)
    assert answer.outcome == ("refused" if most < 2 else "done")
    if most < 2:
        assert "2 keys match here, and a command takes 1: narrow --where" in answer.detail


@pytest.mark.parametrize("where", [None, 'key == "a"'])
def test_of_a_key_the_first_record_is_skipped(started, where):
    """It is named, and committed; the next one is handled. Nothing is left then."""
    given = {"key": "a"} if where is None else {"where": where}
    answer = started.obey("skip", **given)
    assert (answer.outcome, "t:0:0 skipped" in answer.detail) == ("done", True)
    assert started.kafka.committed("g", "t").frontier >= 1
    wait_for(lambda: started.done == ["2"])
    wait_for(lambda: started.obey("skip", **given).outcome == "not here")
    assert started.obey("skip", key="none").outcome == "not here"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_what_waits_is_released_in_pieces(started, monkeypatch, most):
    """By one command, however many: two keys; of so many the answer has the rows."""
    monkeypatch.setattr("perkey.runtime.run.record_control.RECORDS_MAX", most)
    monkeypatch.setattr("perkey.runtime.run.record_control.OBEY_MAX", most)
    started.kafka.produce("t", b"b9", b"h", headers=(("tenant", b"acme"),))
    wait_for(lambda: started.parked() == 3)
    started.mended = True
    answer = started.obey("release", where='state == "parked" or header.tenant == "acme"')
    assert (answer.outcome, "released 3" in answer.detail) == ("done", True)
    assert len(answer.rows) == most
    wait_for(lambda: len(started.done) == 5)


def test_what_is_not_there_is_reported(started):
    """A partition of others, an offset to come, a topic that the app does not consume."""
    control = started.run.control
    away = control.obey(Order("skip", "r", "i", "t", records=((7, 0),)))
    assert away.outcome == "not here"
    assert started.obey("skip", 99).outcome == "refused"
    other = control.obey(Order("hold", "r", "i", "u", key="k"))
    assert (other.outcome, "topic 'u' has no handler" in other.detail) == ("refused", True)


def test_many_rows_are_one_line():
    """What went wrong first; the rest is counted."""
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "outcome": "skipped", "detail": "r"}
        for n in range(7)
    ]
    rows.append({**rows[0], "offset": 9, "outcome": "lost", "detail": "it went away"})
    answer = summary("m", Order("skip", "r", "i", "t"), rows, None)
    assert answer.outcome == "refused"
    assert answer.detail.startswith("skipped 7, lost 1: t:0:9 lost: it went away; t:0:0 skipped")
    assert answer.detail.endswith("and 3 more")
