"""Seeds are run again when what they reach has changed, and only then."""

from __future__ import annotations

import pytest
from tests.support import seeds


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A record of our own, and inputs that a test decides."""
    monkeypatch.delenv(seeds.ALL, raising=False)
    monkeypatch.setattr(seeds, "RECORD", tmp_path / "seeds-run.txt")
    monkeypatch.setattr(seeds, "inputs", lambda simulator: f"{simulator}-2")
    return seeds.RECORD


@pytest.mark.parametrize("known", [None, "", "core core-1\nruntime runtime-2\n"], ids=repr)
def test_they_run_where_something_changed(record, known):
    """No record, an empty one, or one of other files: nothing is skipped."""
    if known is not None:
        record.write_text(known)
    seeds.skip_unless_changed("core")


def test_they_are_skipped_where_nothing_changed(record, monkeypatch):
    """The same files: skipped, with the variable that runs them; with it they run."""
    record.write_text("core core-2\n")
    with pytest.raises(pytest.skip.Exception, match="PERKEY_SEEDS=1 runs them"):
        seeds.skip_unless_changed("core")
    monkeypatch.setenv(seeds.ALL, "1")
    seeds.skip_unless_changed("core")


def test_the_hash_is_of_what_a_simulator_imports():
    """The core and its simulator; of the runtime only for the runtime's seeds."""
    core, runtime = seeds.files("core"), seeds.files("runtime")
    wanted = {"src/perkey/core/engine.py", "src/perkey/codec/maps.py", "simulators/core/oracle.py"}
    assert wanted <= core < core | runtime
    assert "src/perkey/runtime/run/watching.py" in runtime - core


def test_new_seeds_can_be_run_again(monkeypatch, capsys):
    """They differ each time, and the number that is printed gives the same ones."""
    monkeypatch.delenv(seeds.BASE, raising=False)
    first = seeds.new_seeds(10**9)
    assert f"{seeds.BASE}={first}" in capsys.readouterr().out
    monkeypatch.setenv(seeds.BASE, str(first))
    assert seeds.new_seeds(10**9) == first
