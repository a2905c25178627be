"""`PrometheusServer`: a real Prometheus that scrapes servers and evaluates the alert rules.

Its rules are those of ``deploy/prometheus/penstock-rules.yml``. `fast_rules` shortens their times, so that a fault of
some seconds fires an alert.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "penstock-rules.yml"
#: How long a condition may take on a machine that is busy with other tests.
WAIT_S = 240.0
#: Windows of rules, in their units, and those of `fast_rules`.
_WINDOWS: Mapping[str, str] = {"5m": "15s", "10m": "30s", "15m": "15s", "1h": "600s"}
#: Limits that take too much data or time, by alert: as in the rules, and in `fast_rules`.
_LIMITS: Mapping[str, tuple[str, str]] = {
    "PenstockBacklogGrows": ("> 1073741824", "> 1048576"),
    "PenstockGroupLagHigh": ("> 900", "> 10"),
    # 540 s of 10 min are 27 s of 30 s; the lag is measured every 10 s.
    "PenstockGroupStuck": ("> 540", "> 15"),
}


def free_port() -> int:
    """Return a port that nothing listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def prometheus_program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip the test without them."""
    script = Path(__file__).parent / "prometheus.sh"
    found = subprocess.run([str(script)], capture_output=True, text=True, timeout=120)
    if found.returncode == 0:
        return str(Path(found.stdout.strip(), name))
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name} (Debian: apt-get install prometheus)")
    return path


def alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules as they are delivered."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def fast_rules() -> list[dict[str, Any]]:
    """Return the rules with short times: windows of seconds, one second before an alert fires, and low limits."""
    found = []
    for rule in alert_rules():
        expression = re.sub(r"\[(\w+)\]", lambda window: f"[{_WINDOWS[window[1]]}]", rule["expr"])
        if rule["alert"] in _LIMITS:
            before, after = _LIMITS[rule["alert"]]
            assert before in expression, rule["alert"]
            expression = expression.replace(before, after)
        found.append({**rule, "expr": expression, "for": "1s"})
    return found


class PrometheusServer:
    """Scrapes the ports `targets` of this machine every `interval_s` seconds, and evaluates `rules` as often."""

    def __init__(
        self, directory: Path, *targets: int, rules: list[dict[str, Any]] | None = None, interval_s: int = 3
    ) -> None:
        self._program = prometheus_program("prometheus")
        self._directory = directory / "prometheus"
        self._directory.mkdir()
        self._port = free_port()
        rule_file = RULES
        if rules is not None:
            rule_file = self._directory / "rules.yml"
            rule_file.write_text(yaml.safe_dump({"groups": [{"name": "penstock", "rules": rules}]}))
        interval = f"{interval_s}s"
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(rule_file)],
            "scrape_configs": [
                {"job_name": "penstock", "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in targets]}]}
            ],
        }
        (self._directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrometheusServer:
        command = [
            self._program,
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with open(self._directory / "log", "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def ask(self, path: str) -> dict[str, Any]:
        """Return the data of an answer. Raises `OSError`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=30) as reply:
            found: dict[str, Any] = json.load(reply)["data"]
        return found

    def wait_for(self, path: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Ask until the answer fulfils a condition, and return it; at most `WAIT_S`."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                found = self.ask(path)
                if holds(found):
                    return found
                last: object = found
            except OSError as error:
                last = error
            assert time.monotonic() < deadline_s, f"{path}: {last}"
            time.sleep(0.5)

    def value(self, query: str) -> float:
        """Wait for a result of a query, and return its first value."""
        found = self.wait_for("query?" + urllib.parse.urlencode({"query": query}), lambda found: found["result"])
        return float(found["result"][0]["value"][1])

    def wait_until_value(self, query: str, value: float) -> None:
        """Wait until the first value of a query is `value`."""
        path = "query?" + urllib.parse.urlencode({"query": query})
        self.wait_for(path, lambda found: found["result"] and float(found["result"][0]["value"][1]) == value)

    def firing(self) -> set[str]:
        """Return the alerts that fire. Raises `OSError`."""
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def wait_until_each_has_fired(self, *alerts: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until each of some alerts has fired, not necessarily at one time; call `meanwhile` all the time."""
        deadline_s, fired = time.monotonic() + WAIT_S, set[str]()
        while not fired.issuperset(alerts):
            assert time.monotonic() < deadline_s, f"have not fired: {set(alerts) - fired}"
            meanwhile()
            try:
                fired |= self.firing()
            except OSError:
                fired |= set()  # It starts.
            time.sleep(0.5)
