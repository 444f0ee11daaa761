"""The judge itself: it finds each kind of broken promise, and finds nothing where none was broken.

Each test of a broken promise is a mutant of one clean log.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.chaos import dead_threads
from tests.support.commit_watch import Seen, judge_commits
from tests.support.handler_log import Entry, Tail, Writer, parse
from tests.support.verdict import Excuse, Verdict, judge

from perkey.codec import encode

A, B = 100, 200  # two processes


def entry(kind, at, offset, *, pid=A, epoch=1, key="k", partition=0) -> Entry:
    return Entry(kind, at, pid, epoch, partition, offset, key)


def call(offset, begin, end, **who) -> list[Entry]:
    return [entry("S", begin, offset, **who), entry("E", end, offset, **who)]


CLEAN = call(0, 1.0, 1.1) + call(1, 1.2, 1.3) + call(2, 2.0, 2.1, pid=B) + call(3, 2.2, 2.3, pid=B)
PRODUCED = {(0, offset) for offset in range(4)}


def verdict(log, excuses=(), ended=None, **options) -> Verdict:
    return judge(log, PRODUCED, excuses, ended, **options)


def kinds(log, excuses=(), ended=None, **options) -> set[str]:
    return {line.split()[0] for line in verdict(log, excuses, ended, **options).problems()}


def test_a_clean_log_has_no_problems() -> None:
    """Two owners one after the other, each record once."""
    found = verdict(CLEAN)
    assert found.problems() == []
    assert (found.starts, found.completions, found.repeated, found.restarts) == (4, 4, 0, 0)


def test_an_empty_log_is_unknown_not_good() -> None:
    """A run in which nothing happened proves nothing."""
    assert judge([], []).problems()[0].startswith("unknown")


def test_a_record_that_no_one_completed_is_lost() -> None:
    """Also when it was started."""
    assert kinds(CLEAN[:-2]) == {"lost"}
    assert kinds(CLEAN[:-1]) == {"lost"}


def test_a_record_before_its_predecessor_is_an_order_break() -> None:
    """Within one process, and across two."""
    swapped = call(1, 1.0, 1.1) + call(0, 1.2, 1.3) + CLEAN[4:]
    assert "order" in kinds(swapped)
    early = call(0, 1.0, 3.1) + call(1, 2.0, 2.1, pid=B)
    assert "order" in kinds(early)


def test_other_keys_do_not_wait() -> None:
    """Order is a matter of one key; a null key orders with nothing."""
    log = call(1, 1.0, 1.1, key="x") + call(0, 1.2, 1.3) + call(3, 1.4, 1.5, key="")
    log += call(2, 1.6, 1.7, key="")
    assert kinds(log) == set()


def test_an_unordered_run_is_not_held_to_an_order() -> None:
    """The control arm's own mode."""
    swapped = call(1, 1.0, 1.1) + call(0, 1.05, 1.3) + CLEAN[4:]
    assert kinds(swapped, ordered=False) == set()


def test_two_calls_of_one_key_at_once_overlap() -> None:
    """In one process always wrong; in two unless a fault of the earlier one explains it."""
    log = [
        entry("S", 1.0, 0),
        entry("S", 1.1, 0, pid=B),
        entry("E", 1.2, 0),
        entry("E", 1.3, 0, pid=B),
    ]
    rest = call(1, 1.4, 1.5, pid=B) + CLEAN[4:]
    assert "overlaps" in kinds(log + rest)
    stopped = Excuse("stopped", A, 0.5, 2.0, overlap=True)
    assert "overlaps" not in kinds(log + rest, [stopped])
    same = [entry("S", 1.0, 0), entry("S", 1.1, 0), entry("E", 1.2, 0), entry("E", 1.3, 0)]
    assert "overlaps" in kinds(same + rest, [stopped])


def test_a_call_ends_with_its_process() -> None:
    """What ran at a kill is a restart, and no overlap once the process is gone."""
    log = [entry("S", 1.0, 0), *call(0, 1.5, 1.6, pid=B), *call(1, 1.7, 1.8, pid=B), *CLEAN[4:]]
    assert "overlaps" in kinds(log)
    found = verdict(log, ended={A: 1.4})
    assert found.problems() == []
    assert found.restarts == 1
    assert "overlaps" in kinds(log, ended={A: 1.55})


