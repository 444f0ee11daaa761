"""What one commit says of a partition; the desk compares each with what is done (`check_plan`)."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import offsets

from perkey.core import effects as fx
from perkey.core.events import HandlerSpec
from perkey.policies import Retry, Skip

ONCE = {"retry": Retry(attempts=1), "on_exhausted": Skip()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"commit_each": True},
        {"delivery": "at_most_once", **ONCE},
        {"delivery": "exactly_once"},
    ],
)
def test_where_nothing_is_left_to_read_the_position_is_committed(make_desk, options):
    """Markers and gaps at the end of the log: no record stands for them, in no delivery."""
    desk = make_desk(HandlerSpec("h", **options))
    (part,) = desk.assign(0)
    desk.do("reached", [(part, 7)])
    desk.pass_time(1.0)
    (sent,) = desk.take((fx.CommitOffsets, fx.Transact))
    assert [(item.frontier, item.metadata) for item in sent.items] == [(7, "")]


@pytest.mark.parametrize("map_chars", [0, 8, 12, 16, 20])
def test_each_commits_what_its_map_has_room_for(make_desk, map_chars):
    """The records that the map tells are done with it; those past it keep their lanes."""
    desk = make_desk(HandlerSpec("h", "unordered", 200, commit_each=True))
    (part,) = desk.assign(0)
    desk.poll(part, *range(200), key=None)
    part.commit.map_limit = map_chars
    desk.do("calls_ended", desk.started()[1::2])
    (sent,) = desk.take(fx.CommitOffsets)
    told = offsets(sent.items[0].claims)
    assert told == list(range(1, 2 * len(told), 2))
    assert (0 < len(told) < 100) == (map_chars > 4)
    desk.answer(sent)
    assert offsets(part.commit.claims) == list(range(2 * len(told) + 1, 200, 2))
