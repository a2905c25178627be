"""The alert rules name metrics and labels that a running server exposes, and Prometheus accepts them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock import aio
from penstock.operations.exposition import exposition
from penstock.operations.metrics import collect
from penstock.operations.settings import OperationsSettings
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.standalone_process import StandaloneProcess

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "penstock-rules.yml"


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


def prometheus_program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip the test without them."""
    script = Path(__file__).parents[1] / "support" / "prometheus.sh"
    found = subprocess.run([str(script)], capture_output=True, text=True, timeout=120)
    if found.returncode == 0:
        return str(Path(found.stdout.strip(), name))
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name} (Debian: apt-get install prometheus)")
    return path


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


@pytest.mark.e2e
def test_prometheus_scrapes_a_server_and_evaluates_every_rule(tmp_path: Path) -> None:
    program = prometheus_program("prometheus")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with StandaloneProcess(tmp_path, "--metrics-port", "0") as server:
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "penstock",
                    "static_configs": [{"targets": [f"127.0.0.1:{server.ready['metrics_port']}"]}],
                }
            ],
        }
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(configuration))
        with open(tmp_path / "prometheus.log", "wb") as log, subprocess.Popen(
            [program, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        ) as prometheus:  # fmt: skip
            try:
                wait_for(port, "query?query=up==1", lambda found: found["result"])
                wait_for(port, "rules", lambda found: all(
                    rule["health"] == "ok" for group in found["groups"] for rule in group["rules"]
                ))  # fmt: skip
                running = wait_for(port, "query?query=sum(penstock_container_state%7Bstate=%22running%22%7D)",
                                   lambda found: found["result"])  # fmt: skip
                assert running["result"][0]["value"][1] == "4"
                server.kill9()
                wait_for(port, "alerts", lambda found: any(
                    alert["labels"]["alertname"] == "PenstockServerDown" for alert in found["alerts"]
                ))  # fmt: skip
            finally:
                prometheus.terminate()


def wait_for(port: int, path: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Ask Prometheus until the answer fulfils a condition, and return it; at most 120 s."""
    deadline_s = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=30) as reply:
                found: dict[str, Any] = json.load(reply)["data"]
            if holds(found):
                return found
            last: object = found
        except OSError as error:
            last = error
        assert time.monotonic() < deadline_s, f"{path}: {last}"
        time.sleep(0.2)
