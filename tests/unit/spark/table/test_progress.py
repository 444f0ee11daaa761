"""What a table has of a partition, and how that goes together with what the group has committed."""

from __future__ import annotations

import random

import pytest
from tests.support.cases import each

from perkey.core.commits import Found, resolve
from perkey.spark.table.progress import Done, Entry, Progress, Source, ahead, done_of

SPAN = 40


def done_from(offsets: set[int]) -> Done:
    """The same as a commit says it."""
    frontier = next(n for n in range(SPAN + 2) if n not in offsets)
    top = max((o for o in offsets if o > frontier), default=frontier - 1)
    return Done(frontier, top, tuple(o for o in range(frontier, top + 1) if o not in offsets))


def test_two_are_united_offset_by_offset() -> None:
    """What one of the two has done is done, and nothing else is."""
    each(united, range(300))


def united(seed: int) -> None:
    chance = random.Random(seed)
    sets = [{n for n in range(SPAN) if chance.random() < share} for share in (0.3, 0.8)]
    sets = [one | set(range(chance.randrange(SPAN))) for one in sets]
    both = done_from(sets[0]).united(done_from(sets[1]))
    assert {n for n in range(SPAN + 5) if both.has(n)} == sets[0] | sets[1]
    assert both == done_from(sets[0] | sets[1])


def test_a_commit_is_read_as_it_was_written() -> None:
    """Frontier and map of a commit come back."""
    done = done_from({0, 1, 2, 5, 6, 9})
    assert done_of(done.frontier, done.metadata()) == done
    assert done_of(7, "") == Done(7, 6)
    assert done_of(7, "no map") == Done(7, 6)


@pytest.mark.parametrize(
    ("committed", "held", "expected"),
    [
        (None, {0, 1}, (2, {0, 1})),
        (set(), {0, 1, 4}, (2, {0, 1, 4})),
        ({0, 3}, {0, 1}, (2, {0, 1, 3})),
    ],
)
def test_a_member_begins_where_the_table_is(committed, held, expected) -> None:
    """What the table has beyond the group's commit is done, and is committed at once."""
    known = None if committed is None else done_from(committed)
    found = Found(
        None if known is None else known.frontier,
        "" if known is None else known.metadata(),
        log_start=0,
        log_end=10,
        reset_to=0,
    )
    start = resolve(ahead(found, done_from(held)), "stop")
    assert start.commit_start
    top = start.restored_top if start.restored_top is not None else start.offset - 1
    done = Done(start.offset, top, start.restored_not_done)
    assert (start.offset, {n for n in range(10) if done.has(n)}) == expected


def test_a_group_that_is_as_far_is_left_alone() -> None:
    """Nothing is committed again where the table has nothing more."""
    found = Found(5, "", log_start=0, log_end=10, reset_to=0)
    assert ahead(found, done_from({0, 1, 2})) is found


def test_topics_recreated_are_kept_apart() -> None:
    """A topic with another id is another topic, and the former one is forgotten."""
    first, second, other = Source("t", "1", 0), Source("t", "2", 0), Source("u", "1", 0)
    progress = Progress().with_done({first: Entry(1, Done(5, 4)), other: Entry(1, Done(2, 1))})
    assert progress.get(second) is None
    again = progress.with_done({second: Entry(1, Done(1, 0))})
    assert [again.get(one) for one in (first, second, other)] == [
        None, Entry(1, Done(1, 0)), Entry(1, Done(2, 1))
    ]  # fmt: skip


def test_an_older_epoch_takes_nothing_back() -> None:
    """What is done stays done, and the newest epoch stays."""
    source = Source("t", "1", 0)
    progress = Progress().with_done({source: Entry(4, done_from({0, 1, 2}))})
    progress = progress.with_done({source: Entry(3, done_from({0, 4}))})
    assert progress.get(source) == Entry(4, done_from({0, 1, 2, 4}))


def test_it_comes_back_from_the_log() -> None:
    """JSON and back; what is none is refused."""
    source = Source("t", "id", 3)
    progress = Progress().with_done({source: Entry(2, done_from({0, 2, 5}))})
    back = Progress.from_json(progress.to_json())
    assert back.get(source) == Entry(2, done_from({0, 2, 5}))
    for wrong in ("[[1]]", "{", "[[1,2,3,4,5,6,7]]", "7"):
        with pytest.raises(ValueError, match=r"\w"):
            Progress.from_json(wrong)
