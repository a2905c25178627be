"""`ControllerMetrics`: the metrics of a controller in this process."""

from __future__ import annotations

from typing import Protocol

from penstock.controller.grpc.call_counts import CallCounts
from penstock.controller.grpc.slots import CallSlots
from penstock.controller.service import ControllerService
from penstock.operations.metrics import Metrics
from penstock.security.audit_log import AuditLog


class CountingServer(Protocol):
    """A server of calls that counts them: see `GrpcServer`."""

    slots: CallSlots
    calls: CallCounts


class ControllerMetrics:
    """Collects the calls that a controller has answered."""

    def __init__(self, server: CountingServer, service: ControllerService, audit: AuditLog | None = None) -> None:
        self._server = server
        self._service = service
        self._audit = audit

    def collect(self, metrics: Metrics) -> None:
        """Add the present numbers."""
        calls = self._server.calls
        for (call, code), count in calls.answered.items():
            metrics.counter(
                "rpc_requests_total", "Calls of the controller, by their status code.", count, call=call, code=code
            )
        for call, durations in calls.durations.items():
            metrics.histogram("rpc_duration_seconds", "Time to answer a call.", durations, call=call)
        work = self._service.statistics()
        metrics.gauge("transactions_open", "Transactions whose lease this controller watches.",
                      work.open_transaction_count)  # fmt: skip
        metrics.counter("work_failed_attempts_total", "Attempts of background work that failed and are repeated.",
                        work.failed_attempt_count)  # fmt: skip
        metrics.counter("work_given_up_total", "Pieces of work given up after a permanent error.",
                        work.given_up_count)  # fmt: skip
        metrics.counter("work_taken_over_total", "Pieces of work taken over from another controller.",
                        work.taken_over_count)  # fmt: skip
        if self._audit is not None:
            metrics.counter("audit_entries_total", "Entries written to the audit log.", self._audit.written_count)
            metrics.counter("audit_lost_total", "Entries of the audit log that were lost.", self._audit.lost_count)
        metrics.gauge(
            "rpc_in_flight", "Calls being served.", self._server.slots.held_count + self._server.slots.waiting_count
        )
