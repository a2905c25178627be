"""The lag of queries for Prometheus: a collector for the `prometheus-client` package, its text, and an endpoint.

The endpoint serves over HTTP from the program that started the session. The package is imported at the first scrape.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError
from penstock.spark.lag import QueryLag

if TYPE_CHECKING:
    from prometheus_client import Metric

_log = logging.getLogger(__name__)

#: Time limit of one request. Requests are served sequentially, so a slow client is disconnected.
REQUEST_TIMEOUT_S = 5.0

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP = {
    "bytes": "Bytes of the segment that the query had not read when its latest micro-batch was planned.",
    "events": "The same in events, estimated.",
    "seconds": "Minimum number of seconds that the first of these bytes has waited.",
    "is_whole": "Whether the other gauges show the whole lag of the query; 0: a lower bound.",
    "batch": "The number of the query's latest micro-batch.",
}


#: Labels of gauges that are about a query, and of those about one of its segments.
_OF_QUERY = ("query", "name")
_LABELS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bytes", "events", "seconds"), (*_OF_QUERY, "source", "stream", "segment")),
    **dict.fromkeys(("is_whole", "batch"), _OF_QUERY),
}


class LagCollector:
    """The lags of queries as gauges ``penstock_query_lag_*``, for a registry of the package `prometheus-client`.

    ``prometheus_client.REGISTRY.register(LagCollector(listener.latest))`` with a `LagListener`, in a program that
    serves metrics of its own. Unknown values have no series.
    """

    def __init__(self, latest: Callable[[], Iterable[QueryLag]]) -> None:
        """`latest` returns the lags at each scrape."""
        self._latest = latest

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry does not have to scrape to compare names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges that have a series."""
        from prometheus_client.core import GaugeMetricFamily

        families = {
            name: GaugeMetricFamily(f"penstock_query_lag_{name}", text, labels=_LABELS[name])
            for name, text in _HELP.items()
        }

        def put(name: str, labels: Sequence[str], value: float | None) -> None:
            if value is not None:
                families[name].add_metric(labels, value)

        for lag in self._latest():
            query = (lag.query, lag.name or "")
            put("batch", query, lag.batch)
            put("is_whole", query, int(lag.is_whole))
            for each in lag.segments:
                segment = (*query, str(each.source), each.stream, str(each.segment))
                put("bytes", segment, each.byte_count)
                put("events", segment, each.event_count_estimated)
                put("seconds", segment, each.waited_s_min)
        yield from (family for family in families.values() if family.samples)


def lag_metrics(lags: Iterable[QueryLag]) -> str:
    """Return lags as the gauges of `LagCollector`, in Prometheus' text format 0.0.4."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(LagCollector(lambda: lags))
    return generate_latest(registry).decode()


class LagEndpoint:
    """Serves ``GET /metrics`` in a thread of its own, from its creation until `close`. Also a context manager.

    ``LagEndpoint(listener.latest, port=9408)`` with a `LagListener`. For programs without an endpoint for metrics;
    those that have one use `LagCollector` or `lag_metrics`.

    Attributes:
        port: the port that it listens on.
    """

    def __init__(self, latest: Callable[[], Sequence[QueryLag]], *, port: int = 0, host: str = "127.0.0.1") -> None:
        """`latest` returns the lags at each request. `port` 0: any free one; `host` "0.0.0.0": for other machines.

        Raises `InvalidArgumentError`: it cannot listen there.
        """
        try:
            self._server = _Server(host, port, latest)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(f"metrics cannot be served at {host}:{port}: {error}") from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-lag", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Waits for the request in progress; idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> LagEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Server(HTTPServer):
    def __init__(self, host: str, port: int, latest: Callable[[], Sequence[QueryLag]]) -> None:
        self.latest = latest
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the base class's look-up of the host's name, which may take long and is not needed."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error: the client has disconnected, which is harmless, or there is a defect."""
        error = sys.exception()
        _log.log(logging.DEBUG if isinstance(error, OSError) else logging.WARNING, "metrics: %r", error, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server

    def setup(self) -> None:
        """Start; `timeout` applies to each step, so a timer bounds all of them together."""
        super().setup()
        self._timer = threading.Timer(self.timeout, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def finish(self) -> None:
        """End, answered or not."""
        self._timer.cancel()
        super().finish()

    def _give_up(self) -> None:
        with suppress(OSError):  # The client has disconnected.
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer with the current lags."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the only path is /metrics")
            return
        body = lag_metrics(self.server.latest()).encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line for each request is useless in a driver's log."""
