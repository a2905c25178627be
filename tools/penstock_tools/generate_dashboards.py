"""Makes the Grafana dashboards in ``deploy/grafana`` from the table below.

Run ``python -m penstock_tools.generate_dashboards``. Each dashboard has the variables ``datasource``, ``job`` and
``instance``; that of streams also ``scope`` and ``stream``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"

#: What every query selects.
_ALL = 'job=~"$job",instance=~"$instance"'
_WIDTH = 24
_HEIGHT = 8


@dataclass(frozen=True)
class Panel:
    """A panel. `queries`: (PromQL, legend). `unit`: as Grafana names it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dashboard:
    """A dashboard: rows of panels, each with a title. `variables`: of labels, besides job and instance."""

    name: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str], ...] = ()


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate(penstock_{metric}{{{_ALL}{more}}}[$__rate_interval]))"


def _quantile(share: float, metric: str, by: str = "instance", more: str = "") -> str:
    return f"histogram_quantile({share}, {_rate(metric + '_bucket', f'{by}, le', more)})"


def _gauge(metric: str, more: str = "") -> str:
    return f"penstock_{metric}{{{_ALL}{more}}}"


_NOT_RUNNING = ',state!="running"'
_STREAM = ',scope=~"$scope",stream=~"$stream"'

DASHBOARDS: tuple[Dashboard, ...] = (
    Dashboard(
        "penstock-overview",
        "Penstock: overview",
        (
            ("Traffic", (
                Panel("Events appended", "cps", ((_rate("append_events_total", "instance"), "{{instance}}"),)),
                Panel("Bytes appended", "Bps", ((_rate("append_bytes_total", "instance"), "{{instance}}"),)),
                Panel("Bytes read", "Bps", ((_rate("read_bytes_total", "instance"), "{{instance}}"),)),
            )),
            ("Latency", (
                Panel("Time to durability", "s", (
                    (_quantile(0.5, "append_duration_seconds"), "p50 {{instance}}"),
                    (_quantile(0.99, "append_duration_seconds"), "p99 {{instance}}"),
                )),
                Panel("Sync of the log", "s", ((_quantile(0.99, "log_sync_duration_seconds"), "p99 {{instance}}"),)),
                Panel("Delay of the event loop", "s", ((_gauge("loop_lag_seconds"), "{{instance}}"),)),
            )),
            ("Containers", (
                Panel("Containers that do not run", "none", (
                    (f"sum by (instance, state) ({_gauge('container_state', _NOT_RUNNING)})", "{{state}} {{instance}}"),
                )),
                Panel("Length of logs", "bytes", ((_gauge("log_bytes"), "{{instance}} {{container}}"),)),
                Panel("Writes blocked", "bool", ((_gauge("writes_blocked"), "{{instance}}"),)),
            )),
            ("Controller", (
                Panel("Calls by status", "reqps", ((_rate("rpc_requests_total", "code"), "{{code}}"),)),
                Panel("Time of calls", "s", (
                    (_quantile(0.99, "rpc_duration_seconds", "call"), "p99 {{call}}"),
                )),
                Panel("Open transactions", "none", ((_gauge("transactions_open"), "{{instance}}"),)),
            )),
            ("Processes", (
                Panel("Memory", "bytes", ((_gauge("process_resident_memory_bytes"), "{{instance}}"),)),
                Panel("Connections", "none", ((_gauge("connections"), "{{instance}}"),)),
                Panel("Open descriptors", "none", ((_gauge("open_descriptors"), "{{instance}}"),)),
            )),
        ),
    ),
    Dashboard(
        "penstock-streams",
        "Penstock: streams and reader groups",
        (
            ("Streams", (
                Panel("Events appended", "cps", (
                    (_rate("stream_append_events_total", "scope, stream", _STREAM), "{{scope}}/{{stream}}"),
                )),
                Panel("Bytes appended", "Bps", (
                    (_rate("stream_append_bytes_total", "scope, stream", _STREAM), "{{scope}}/{{stream}}"),
                )),
            )),
            ("Reader groups", (
                Panel("Lag in time", "s", (
                    (_gauge("reader_group_lag_seconds", ',scope=~"$scope"'), "{{scope}}/{{group}}"),
                )),
                Panel("Lag in bytes", "bytes", (
                    (_gauge("reader_group_lag_bytes", ',scope=~"$scope"'), "{{scope}}/{{group}}"),
                )),
                Panel("Readers", "none", (
                    (_gauge("reader_group_readers", ',scope=~"$scope"'), "{{scope}}/{{group}}"),
                )),
                Panel("Segments without a reader", "none", (
                    (_gauge("reader_group_unassigned_segments", ',scope=~"$scope"'), "{{scope}}/{{group}}"),
                )),
            )),
        ),
        (("scope", "penstock_stream_append_events_total"), ("stream", "penstock_stream_append_events_total")),
    ),
    Dashboard(
        "penstock-storage",
        "Penstock: log, cache and long-term storage",
        (
            ("Long-term storage", (
                Panel("Works", "bool", ((_gauge("storage_up"), "{{instance}}"),)),
                Panel("Not in long-term storage", "bytes", (
                    (f"sum by (instance) ({_gauge('unflushed_bytes')})", "{{instance}}"),
                )),
                Panel("Held appends", "none", ((_gauge("held_appends"), "{{instance}} {{container}}"),)),
                Panel("Requests", "reqps", ((_rate("storage_requests_total", "verb, result"), "{{verb}} {{result}}"),)),
                Panel("Time of requests", "s", (
                    (_quantile(0.99, "storage_request_duration_seconds", "verb"), "p99 {{verb}}"),
                )),
                Panel("Bytes of chunks", "Bps", (
                    (_rate("storage_written_bytes_total", "instance"), "written {{instance}}"),
                    (_rate("storage_read_bytes_total", "instance"), "read {{instance}}"),
                )),
            )),
            ("Log and cache", (
                Panel("Not yet durable", "bytes", ((_gauge("log_unsynced_bytes"), "{{instance}} {{container}}"),)),
                Panel("Cache", "bytes", (
                    (_gauge("cache_used_bytes"), "used {{instance}}"),
                    (_gauge("cache_unflushed_bytes"), "not flushed {{instance}}"),
                    (_gauge("cache_limit_bytes"), "limit {{instance}}"),
                )),
                Panel("Reads that were not in memory", "reqps", (
                    (_rate("storage_reads_total", "instance"), "{{instance}}"),
                )),
            )),
            ("Buckets", (
                Panel("Requests", "reqps", ((_rate("object_requests_total", "bucket, kind"), "{{bucket}} {{kind}}"),)),
                Panel("Bytes", "Bps", (
                    (_rate("object_sent_bytes_total", "bucket"), "sent {{bucket}}"),
                    (_rate("object_received_bytes_total", "bucket"), "received {{bucket}}"),
                )),
            )),
        ),
    ),
)  # fmt: skip


