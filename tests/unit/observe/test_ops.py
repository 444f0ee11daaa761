"""The dashboard and the alerts ask for metrics that are there; promtool agrees where it is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from perkey.observe.lag_server import GAUGES, LETTERS_UP, NOT_BACK, PROBLEMS, UP
from perkey.observe.metrics import OUTCOMES, STATES, names
from perkey.reasons import HALTS, PLACES

OPS = Path(__file__).parents[3] / "ops"
DASHBOARD = json.loads((OPS / "grafana" / "perkey.json").read_text())
ALERTS = OPS / "prometheus" / "perkey-alerts.yml"
METRIC = re.compile(r"\bperkey_\w+")


#: of `perkey lag --listen` and `perkey dlq stats --listen`
OF_LAG = {UP[0], PROBLEMS[0], LETTERS_UP[0], NOT_BACK[0], *(name for name, _, _ in GAUGES)}


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def queries():
    """Every expression of both."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked += [
        one["query"]["query"] for one in DASHBOARD["templating"]["list"] if "datasource" in one
    ]
    return asked + [rule["expr"] for rule in rules()]


def strange(expression):
    """Metrics, and values of labels, that no run tells."""
    known = {
        "state": {*STATES},
        "place": {p.name for p in PLACES},
        "cause": {c.name for c in HALTS},
        "outcome": {*OUTCOMES},
    }
    found = set(METRIC.findall(expression)) - names() - OF_LAG
    for label, values in re.findall(r'(\w+)=~?"([^"$]+)"', expression):
        found |= set(values.split("|")) - known[label]
    return found


def test_every_metric_and_label_is_reported_by_a_run():
    """No query asks for what is not there."""
    assert [one for one in queries() if strange(one)] == []
    assert strange('perkey_gone{place="nowhere"}') == {"perkey_gone", "nowhere"}


def test_panels_have_places_of_their_own_and_a_query():
    """None lies over another, all have titles and numbers of their own."""
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert all(panel["title"] and panel["targets"] for panel in DASHBOARD["panels"])
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_every_alert_reports_what_to_do():
    """A name of ours, how bad it is, what is so, and what to do about it."""
    for rule in rules():
        assert rule["alert"].startswith("Perkey")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus"
)
def test_promtool_accepts_the_alerts():
    """Prometheus' own checker has nothing to say."""
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, timeout=60)


def test_parked_records_are_released_not_restarted():
    """A restart releases none of them: neither text asks for one."""
    (rule,) = [rule for rule in rules() if rule.get("alert") == "PerkeyParked"]
    (panel,) = [one for one in DASHBOARD["panels"] if "Given up" in one.get("description", "")]
    assert "perkey parked release" in rule["annotations"]["description"]
    assert "for a restart" not in panel["description"]