def test_a_start_after_the_partition_moved_on_is_a_zombie() -> None:
    """An assignment that another followed never comes back; a new one of the same process may."""
    log = [*CLEAN, *call(4, 3.0, 3.1)]
    assert kinds(log) == {"zombies"}
    assert kinds([*CLEAN, *call(4, 3.0, 3.1, epoch=2)]) == set()


def test_a_repeat_needs_a_fault_that_explains_it() -> None:
    """By the process that had completed it, within the window, or it is unexplained."""
    log = CLEAN[:4] + call(1, 1.9, 1.95, pid=B) + CLEAN[4:]
    assert kinds(log) == {"unexplained"}
    assert kinds(log, [Excuse("kill", A, 1.4, 1.5)]) == {"unexplained"}
    assert kinds(log, [Excuse("kill", B, 1.0, 1.5)]) == {"unexplained"}
    kill = Excuse("kill", A, 1.0, 1.5)
    found = verdict(log, [kill])
    assert found.problems() == []
    assert (found.repeats[kill], found.bounds[kill], found.worst_ratio) == (1, 2, 0.5)


def test_a_retry_is_no_repeat() -> None:
    """A failed attempt and the next one are neither repeat nor restart nor overlap."""
    log = [entry("S", 1.0, 0), entry("F", 1.05, 0), *call(0, 1.06, 1.1), *CLEAN[2:]]
    found = verdict(log)
    assert (found.problems(), found.repeated, found.restarts) == ([], 0, 0)


# -- commits -------------------------------------------------------------------------------------


def commits(*seen) -> list[str]:
    return judge_commits([Seen(*one) for one in seen], CLEAN, PRODUCED)


def test_commits_that_follow_the_work_are_right() -> None:
    """Frontier and map, both behind what was done."""
    ahead = encode(1, 3, [1, 2])
    log = call(0, 1.0, 1.1) + call(3, 1.1, 1.2, key="x") + call(1, 1.5, 1.6) + call(2, 1.7, 1.8)
    seen = [Seen(1.3, 0, 1, ahead), Seen(1.65, 0, 2, encode(2, 3, [2])), Seen(1.9, 0, 4, "")]
    assert judge_commits(seen, log, PRODUCED) == []


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        ([(1.25, 0, 2, "")], "S2"),  # frontier past a running record
        ([(1.15, 0, 1, encode(1, 3, [1]))], "S2"),  # the map calls it done
        ([(2.4, 0, 4, ""), (2.5, 0, 3, "")], "S7"),  # frontier goes back
        ([(2.4, 0, 1, encode(1, 3, [1])), (2.5, 0, 1, "")], "S7"),  # the map is forgotten
    ],
)
def test_a_wrong_commit_is_found(seen, rule) -> None:
    """Highest seen instead of done; an older commit over a newer; a dropped map."""
    assert any(line.startswith(rule) for line in commits(*seen))


# -- the log ---------------------------------------------------------------------------------------


def test_the_log_reads_what_was_written_and_nothing_twice(tmp_path: Path) -> None:
    """Line by line, also while it grows, and with a half line at its end."""
    path = tmp_path / "log"
    writer, tail = Writer(str(path)), Tail(path)
    assert list(tail.new()) == []
    writer.write("S", 3, 1, 42, "key")
    with path.open("a") as file:
        file.write("E 1.5 7 3 1 42")
    (first,) = tail.new()
    assert (first.kind, first.epoch, first.record, first.key) == ("S", 3, (1, 42), "key")
    with path.open("a") as file:
        file.write(" key\n")
    assert list(tail.new()) == [Entry("E", 1.5, 7, 3, 1, 42, "key")]
    assert parse(first.line()) == first


def test_a_thread_that_died_in_a_child_is_seen() -> None:
    """Whatever the judge says of the records."""
    line = "1.0 CRITICAL thread perkey-watch died, please report it with this trace"
    assert dead_threads(f"assigned\n{line}\nTraceback\n") == [line]
    assert dead_threads("worker process ended handler=perkey-x how='it died'\n") == []
