"""The alert rules name metrics and labels that a running server exposes, and Prometheus accepts them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock import aio, connect
from penstock.model.findings import FindingKind
from penstock.operations.exposition import exposition
from penstock.operations.metrics import collect
from penstock.operations.settings import OperationsSettings
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.prometheus_server import RULES, PrometheusServer, alert_rules, prometheus_program
from support.standalone_process import StandaloneProcess


async def exposed() -> dict[str, set[str]]:
    """Return the labels of each series name of a running server that has answered a call."""
    settings = StandaloneSettings(is_memory=True, controller_port=0, segment_store_port=0)
    async with Standalone(replace(settings, operations=OperationsSettings(is_enabled=True, port=0))) as server:
        assert server.front is not None
        server.front.calls.note("createStream", "OK", 0.1)
        assert server.operations is not None
        async with aio.connect(server.controller_uri) as client:
            await client.create_stream("shop/orders")
            async with client.event_writer("shop/orders") as writer:
                await writer.write(b"event")
            async with await client.reader_group("audit", ["shop/orders"], scope="shop"):
                pass
        assert server.group_lags is not None
        server.group_lags.forget_listing()
        await server.group_lags.measure()
        assert server.store is not None
        await server.store.storage_requests.measured("write", asyncio.sleep(0))
        async with asyncio.timeout(60):
            text = ""
            while "penstock_stream_append_events_total{" not in text:
                await asyncio.sleep(0.1)
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


def test_promtool_accepts_the_rules_and_each_alert_fires() -> None:
    promtool = prometheus_program("promtool")
    for command in (["check", "rules", "penstock-rules.yml"], ["test", "rules", "penstock-rules-test.yml"]):
        checked = subprocess.run([promtool, *command], cwd=RULES.parent, capture_output=True, text=True, timeout=120)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_has_a_unit_test() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    tests = yaml.safe_load(RULES.with_name("penstock-rules-test.yml").read_text())["tests"]
    fired = {check["alertname"] for test in tests for check in test["alert_rule_test"] if check["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules}


def test_the_guide_says_what_to_do_about_each_alert() -> None:
    """With findings of the doctor that exist."""
    page = (RULES.parents[2] / "docs" / "guide" / "monitoring.md").read_text()
    rows = re.findall(r"^\| (.*)`(Penstock\w+)` \| ([^|]*)\| (.+) \|$", page, re.MULTILINE)
    assert sorted(alert for _, alert, _, _ in rows) == sorted(rule["alert"] for rule in alert_rules())
    # The rule names the row by its anchor.
    runbooks = {rule["alert"]: rule["annotations"]["runbook"] for rule in alert_rules()}
    anchors = {alert: re.findall(r'<a id="(\w+)"></a>', anchor) for anchor, alert, _, _ in rows}
    assert {alert: [page_of.partition("#")[2]] for alert, page_of in runbooks.items()} == anchors
    assert {page_of.partition("#")[0] for page_of in runbooks.values()} == {"guide/monitoring.html"}
    named = {each for _, _, findings, _ in rows for each in re.findall(r"`([a-z-]+)`", findings)}
    assert named <= {kind.id for kind in FindingKind}
    assert len(named) > 10


@pytest.mark.e2e
def test_prometheus_scrapes_a_server_and_evaluates_every_rule(tmp_path: Path) -> None:
    with (
        StandaloneProcess(tmp_path, "--metrics-port", "0") as server,
        PrometheusServer(tmp_path, int(str(server.ready["metrics_port"]))) as prometheus,
    ):
        prometheus.wait_until_value("up", 1)
        prometheus.wait_for("rules", are_all_evaluated)
        assert prometheus.value('sum(penstock_container_state{state="running"})') == 4
        server.kill9()
        prometheus.wait_for("alerts", lambda found: any(
            alert["labels"]["alertname"] == "PenstockServerDown" for alert in found["alerts"]
        ))  # fmt: skip


def are_all_evaluated(found: dict[str, Any]) -> bool:
    """Return whether each rule was evaluated without an error."""
    return all(rule["health"] == "ok" for group in found["groups"] for rule in group["rules"])


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_two_minutes_of_scrapes_under_load(tmp_path: Path) -> None:
    """Each scrape succeeds, no rule fails, and no alert fires."""
    with StandaloneProcess(tmp_path, "--metrics-port", "0") as server, connect(server.uri) as client:
        client.create_stream("shop/orders")
        with (
            PrometheusServer(tmp_path, int(str(server.ready["metrics_port"])), interval_s=2) as prometheus,
            client.event_writer("shop/orders") as writer,
        ):
            begun_s, written = time.monotonic(), 0
            while time.monotonic() < begun_s + 120:
                writer.write_many([b"x" * 100] * 1000)
                writer.flush()
                written += 1000
                time.sleep(0.01)
            # The first scrape may be before the server's first events.
            assert prometheus.value("min_over_time(up[110s])") == 1
            assert prometheus.value("count_over_time(up[110s])") > 40
            prometheus.wait_for("rules", are_all_evaluated)
            prometheus.wait_until_value('sum(penstock_stream_append_events_total{stream="orders"})', written)
            assert prometheus.firing() == set()
