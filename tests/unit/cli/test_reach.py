"""Commands to copy reach what they were printed about; `--group`, tokens, and killed processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perkey.cli import cluster
from perkey.cli.lag import lag
from perkey.cli.offsets import show
from perkey.cli.seen import _status_shown, _why_shown
from perkey.cli.sources import Where, by_url, killed_text, runs_of
from perkey.errors import ConfigError
from perkey.observe import local
from perkey.observe.http import Guard, app_of
from perkey.observe.local import Gone, LocalServer
from perkey.observe.orders import HERE_FIELDS
from perkey.observe.serving import Serving, listening
from perkey.where import WhereError, parse

ADVICE = "release it: `perkey record retry t:0:5 --reason TEXT`; or `perkey why t:0`"
REPORTED = {"servers": "k1:9092", "group": "g"}


@pytest.mark.parametrize(
    ("where", "control", "acting", "asking"),
    [
        ({}, None, " --group g", ""),
        ({"url": "http://h:1"}, None, " --url http://h:1", " --url http://h:1"),
        (
            {"url": "http://h:1", "token_file": Path("a token")},
            None,
            " --url http://h:1 --token-file 'a token'",
            " --url http://h:1 --token-file 'a token'",
        ),
        (REPORTED, None, " --group g", " --group g --bootstrap-servers k1:9092"),
        (
            {**REPORTED, "config": Path("c.properties")},
            {"topic": "c"},
            " --control c --group g --bootstrap-servers k1:9092 --config c.properties",
            " --group g --bootstrap-servers k1:9092 --config c.properties",
        ),
    ],
)
def test_the_commands_of_an_advice_are_complete(where, control, acting, asking):
    """As copied they reach the same members; several groups may run on this machine."""
    assert Where(**where).completed(ADVICE, "g", control) == (
        f"release it: `perkey record retry t:0:5 --reason TEXT{acting}`; or `perkey why t:0{asking}`"
    )


def test_a_placeholder_stays_one():
    """It is no command to copy."""
    assert Where().completed("find it: `perkey why TOPIC:PARTITION`", "g") == (
        "find it: `perkey why TOPIC:PARTITION`"
    )


class Asked:
    """A run of a group that answers `why`."""

    def __init__(self, group: str) -> None:
        self.group = group

    def members(self) -> list[dict[str, Any]]:
        """Its snapshot."""
        return [self.snapshot()]

    measures = live = ready = members

    def snapshot(self) -> dict[str, Any]:
        """It is idle."""
        return {
            "app": {"group": self.group, "member": f"m-{self.group}"}, "state": "running",
            "partitions": [], "handlers": {}, "blockers": [], "halts": [], "at": 0.0,
        }  # fmt: skip


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Runs of two groups on this machine, and no others."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    servers = [LocalServer(Asked(name)) for name in ("g", "h")]
    yield servers
    for one in servers:
        one.close()


def test_a_group_filters_what_runs_here(groups):
    """As for `perkey pause`: without --bootstrap-servers no broker is asked."""
    (run,) = Where(group="h").runs()
    assert run.ask({"ask": "snapshot"})["app"]["group"] == "h"
    assert len(Where().runs()) == 2
    with pytest.raises(ConfigError, match="no member of group x runs here, only of g, h"):
        Where(group="x").runs()


def test_the_name_of_a_group_goes_with_its_run(groups):
    """No file is left in the folder."""
    named = [one.path.with_suffix(local.ABOUT) for one in groups]
    assert [local.group_of(one.path) for one in groups] == ["g", "h"]
    for one in groups:
        one.close()
    assert not any(one.exists() for one in named)


def test_killed_processes_are_one_line_after_what_lives(groups, monkeypatch):
    """With their groups, the latest first; not fifteen before the first record that blocks."""
    killed = [Gone(f"{n}-0", "g" if n % 2 else "", float(n)) for n in range(15, 0, -1)]
    monkeypatch.setattr(local, "gone", lambda: killed)
    text = killed_text(killed)
    assert text.startswith("processes 1 (g), 2, 3 (g), 4, 5 (g) and 10 more ended without a clean ")
    assert "a perkey command found this first 1.0 s ago" in text
    runs = runs_of(None, None)
    assert len(runs) == 3
    answers = [("one", {"sentences": [{"text": "stuck", "next": "", "about": "ready"}]})]
    answers = [("killed", {"error": text, "killed": True}), *answers]
    assert [str(line) for line in _why_shown(answers).renderables] == ["one", "stuck", text]
    shots = [("killed", {"error": text, "killed": True}), ("m-g", Asked("g").snapshot())]
    assert str(_status_shown(shots, width=1_000).renderables[-1]) == text


@pytest.fixture
def guarded():
    """The address of a run that demands a token."""
    server = Serving(
        app_of(Asked("g"), Guard("0.0.0.0", "t" * 20)), listening("http", "127.0.0.1", 0)
    )
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def test_a_refused_token_names_the_option(guarded, tmp_path):
    """Not the header, which a user of the command line cannot send."""
    with pytest.raises(ConfigError, match="token required: give --token-file FILE"):
        by_url(guarded, None, {"ask": "snapshot"})
    file = tmp_path / "token"
    file.write_text("x" * 20)
    with pytest.raises(ConfigError, match="wrong token: give the one in the run's http_token_file"):
        by_url(guarded, file, {"ask": "snapshot"})


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('state == "nonsense"', "no record has nonsense here, the values are queued, marking"),
        ('state == "parkd"', "did you mean parked?"),
        ('state in ("parked", "hold")', "did you mean held?"),
    ],
)
def test_a_state_that_no_record_has_is_refused(text, hint):
    """It would select nothing, and look like a condition that no record meets."""
    with pytest.raises(WhereError, match=hint.replace("?", r"\?")):
        parse(text, HERE_FIELDS)
    parse('state != "retrying" and state =~ "he"', HERE_FIELDS)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("sasl.password", "property 'sasl.password' has no value"),
        ("no.such.property=1", "no.such.property"),
        ("request.timeout.ms=soon", "request.timeout.ms"),
    ],
)
def test_an_error_in_a_file_of_properties_names_the_line(tmp_path, line, reason):
    """The file may have many, and comes from somebody else."""
    file = tmp_path / "client.properties"
    file.write_text(f"# ours\nclient.id=x\n\n{line}\n")
    with pytest.raises(ConfigError) as raised:
        cluster.properties_of(None, file)
    assert str(raised.value).startswith(f"--config {file}, line 4: ")
    assert reason in str(raised.value)
    with pytest.raises(ConfigError, match=r"^-X: property 'x' has no value"):
        cluster.properties_of(["x"], None)


@pytest.mark.parametrize("command", [lag, show])
def test_commands_have_the_same_default_address(command):
    """The one where `perkey broker up` listens."""
    import inspect

    default = inspect.signature(command).parameters["bootstrap_servers"].default
    assert default == cluster.LOCAL_BROKER
