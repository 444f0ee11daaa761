"""The ledger of a partition against a model that keeps everything."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perkey.codec import decode, encode_fitting
from perkey.core import states
from perkey.core.commits import CommitState
from perkey.core.events import HandlerSpec
from perkey.core.offsets import Offsets
from perkey.core.partition import Partition
from perkey.core.scheduling import Handler
from perkey.types import Record
from simulators.core.invariants import check_partition

RELAXED = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

steps = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), st.lists(st.integers(1, 4), min_size=1, max_size=8)),
        st.tuples(st.just("finish"), st.integers(0, 10_000)),
        st.tuples(st.just("gap"), st.integers(1, 5)),
    ),
    max_size=40,
)
orderings = st.sampled_from(["key", "partition", "unordered"])


class Model:
    """Received and done, as two sets."""

    def __init__(self, start: int) -> None:
        self.position = start
        self.received: list[int] = []
        self.done: set[int] = set()

    def waiting(self) -> list[int]:
        return [offset for offset in self.received if offset not in self.done]

    def frontier(self) -> int:
        waiting = self.waiting()
        return waiting[0] if waiting else self.position

    def is_done(self, offset: int) -> bool:
        return offset not in self.received or offset in self.done


def play(part: Partition, model: Model, script) -> None:
    """The same steps on both."""
    for name, argument in script:
        if name == "poll":
            _poll(part, model, argument)
        elif name == "gap":
            model.position += argument
            part.offsets.advance(model.position)
        elif part.lanes.ready:
            work = part.lanes.ready[argument % len(part.lanes.ready)]
            part.lanes.ready.remove(work)
            work.state = states.RUNNING
            part.record_done(work)
            model.done.add(work.record.offset)
        check_partition(part)


def _poll(part: Partition, model: Model, jumps: list[int]) -> None:
    found = []
    for jump in jumps:
        found.append(model.position + jump - 1)
        model.position += jump
    model.received += found
    records = [Record("t", 0, offset, 0, b"%d" % (offset % 3), b"") for offset in found]
    part.admit(records, [10] * len(records))


def new(ordering: str, start: int = 0, **restored) -> Partition:
    handler, offsets = Handler(0, HandlerSpec("h", ordering=ordering)), Offsets(start, **restored)
    return Partition("t", 0, 1, handler, offsets, CommitState(offsets))


@RELAXED
@given(steps, orderings)
def test_frontier_is_the_models(script, ordering):
    """Whatever is polled and finished in whatever order, the frontier is the lowest not done."""
    part, model = new(ordering), Model(0)
    play(part, model, script)
    assert part.frontier == model.frontier()


@RELAXED
@given(steps, orderings, st.sampled_from([4, 16, 4096]))
def test_committed_map_reports_the_truth(script, ordering, limit_chars):
    """What the map calls done is done; where it was not cut it tells all that is done."""
    part, model = new(ordering), Model(0)
    play(part, model, script)
    shot = part.snapshot()
    text, covered = encode_fitting(*shot, limit_chars=limit_chars)
    restored = decode(shot.frontier, text)
    holes = set(restored.not_done)
    for offset in range(shot.frontier, restored.highest_seen + 1):
        assert offset in holes or model.is_done(offset)
    if covered >= shot.top:
        told = [o for o in range(shot.frontier, shot.top + 1) if o not in holes]
        assert {o for o in model.done if o >= shot.frontier} <= set(told)


@RELAXED
@given(steps, steps, orderings)
def test_restart_takes_up_where_the_map_ends(script, later, ordering):
    """A new epoch that starts from the snapshot handles what was not done, each once."""
    part, model = new(ordering), Model(0)
    play(part, model, script)
    shot = part.snapshot()
    again = new(ordering, shot.frontier, restored_top=shot.top, not_done=tuple(shot.not_done))
    everything = [offset for offset in model.received if offset >= shot.frontier]
    records = [Record("t", 0, offset, 0, b"%d" % (offset % 3), b"") for offset in everything]
    if records:
        again.admit(records, [10] * len(records))
    again.offsets.advance(model.position)
    check_partition(again)
    assert list(again.offsets.incomplete) == model.waiting()


@RELAXED
@given(steps, orderings)
def test_lane_heads_are_the_first_of_their_lane(script, ordering):
    """Nothing is ready while an earlier record of its lane is not done."""
    part, model = new(ordering), Model(0)
    play(part, model, script)
    first: dict[object, int] = {}
    for offset in model.waiting():
        work = part.offsets.incomplete[offset]
        first.setdefault(part.lanes.key_of(work.record), offset)
    assert sorted(work.record.offset for work in part.lanes.ready) == sorted(first.values())
