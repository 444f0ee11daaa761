"""`python -m simulators`: proves, replays, says one line on bad input."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from perkey.errors import ConfigError
from simulators.__main__ import simulate
from simulators.core import runner
from simulators.core.mutants import MUTANTS
from simulators.runtime import runner as runtime_runner

app = typer.Typer()
app.command()(simulate)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_seeds_that_hold_exit_with_zero():
    """The number of seeds and of broken promises are told."""
    result = run("--seeds", "3", "--steps", "30")
    assert (result.exit_code, "3 seeds" in result.stdout, "0 broken" in result.stdout) == (
        0,
        True,
        True,
    )


def test_json_reports_what_was_covered():
    """Counts of faults and of changes of state, for people who count."""
    found = json.loads(run("--seeds", "2", "--steps", "40", "--json").stdout)
    assert (found["seeds"], found["broken"], found["stats"]["starts"] > 0) == (2, [], True)


def test_trace_prints_every_step():
    """One seed can be read, step by step."""
    result = run("--seed", "7", "--steps", "30", "--trace")
    assert result.exit_code == 0
    assert "CommitOffsets" in result.stdout


def test_broken_seed_comes_with_its_replay_command():
    """A broken promise is named, with the command that shows it again."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "highest_seen_committed"]
    with mutant.alive():
        broken = [b for seed in range(20) for b in runner.run_seed(seed).broken]
    assert f"python -m simulators --seed {broken[0].seed} --trace" in str(broken[0])


def test_replay_command_has_the_options_that_matter(monkeypatch):
    """Another number of steps than the usual one, or the runtime's simulator."""

    def breaks(world):
        raise AssertionError("S1")

    monkeypatch.setattr(runner, "live", breaks)
    (shorter,) = runner.run_seed(3, 40).broken
    monkeypatch.setattr(runtime_runner.World, "run", breaks)
    (of_the_runtime,) = runtime_runner.run_seed(4).broken
    assert [str(broken).splitlines() for broken in (shorter, of_the_runtime)] == [
        [
            "seed 3: AssertionError: S1",
            "  replay: python -m simulators --seed 3 --steps 40 --trace",
        ],
        [
            "seed 4: AssertionError: S1",
            "  replay: python -m simulators --runtime --seed 4 --trace",
        ],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds 0: give 1 or more"),
        (["--jobs", "0"], "--jobs 0: give 1 or more"),
        (["--steps", "-1"], "--steps -1: give 1 or more"),
        (["--trace"], "--trace prints one seed: add --seed with its number"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    """What is wrong and what to give instead."""
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == message