def expressions(dashboard: Dashboard) -> list[str]:
    """Return all queries of a dashboard."""
    return [expr for _, panels in dashboard.rows for panel in panels for expr, _ in panel.queries]


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows:
        panels.append({
            "type": "row", "title": title, "id": len(panels) + 1, "collapsed": False, "panels": [],
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
        })  # fmt: skip
        y += 1
        columns = min(len(row), 3)
        for index, panel in enumerate(row):
            x = index % columns * (_WIDTH // columns)
            panels.append(_panel(panel, len(panels) + 1, x, y + index // columns * _HEIGHT, _WIDTH // columns))
        y += -(-len(row) // columns) * _HEIGHT
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, x: int, y: int, width: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "id": number,
        "datasource": source,
        "gridPos": {"h": _HEIGHT, "w": width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    labels = (("job", "penstock_build_info"), ("instance", "penstock_build_info"), *dashboard.variables)
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        *(
            {
                "name": label, "type": "query", "datasource": source, "refresh": 2, "multi": True, "includeAll": True,
                "current": {"text": "All", "value": "$__all"},
                "query": {"query": f"label_values({metric}, {label})", "refId": label},
            }
            for label, metric in labels
        ),
    ]  # fmt: skip


def texts() -> dict[str, str]:
    """Return the content of each file by its name."""
    return {
        f"{dashboard.name}.json": json.dumps(dashboard_json(dashboard), indent=2) + "\n" for dashboard in DASHBOARDS
    }


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
        sys.stdout.write(f"{FOLDER / name}\n")


if __name__ == "__main__":
    main()
