"""What the benchmarks compare is what they say they compare."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import floor, memory, report, run, seen, sides, spark_kit, stuck
from benchmarks.bare import BareSpec, queues
from benchmarks.sleeps import sleep_s, table_s
from benchmarks.workloads import Check, all_workloads


def test_the_table_spreads_its_sleeps_from_0_to_5_ms() -> None:
    """10,000 offsets sleep 2.5 ms on average, none longer than 5 ms."""
    sleeps = [table_s(offset) for offset in range(10_000)]
    assert min(sleeps) >= 0
    assert max(sleeps) < 0.005
    assert sum(sleeps) / len(sleeps) == pytest.approx(0.0025, rel=0.01)


def test_what_being_seen_costs_is_compared_within_each_round() -> None:
    """The median of the rounds' ratios, not a ratio of medians: rounds differ by the machine."""

    def side(seconds: float, scrapes: int = 0) -> dict[str, Any]:
        threads = {"poll": 0.5, "http": 0.01 * scrapes}
        return {
            "seconds": seconds,
            "calls_cpu_s": 2 * seconds,
            "scrapes": scrapes,
            "threads": threads,
        }

    rounds = [{"": side(s), "all": side(s * cost, 3)} for s, cost in ((1, 1.01), (5, 1.2), (9, 1))]
    cost = seen.compared(rounds, "all")
    assert (cost["wall"], cost["cpu"], cost["scrapes"]) == (1.01, 1.01, 9)
    assert cost["wall_rounds"] == [1.0, 1.01, 1.2]
    assert cost["threads_ms"] == {"poll": [500, 500], "http": [0, 30]}
    assert cost["own_threads"] == 0.006  # 30 ms of 5 s


def test_a_handler_sleeps_what_its_name_says() -> None:
    """Nothing for noop; a number is milliseconds, table follows the offset."""
    assert sleep_s("noop", 7) == 0
    assert sleep_s("10", 7) == 0.01
    assert sleep_s("table", 7) == table_s(7)


@pytest.mark.parametrize(("lanes", "workers"), [(99, 99), (100, 100), (101, 100), (None, 100)])
def test_the_baseline_has_one_worker_a_lane_where_lanes_are_fewer(
    lanes: int | None, workers: int
) -> None:
    """Below 100 lanes each has its own worker; from there 100 workers share all sleeps."""
    made = queues(BareSpec("async", "table", 1_000, 100, lanes))
    assert len(made) == workers
    assert (len({id(queue) for queue in made}) == 1) == (workers == 100)


def test_a_lane_of_the_baseline_sleeps_its_own_records() -> None:
    """Lane k of 4 sleeps for the offsets k, k + 4, k + 8 and so on."""
    made = queues(BareSpec("async", "table", 10, 100, 4))
    assert list(made[1]) == [table_s(offset) for offset in (1, 5, 9)]


def test_the_headline_has_eleven_orders() -> None:
    """Nine key counts, unordered and partition, each against bare, Perkey and Java."""
    headline = [work for work in all_workloads(1.0) if work.group == "headline"]
    assert len(headline) == 11
    assert list(headline[0].sides()) == [
        "bare-async",
        "perkey-async",
        "bare-threads",
        "perkey-threads",
        "java",
    ]


def test_a_headline_run_is_judged_by_bare_and_by_java() -> None:
    """Async 1.2 times bare misses; the better of the two must beat Java."""
    work = all_workloads(1.0)[0]
    seconds = {"bare-async": 1.0, "perkey-async": 1.2, "bare-threads": 1.0, "perkey-threads": 1.1}
    passed = [check.passed for check in work.checks({**seconds, "java": 1.15})]
    assert passed == [False, True, True]


@pytest.mark.parametrize(("value", "passed"), [(1.09, True), (1.10, True), (1.11, False)])
def test_a_bar_is_reached_at_its_value(value: float, *, passed: bool) -> None:
    """A must of 1.10 holds up to and with 1.10."""
    assert Check("time", value, 1.10, None, lower_is_better=True).passed is passed


def test_a_side_that_did_not_run_is_not_judged() -> None:
    """No Java on the machine: no comparison with Java, and no error."""
    for work in all_workloads(1.0):
        assert all("Java" not in check.name for check in work.checks({"perkey-async": 1.0}))


def test_memory_that_grows_is_seen() -> None:
    """10 % more in the last tenth than in the second is a miss."""
    steady = [(n, 100_000_000) for n in range(0, 90, 5)]
    grown = [*steady, (90, 110_000_000), (95, 110_000_000)]
    passed = {check.name: check.passed for check in memory.checks(100, grown)}
    assert passed == {"highest MB": True, "last tenth of second": False}


