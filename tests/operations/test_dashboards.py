"""The dashboards are those that the generator makes, and their queries name metrics and labels that servers expose."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from operations.test_alert_rules import exposed
from penstock_tools.generate_dashboards import DASHBOARDS, FOLDER, Dashboard, dashboard_json, expressions, texts
from support.prometheus_server import prometheus_program

#: Labels that Prometheus adds.
ADDED = {"job", "instance", "le"}


def test_the_files_are_up_to_date() -> None:
    """Otherwise run ``python -m penstock_tools.generate_dashboards``."""
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert found == texts()


async def test_queries_name_exposed_metrics_and_labels() -> None:
    metrics = await exposed()
    for dashboard in DASHBOARDS:
        for expression in expressions(dashboard):
            names = re.findall(r"penstock_\w+", expression)
            assert names
            for name in names:
                assert name in metrics or name.startswith("penstock_object_"), expression
            known = ADDED.union(*(metrics.get(name, {"bucket", "kind"}) for name in names))
            used = set(re.findall(r'(\w+)[=!]~?"', expression))
            for labels in re.findall(r"sum by \(([^)]*)\)", expression):
                used |= {label.strip() for label in labels.split(",")}
            assert used <= known, expression
        for _, metric in dashboard.variables:
            assert metric in metrics


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_panels_do_not_overlap_and_legends_name_labels(dashboard: Dashboard) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard_json(dashboard)["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & cells, panel["title"]
        assert max(x for x, _ in covered) < 24
        cells |= covered


def test_promtool_parses_every_query(tmp_path: Path) -> None:
    promtool = prometheus_program("promtool")
    rules = [
        {"record": f"dashboard:query:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(
            expression for dashboard in DASHBOARDS for expression in expressions(dashboard)
        )
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr
