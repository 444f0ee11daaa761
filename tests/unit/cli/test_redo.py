"""`perkey redo`: which records it names, and to whom."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.test_control import BECAUSE, called, members
from tests.unit.cli.test_dlq import DLQ, TOPIC, handle, kafka
from tests.unit.cli.test_records import Owner
from tests.unit.observe.test_local import own_folder

from perkey.cli.redo import REDO_MAX

__all__ = ["kafka", "members", "own_folder"]  # fixtures


class Billing(Owner):
    """An owner in the group of the letters."""

    def __init__(self, name: str, *partitions: int) -> None:
        super().__init__(name, *partitions)
        self.group = "billing"


@pytest.mark.parametrize("count", [REDO_MAX - 1, REDO_MAX, REDO_MAX + 1])
def test_records_go_in_pieces(members, capsys, count):
    """Each answer waits for the calls of one piece."""
    (one,) = members(Owner("m1", 0))
    places = [f"a:0:{offset}" for offset in range(count)]
    assert called(capsys, "redo", *places, *BECAUSE)[0] == 0
    sizes = [len(order.records) for order in one.orders]
    assert (sum(sizes), max(sizes)) == (count, min(count, REDO_MAX))
    assert {order.action for order in one.orders} == {"redo"}


def test_a_reason_may_be_left_out(members, capsys):
    """The contract requires one of the commands that hold, skip or retry, not of a redo."""
    (one,) = members(Owner("m1", 0))
    assert called(capsys, "redo", "a:0:1")[0] == 0
    (order,) = one.orders
    assert order.reason == "none given"


def test_records_of_letters(kafka, members, capsys):
    """Those of the group that the condition means; letters of others are counted."""
    (one,) = members(Billing("m1", 0, 1))
    handle(kafka, {2}, "another")
    at = ("--group", "billing", "--bootstrap-servers", kafka.bootstrap, *BECAUSE)
    code, _, err = called(capsys, "redo", "--dlq", DLQ, *at)
    assert code == 0, err
    assert err == "perkey: 1 letters left out: not of group billing\n"
    (order,) = one.orders
    assert (order.topic, sorted(order.records)) == (TOPIC, [(0, 0), (0, 2), (1, 0), (1, 3)])
    where = 'header.tenant == "other" and group == "billing"'
    code, _, err = called(capsys, "redo", "--dlq", DLQ, "--where", where, *at)
    assert (code, list(one.orders[1].records), err) == (0, [(0, 2), (1, 3)], "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "redo takes TOPIC:PARTITION:OFFSET… or --dlq TOPIC"),
        (("a:0:1", "--dlq", "a.dlq"), "redo takes TOPIC:PARTITION:OFFSET… or --dlq TOPIC"),
        (("a:0:1", "--where", "offset == 1"), "--where selects letters"),
        (("a:0",), "write TOPIC:PARTITION:OFFSET"),
    ],
)
def test_bad_input_is_one_line(members, capsys, words: tuple[str, ...], reason: str):
    """Exit 2, and no member is asked."""
    (one,) = members(Owner("m1"))
    code, out, err = called(capsys, "redo", *words, *BECAUSE)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert not one.orders


def test_help_has_an_example(capsys: Any):
    """`--help` shows one call."""
    code, out, _ = called(capsys, "redo", "--help")
    assert code == 0
    assert "Example: perkey redo" in out
