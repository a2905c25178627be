"""`ControllerMetrics`: the metrics of a controller in this process."""

from __future__ import annotations

from penstock.controller.grpc.server import GrpcServer
from penstock.operations.metrics import Metrics


class ControllerMetrics:
    """Collects the calls that a controller has answered."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    def collect(self, metrics: Metrics) -> None:
        """Add the present numbers."""
        calls = self._server.calls
        for (call, code), count in calls.answered.items():
            metrics.counter(
                "rpc_requests_total", "Calls of the controller, by their status code.", count, call=call, code=code
            )
        for call, durations in calls.durations.items():
            metrics.histogram("rpc_duration_seconds", "Time to answer a call.", durations, call=call)
        metrics.gauge(
            "rpc_in_flight", "Calls being served.", self._server.slots.held_count + self._server.slots.waiting_count
        )
