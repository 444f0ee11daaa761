"""From options to what the engine and the executors are told."""

from __future__ import annotations

from typing import Any

import pytest

from perkey.core.events import NEVER
from perkey.options import HandlerOptions
from perkey.policies import Budget, Commit
from perkey.runtime.run.handler_plans import commit_after, commit_of, plan_of


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({}, 64),
        ({"delivery": "exactly_once"}, 64),
        ({"delivery": "at_most_once"}, 0),
        ({"commit": Commit(each=True)}, 0),
        ({"timeout_s": 1.0}, 0),
        ({"budget": Budget("b", in_flight=1)}, 0),
    ],
)
def test_nothing_is_granted_ahead_where_a_grant_counts(options: dict[str, Any], ahead: int) -> None:
    """After a kill at most one record a slot is missing or repeated; time counts from the grant."""
    handler = HandlerOptions(print, ("t",), executor="processes", concurrency=2, **options)
    assert plan_of(handler, "h").spec.ahead == ahead


@pytest.mark.parametrize(
    ("handlers", "after"),
    [
        ([{}], 1_000),
        ([{"commit": Commit()}], 1_000),
        ([{"commit": Commit(interval_s=1.0)}], NEVER),
        ([{"commit": Commit(max_records=5)}], NEVER),
        ([{"commit": Commit(each=True)}], NEVER),
        ([{"delivery": "exactly_once"}], NEVER),
        ([{"delivery": "at_most_once"}], NEVER),
        ([{"commit": Commit(interval_s=60)}, {}], 1_000),
        ([{"commit": Commit(interval_s=60)}, {"delivery": "exactly_once"}], NEVER),
    ],
)
def test_a_member_commits_after_a_thousand_if_a_handler_does_not_set_its_commits(
    handlers: list[dict[str, Any]], after: int
) -> None:
    """Not where each record's commit is always due: `each`, marks, transactions."""
    assert commit_after([HandlerOptions(print, ("t",), **options) for options in handlers]) == after


def test_a_members_commits_are_the_shortest_of_its_handlers() -> None:
    """The least interval, the least number."""
    commits = [Commit(5.0, 700), Commit(0.5), Commit(9.0, 300)]
    both = commit_of([HandlerOptions(print, ("t",), commit=commit) for commit in commits])
    assert both == Commit(0.5, 300)
