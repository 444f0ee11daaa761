"""Commit(each=True): slot and lane wait for the commit of the record itself."""

from __future__ import annotations

from tests.unit.core.conftest import ERROR, offsets

from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec
from perkey.policies import Retry


def test_each_holds_slot_and_lane_until_its_commit_is_stored(make_desk):
    """The next record of the lane starts with the broker's acknowledgement."""
    desk = make_desk(HandlerSpec("h", commit_each=True, concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [work])
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.CommitOffsets)]
    assert desk.started() == []
    desk.answer(sent)
    assert offsets(desk.started()) == [1]


def test_each_claims_without_room_in_the_map_give_back_their_slot(make_desk):
    """Else they would hold every slot and the record at the frontier could not be tried again."""
    spec = HandlerSpec(
        "h", ordering="unordered", commit_each=True, concurrency=2, retry=Retry(delay_s=1.0)
    )
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    part.commit.map_limit = 4  # too small for any map
    part.reach.limit = 100
    desk.poll(part, 0, 1, 2, key=None)
    first, second = desk.started()
    desk.do("calls_ended", [second], [Failed(first, ERROR)])
    desk.take(object)
    desk.do("calls_ended", desk.started())
    desk.pass_time(2.0)
    assert 0 in offsets(desk.started())
