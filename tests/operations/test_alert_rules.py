"""The alert rules name metrics and labels that a running server exposes, and Prometheus accepts them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.operations.exposition import exposition
from penstock.operations.metrics import collect
from penstock.operations.settings import OperationsSettings
from penstock.settings import StandaloneSettings
from penstock.standalone import Standalone

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "penstock-rules.yml"


async def exposed() -> dict[str, set[str]]:
    """Return the labels of each series name of a running server that has answered a call."""
    settings = StandaloneSettings(is_memory=True, controller_port=0, segment_store_port=0)
    async with Standalone(
        replace(settings, operations=OperationsSettings(is_enabled=True, port=0))
    ) as server:
        assert server.front is not None
        server.front.calls.note("createStream", "OK", 0.1)
        assert server.operations is not None
        text = exposition(collect(server.operations.collectors)).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_rules_name_exposed_metrics_and_labels() -> None:
    metrics = await exposed()
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        names = re.findall(r"penstock_\w+", rule["expr"])
        known = {"instance", "job"}.union(*(metrics[name] for name in names))
        used = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert set(used) <= known, rule["alert"]


def test_prometheus_accepts_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (Debian: apt-get install prometheus)")
    checked = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
