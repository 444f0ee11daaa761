"""What each guarantee and figure rests on: the table behind docs/how-it-works/proofs.md.

`make docs` fills the page from this table, from docs/guarantees.md and from the mutants of the
simulators. A test checks that every test named here exists, that each guarantee and each figure of
the README has its row, and that each guarantee which a simulator checks has a mutant.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # `python docs/generate.py` looks in docs/ alone

from simulators.core.mutants import MUTANTS  # noqa: E402  # after the path
from simulators.runtime.mutants import MUTANTS as RUNTIME_MUTANTS  # noqa: E402  # after the path

PROCESSES, DELIVERY = "tests/integration/processes", "tests/integration/delivery"
APP = "tests/integration/app"
COMMANDS = "tests/contract/test_contract_commands.py"
KILLED = "test_a_killed_app_loses_nothing_and_repeats_only_its_last_interval"
BY_DEFAULT = "test_a_kill_repeats_a_thousand_and_50_ms_of_work_by_default"
CANCELLED = "test_async_calls_longer_than_a_revoke_are_cancelled_and_given_back"
CHURN = "test_members_join_and_leave_and_every_promise_is_kept"
KEPT = "test_a_handler_longer_than_max_poll_interval_keeps_its_membership"
RESTARTED = "test_a_broker_killed_and_restarted_loses_and_stalls_nothing"
REFUSED = "test_a_letter_the_broker_refuses_leaves_its_record_parked"


@dataclass(frozen=True)
class Claim:
    """What shows a guarantee outside the simulators, and what remains open."""

    #: `file:function` of tests with real processes or a real broker
    tests: tuple[str, ...]
    #: what none of its tests shows
    not_shown: str


CLAIMS: dict[str, Claim] = {
    "S1": Claim(
        (f"{PROCESSES}/test_kill.py:{KILLED}",
         f"{PROCESSES}/test_churn.py:test_members_join_and_leave_and_every_promise_is_kept"),
        "a broker that loses acknowledged records, such as an unclean leader election",
    ),
    "S2": Claim(
        (f"{PROCESSES}/test_control_arms.py:test_committing_what_was_only_seen_is_found",),
        "commits by other tools to the same group while it runs",
    ),
    "S3": Claim(
        (f"{PROCESSES}/test_control_arms.py:test_an_app_without_order_is_found",
         f"{DELIVERY}/test_moves.py:test_promises_hold_while_members_come_and_go"),
        "order across topics, or after the partition count changes",
    ),
    "S4": Claim(
        (f"{PROCESSES}/test_stop.py:test_sigterm_and_a_restart_repeat_nothing",),
        "a stop whose drain timed out: what still ran is repeated",
    ),
    "S5": Claim(
        (f"{PROCESSES}/test_kill.py:{BY_DEFAULT}",
         f"{PROCESSES}/test_kill.py:test_one_stuck_record_at_the_base_does_not_widen_the_repeats",
         f"{PROCESSES}/test_control_arms.py:test_a_commit_without_its_map_is_found"),
        "more holes than the map can hold: the records beyond it wait instead",
    ),
    "S6": Claim(
        (f"{PROCESSES}/test_long_handlers.py:{CANCELLED}",),
        "a handler that ignores its cancellation",
    ),
    "S7": Claim(
        (f"{PROCESSES}/test_pause.py:test_a_zombie_commits_nothing_and_starts_nothing",
         f"{PROCESSES}/test_control_arms.py:test_a_zombie_that_trusts_itself_is_found"),
        "side effects that a call started before the partition went away",
    ),
    "S8": Claim(
        (f"{DELIVERY}/test_kills.py:test_exactly_once_copies_each_record_once",
         f"{DELIVERY}/test_transactions.py:test_a_fenced_member_writes_nothing_and_ends"),
        "calls to other services; readers that are not read_committed",
    ),
    "S9": Claim(
        (f"{DELIVERY}/test_sizes.py:test_64_partitions_of_1_mb_records_stay_in_budget",),
        "memory that the handler itself allocates",
    ),
    "S10": Claim(("tests/simulation/test_mutants.py:test_mutant_is_caught",), "nothing open"),
    "S11": Claim((f"{APP}/test_control.py:test_a_paused_topic_starts_nothing_until_it_is_resumed",),
                 "a clock of the broker that jumps: commands expire by it"),
    "S12": Claim((f"{PROCESSES}/test_steered.py:test_a_poisoned_release_comes_home_in_order",),
                 "more failing records than the commit has room for: the newest start over"),
    "S13": Claim((f"{PROCESSES}/test_steered.py:test_a_poisoned_release_comes_home_in_order",),
                 "a skip that was never answered"),
    "S15": Claim((f"{APP}/test_hold.py:test_no_record_is_given_up_while_the_service_is_away",),
                 "services whose failures look like errors of the record"),
    "S16": Claim((f"{APP}/test_dead_letters.py:{REFUSED}",),
                 "a dead-letter topic without readers"),
    "S17": Claim((f"{APP}/test_budget.py:test_two_members_have_a_share_each",),
                 "other clients of the same service, which no budget counts"),
    "S18": Claim((f"{COMMANDS}:test_records_are_skipped_released_and_held",),
                 "a record that was parked again since the first answer"),
    "L1": Claim((f"{PROCESSES}/test_churn.py:{CHURN}",),
                "a handler that blocks the event loop: it is named, and not interrupted"),
    "L2": Claim((f"{APP}/test_limits.py:test_failing_lanes_never_stop_the_intake_of_the_others",),
                "a topic in which every key fails"),
    "L3": Claim(
        (f"{PROCESSES}/test_broker_away.py:{RESTARTED}",
         f"{PROCESSES}/test_three_brokers.py:test_every_partition_is_read_again"),
        "faults that last",
    ),
    "L4": Claim(
        (f"{PROCESSES}/test_broker_away.py:test_a_stop_with_the_brokers_gone_is_bounded",
         f"{PROCESSES}/test_stop.py:test_a_second_signal_ends_immediately"),
        "a process that the system does not schedule",
    ),
    "L5": Claim(
        (f"{PROCESSES}/test_long_handlers.py:{KEPT}",),
        "C extensions that hold the interpreter lock for minutes",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A measured statement of the README."""

    #: as the README has it
    text: str
    command: str
    #: ISO date of the last measurement
    date: str
    not_shown: str


FIGURES = (
    Figure(
        "5 times the rate",
        "make bench",
        "2026-11-20",
        "handlers that do work in Python: use processes",
    ),
    Figure(
        "2 to 2.4 times the rate with 1,000 keys, 4 to 5 times with 10,000 in flight",
        "make bench",
        "2026-11-20",
        "services that get slower under load",
    ),
    Figure(
        "faster in all 11 combinations of ordering and key count (0.51 to 0.95 of the time)",
        "python -m benchmarks --only headline",
        "2026-11-20",
        "more than one partition",
    ),
    Figure(
        "at most 1.05 times the time of the same sleeps without Kafka",
        "python -m benchmarks --only headline",
        "2026-11-20",
        "`def` handlers: up to 1.14 with many keys",
    ),
)


def guarantees() -> dict[str, tuple[str, str, str]]:
    """Id -> name, statement, bound, from docs/guarantees.md."""
    text = (HERE / "guarantees.md").read_text()
    rows = re.findall(r"^\| \*\*([SL]\d+) ([^*]+)\*\* \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return {name: (title, claim, bound) for name, title, claim, bound in rows}


def mutants() -> dict[str, list[str]]:
    """Id -> the names of the mutants whose detection names it, in both simulators."""
    names: dict[str, list[str]] = {}
    for mutant in (*MUTANTS, *RUNTIME_MUTANTS):
        for promise in mutant.promises:
            names.setdefault(promise, []).append(mutant.name)
    return names


def table() -> str:
    """The claims, as a Markdown table."""
    known = mutants()
    lines = [
        "| guarantee | bound | red when it is broken by | also shown by | does not show |",
        "|---|---|---|---|---|",
    ]
    for name, (title, _, bound) in guarantees().items():
        killers = known.get(name, [])
        shown = (
            f"{len(killers)} mutant{'s' * (len(killers) > 1)}, such as `{min(killers, key=len)}`"
            if killers
            else "–"
        )
        tests = "<br>".join(f"`{test}`" for test in CLAIMS[name].tests) or "the simulators alone"
        cells = (f"**{name}** {title}", bound, shown, tests, CLAIMS[name].not_shown)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figures() -> str:
    """The figures, as a Markdown table."""
    lines = ["| figure | command | measured | does not show |", "|---|---|---|---|"]
    lines += [f"| {f.text} | `{f.command}` | {f.date} | {f.not_shown} |" for f in FIGURES]
    return "\n".join(lines)