@pytest.mark.parametrize("scale", [0.0, -1.0, 101.0])
def test_a_scale_out_of_bounds_is_one_line(
    scale: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the bounds."""
    assert run.main(["--scale", str(scale)]) == 2
    assert "must be above 0 and at most 100" in capsys.readouterr().err


def test_an_unknown_workload_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the name, and the names there are."""
    assert run.main(["--only", "nope"]) == 2
    assert capsys.readouterr().err.startswith("--only nope: no such workload; there are headline")


def test_only_takes_a_name_or_a_group() -> None:
    """Eleven workloads are the headline group, one is noop."""
    chosen = run.select(run.Options(only=("headline", "noop")))
    assert len(chosen) == 12


def test_a_failing_process_is_reported_with_its_last_words() -> None:
    """The bare baseline with a kind of nonsense ends in a SideError that quotes the traceback."""
    with pytest.raises(sides.SideError, match="exit 1"):
        sides.run_python("benchmarks.bare", {"nonsense": 1}, limit_s=30)


def test_results_are_json_lines_with_the_machine_first(tmp_path: Path) -> None:
    """One line of facts, one a workload, all valid JSON."""
    row = report.Row(all_workloads(1.0)[0], seconds={"java": 2.0}, runs={"java": [2.0]})
    path = report.write({"type": "machine"}, [row], tmp_path)
    machine, result = (json.loads(line) for line in path.read_text().splitlines())
    assert machine == {"type": "machine"}
    assert result["records_per_s"] == {"java": 5_000}


def test_a_missed_limit_is_the_exit_code_and_every_line_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines without a limit do not count; what is printed is written down, too."""
    lines = [{"type": "machine"}, {"type": "ratio", "ok": True}]
    missed = [*lines, {"type": "ratio", "ok": False}]
    assert spark_kit.told(lines, None) == 0
    capsys.readouterr()
    assert spark_kit.told(missed, str(tmp_path / "lines")) == 1
    printed = capsys.readouterr().out
    assert [json.loads(line) for line in printed.splitlines()] == missed
    assert (tmp_path / "lines").read_text() == printed


def floor_runs(noop_us: list[float], sleep_us: float, switches: float) -> floor.Runs:
    """The bare client at 1 and then 2 µs a record, Perkey on threads beside it, and sleeping calls."""

    def row(us: float, switched: float = 0.0) -> dict[str, float]:
        return {"records": 1_000, "calls_cpu_s": us / 1e3, "switches": switched * 1e3}

    return {
        floor.BARE: [row(1.0), row(2.0)],
        floor.SWITCHES_OF: [row(10.0, 1.3)] * 2,
        "perkey threads": [row(us) for us in noop_us],
        "0-5 ms on threads": [row(sleep_us, switches)] * 2,
    }


@pytest.mark.parametrize(
    ("noop_us", "sleep_us", "switches", "passed"),
    [
        ([2.5, 5.0], 50.0, 1.3, [None, None, True, True]),
        ([2.6, 5.2], 50.1, 1.3, [None, None, False, False]),
        ([2.5, 5.0], 50.0, 1.31, [None, None, True, False]),
    ],
)
def test_processor_time_is_compared_within_a_round(noop_us, sleep_us, switches, passed):
    """The median of the rounds' own ratios, with the targets at their limit and just past it."""
    rows = floor.table(floor_runs(noop_us, sleep_us, switches))
    assert [row["passed"] for row in rows] == passed
    assert rows[2]["over_bare"] == pytest.approx(noop_us[0], abs=0.01)


def test_a_log_of_handled_offsets_ends_at_its_last_whole_entry(tmp_path: Path) -> None:
    """A process that is killed can leave half an entry; a log that does not exist has none."""
    log = tmp_path / "log"
    assert list(stuck._handled(log)) == []
    log.write_bytes((7).to_bytes(8, "big") + (70_000).to_bytes(8, "big") + b"\0\0\0")
    assert list(stuck._handled(log)) == [7, 70_000]


def test_the_picture_of_a_kill_shows_what_was_repeated_and_what_was_not_reached() -> None:
    """A bar for each peer that was measured, with both numbers."""
    rows = [
        stuck.Row("A", done_beyond=899, again=0),
        stuck.Row("B", done_beyond=399, again=399),
        stuck.Row("C", problems=["not installed"]),
    ]
    drawn = stuck.picture(rows, 1000)
    assert (">0 again</text>" in drawn, ">399 again, 500 waited</text>" in drawn) == (True, True)
    assert ">C<" not in drawn


@pytest.mark.parametrize(
    "arguments", [["--only", "Spring"], ["--records", str(2 * stuck.HANGS)]], ids=" ".join
)
def test_a_kill_that_cannot_be_measured_is_bad_input(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with what is possible, exit code 2, and no broker is started."""
    assert stuck.main(arguments) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert arguments[0] in line
