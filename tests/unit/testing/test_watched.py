"""The tables of states are the law in the simulator."""

from __future__ import annotations

from collections import Counter

import pytest

from perkey.core import states
from perkey.core.commits import Commits
from perkey.core.endings import Endings
from perkey.core.engine import Engine
from perkey.core.engine_state import Epochs
from perkey.core.events import Assignment, HandlerSpec
from perkey.core.states import InternalError
from simulators.core.runner import Totals, run_seed
from simulators.core.watched import TABLES, Edge, every_edge, watched


def test_changes_by_the_tables_are_remembered() -> None:
    """An epoch that is revoked and closed, and its last commit, leave their edges."""
    with watched() as seen:
        engine = Engine([HandlerSpec("h")])
        (partition,) = engine.assigned(0.0, [Assignment("t", 0, 0, 0, commit_start=True)])
        engine.revoking(1.0, [partition])
        engine.last_commit(1.0, [partition])
        engine.closed(2.0, [partition])
    assert Edge("epoch", states.OPEN, states.REVOKING) in seen
    assert Edge("epoch", states.REVOKING, states.CLOSED) in seen
    assert Edge("commit", states.SENT, states.SENT) in seen


def test_a_change_without_an_edge_is_red() -> None:
    """A mutant that opens a closed epoch again, or forgets a commit's way, is found."""
    with watched():
        engine = Engine([HandlerSpec("h")])
        (partition,) = engine.assigned(0.0, [Assignment("t", 0, 0, 0)])
        engine.closed(1.0, [partition], lost=True)
        with pytest.raises(InternalError, match="went from closed to open"):
            partition.state = states.OPEN
        with pytest.raises(InternalError, match="went from idle to in doubt"):
            partition.commit.state = states.IN_DOUBT


@pytest.mark.parametrize(
    ("what", "edge"),
    [
        ("record", (states.PARKED, states.DONE)),
        ("epoch", (states.REVOKING, states.OPEN)),
        ("commit", (states.IDLE, states.IN_DOUBT)),
    ],
)
def test_an_edge_that_no_seed_takes_is_reported(
    what: str, edge: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that only the table knows makes a push red: its seeds must miss none."""
    taken = every_edge()
    table = TABLES[what][1]
    assert isinstance(table, dict)
    monkeypatch.setitem(table, edge, "never")
    totals = Totals(transitions=Counter(taken))
    assert totals.missing() == [str(Edge(what, *edge))]
    totals.transitions[Edge(what, *edge)] += 1
    assert totals.missing() == []


@pytest.mark.parametrize(
    ("what", "edge"),
    [
        ("record", (states.RUNNING, states.DONE)),
        ("epoch", (states.OPEN, states.CLOSED)),
        ("commit", (states.SENT, states.IDLE)),
    ],
)
def test_a_change_that_its_table_does_not_have_breaks_a_seed(
    what: str, edge: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are the law, for each of the three."""
    table = TABLES[what][1]
    assert isinstance(table, dict)
    monkeypatch.delitem(table, edge)
    told = [broken.what for seed in range(10) for broken in run_seed(seed, 150).broken]
    names = TABLES[what][0]
    wanted = f"from {names[edge[0]]} to {names[edge[1]]}"
    assert any(wanted in one for one in told), told


@pytest.mark.parametrize(
    ("owner", "method", "edge"),
    [
        (Endings, "retry_due", Edge("record", states.RETRYING, states.QUEUED)),
        (Epochs, "revoking", Edge("epoch", states.OPEN, states.REVOKING)),
        (Commits, "in_doubt", Edge("commit", states.SENT, states.IN_DOUBT)),
    ],
)
def test_an_engine_that_never_goes_a_way_misses_its_edge(
    owner: type, method: str, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is broken in the engine, the tables tell what its seeds did not do."""
    monkeypatch.setattr(owner, method, lambda *_: None)
    totals = Totals()
    for seed in range(4):
        totals.add(run_seed(seed, 150))
    assert str(edge) in totals.missing()
