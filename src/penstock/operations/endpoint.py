"""`OperationsEndpoint`: the port on which a server process reports its health and its metrics.

    /live      200 while the event loop runs. It depends on nothing else: a probe must not kill a server that recovers.
    /ready     200 when the process does all of its work, else 503 with the reasons, a line each.
    /v1/health the tree of all parts as JSON, always 200; also /v1/health/status, /readiness and /liveness.
    /metrics   Prometheus' text format; also /prometheus.

The port is served from the first moment of a start on, so that a recovery can be observed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence

from penstock.operations.exposition import CONTENT_TYPE, exposition
from penstock.operations.health import Health, HealthSource
from penstock.operations.http_server import HttpReply, HttpServer
from penstock.operations.metrics import Collector, Metrics, collect
from penstock.operations.settings import OperationsSettings
from penstock.runtime.work import BlockingWork

_JSON = "application/json"


class OperationsEndpoint:
    """Serves health and metrics of one process.

    `health` returns the present health. `work` makes the text of the metrics in a thread: that of many series takes
    some milliseconds, which the loop should not spend. `tls`: with the certificate; None: plain HTTP.

    Attributes:
        collectors: called at each scrape; parts of the server add theirs when they start.
    """

    def __init__(
        self,
        settings: OperationsSettings,
        *,
        health: HealthSource,
        work: BlockingWork,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.collectors: list[Collector] = [self._collect_ready]
        self._health = health
        self._work = work
        self._scrape = asyncio.Lock()
        self._server = HttpServer(
            {
                "/live": self._live,
                "/ready": self._ready,
                "/metrics": self._metrics,
                "/prometheus": self._metrics,
                "/v1/health": self._tree,
                "/v1/health/status": self._status,
                "/v1/health/readiness": self._readiness,
                "/v1/health/liveness": self._liveness,
            },
            settings.http,
            tls,
            work,
        )

    @property
    def port(self) -> int:
        """The listening port; 0 before `start`."""
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError` when the port cannot be listened on."""
        await self._server.start(host, port)

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self._server.stop()

    async def _live(self, query: str) -> HttpReply:
        return HttpReply(200, b"live\n")

    async def _ready(self, query: str) -> HttpReply:
        health = self._health()
        problems = "".join(f"{line}\n" for line in health.problems())
        if health.is_ready:
            return HttpReply(200, f"ready\n{problems}".encode())
        return HttpReply(503, f"not ready\n{problems}".encode())

    async def _tree(self, query: str) -> HttpReply:
        return _json(self._health().tree())

    async def _status(self, query: str) -> HttpReply:
        return _json(self._health().overall.value)

    async def _readiness(self, query: str) -> HttpReply:
        return _json(self._health().is_ready)

    async def _liveness(self, query: str) -> HttpReply:
        return _json(True)

    def _collect_ready(self, metrics: Metrics) -> None:
        metrics.gauge(
            "ready", "Whether the process does all of its work, as /ready says: 0 while it starts or recovers.",
            int(self._health().is_ready),
        )  # fmt: skip

    async def _metrics(self, query: str) -> HttpReply:
        # One text at a time: scrapers that arrive together must not add up.
        async with self._scrape:
            text = await self._work.run(exposition, collect(self.collectors))
        return HttpReply(200, text, CONTENT_TYPE)


def _json(value: object) -> HttpReply:
    return HttpReply(200, json.dumps(value).encode() + b"\n", _JSON)


def joined_health(parts: Sequence[tuple[str, HealthSource]]) -> Health:
    """Return the health of a process by its parts."""
    return Health(children={name: source() for name, source in parts})
