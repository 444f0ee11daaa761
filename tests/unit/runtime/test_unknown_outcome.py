"""exactly_once: how a transaction ended whose outcome the broker did not report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perkey.core.states import CLOSED, OPEN
from perkey.kafka.ports import TransactionEnd
from perkey.runtime.member.transactor import Transactor

SENT, BEFORE, NEXT_OWNERS = (5, ""), (3, ""), (9, "")


def committed(held: list[tuple[int, str]], states: list[int]) -> bool:
    """Whether the engine takes it for committed: one partition for each of these, sent SENT."""
    reports: list[bool] = []
    engine = SimpleNamespace(
        transacted=lambda _now, _sequence, **fields: reports.append(fields["committed"])
    )
    where = [("in", number) for number in range(len(held))]
    membership: Any = SimpleNamespace(
        door=SimpleNamespace(post=lambda call: call(engine, 0.0)),
        consumer=SimpleNamespace(committed=lambda _where, _s: dict(zip(where, held, strict=True))),
        ended=SimpleNamespace(is_set=lambda: False),
        pause=lambda _s: None,
        wake=lambda: None,
        died=lambda *_: None,
    )
    port: Any = SimpleNamespace(
        transact=lambda *_: TransactionEnd("unknown", [], "no answer"), open=lambda: None
    )
    partitions = [
        SimpleNamespace(where=one, state=state) for one, state in zip(where, states, strict=True)
    ]
    effect: Any = SimpleNamespace(
        sequence=1,
        items=[
            SimpleNamespace(partition=one, frontier=SENT[0], metadata=SENT[1], claims=[])
            for one in partitions
        ],
    )
    transactor = Transactor(membership, port, "g", batches=False)
    transactor._transact(effect, SimpleNamespace(close=lambda: None))
    return reports == [True]


@pytest.mark.parametrize(
    ("held", "states", "expected"),
    [
        ([SENT, SENT], [OPEN, OPEN], True),
        ([BEFORE, BEFORE], [OPEN, OPEN], False),
        ([SENT, NEXT_OWNERS], [OPEN, CLOSED], True),
        ([BEFORE, SENT], [OPEN, CLOSED], False),
        ([NEXT_OWNERS, SENT], [CLOSED, CLOSED], False),
    ],
)
def test_partitions_that_this_member_owns_show_how_a_transaction_ended(held, states, expected):
    """The next owner of another one may have committed, the same offset or a later one."""
    assert committed(held, states) is expected
