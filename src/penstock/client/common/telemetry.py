"""`Telemetry`: metrics and spans of a client for OpenTelemetry, if the application uses it.

It is used if the application has imported ``opentelemetry`` before it makes a writer or a reader. Otherwise nothing is
imported, and each place that reports costs one comparison. The names are those of OpenTelemetry's semantic conventions
for messaging, which are still in development; they are all in this module.

Reports are per acknowledged block, per chunk of events read, per flush and per commit; none is per event. Events have
no headers, so no context travels with them.

Source: OpenTelemetry semantic conventions 1.44, messaging spans and metrics.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

#: Upper bounds of the histogram of durations, in seconds, as the conventions recommend.
_DURATION_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_SYSTEM = "messaging.system"
_OPERATION = "messaging.operation.name"
_OPERATION_TYPE = "messaging.operation.type"
_DESTINATION = "messaging.destination.name"
_GROUP = "messaging.consumer.group.name"
_PARTITION = "messaging.destination.partition.id"
_COUNT = "messaging.batch.message_count"
_ERROR = "error.type"


class EventsOfSegment(Protocol):
    """Events of one segment: an `EventChunk`."""

    @property
    def stream(self) -> str:
        """``scope/stream``."""

    @property
    def segment_id(self) -> int:
        """64-bit segment id."""

    @property
    def events(self) -> Sequence[bytes]:
        """The payloads."""


class Telemetry:
    """Reports to the meter and the tracer of the application."""

    def __init__(self, meter: Meter, tracer: Tracer) -> None:
        self._tracer = tracer
        self._durations = meter.create_histogram(
            "messaging.client.operation.duration", unit="s", description="Duration of a flush or a commit.",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S,
        )  # fmt: skip
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Events that are durable."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Events given to a reader."
        )

    def sent(self, stream: str, event_count: int) -> None:
        """Count events of a stream that are durable."""
        self._sent.add(event_count, {_SYSTEM: "penstock", _OPERATION: "send", _DESTINATION: stream})

    def received(self, chunk: EventsOfSegment, group: str) -> None:
        """Count the events of a chunk that a reader of `group` has got, with a span that marks the moment."""
        stream, event_count = chunk.stream, len(chunk.events)
        labels: dict[str, str | int] = {
            _SYSTEM: "penstock", _OPERATION: "receive", _DESTINATION: stream, _GROUP: group,
        }  # fmt: skip
        self._consumed.add(event_count, labels)
        more: dict[str, str | int] = {
            _OPERATION_TYPE: "receive",
            _PARTITION: str(chunk.segment_id),
            _COUNT: event_count,
        }
        self._tracer.start_span(f"receive {stream}", attributes={**labels, **more}).end()

    @contextmanager
    def operation(self, name: str, kind: str, destination: str) -> Iterator[None]:
        """Measure what is done inside as one operation, with a span. An exception is its error.

        `name`: send, commit. `kind`: the type of operation in the conventions: send, settle.
        """
        labels: Mapping[str, str] = {_SYSTEM: "penstock", _OPERATION: name, _DESTINATION: destination}
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        error = ""
        with self._tracer.start_as_current_span(
            f"{name} {destination}", attributes={**labels, _OPERATION_TYPE: kind}
        ) as span:
            try:
                yield
            except BaseException as raised:
                error = type(raised).__name__
                span.set_attribute(_ERROR, error)
                raise
            finally:
                failed = {_ERROR: error} if error else {}
                self._durations.record(loop.time() - began_s, {**labels, **failed})


def operation(telemetry: Telemetry | None, name: str, kind: str, destination: str) -> AbstractContextManager[None]:
    """Return a context that measures an operation; it does nothing without telemetry. See `Telemetry.operation`."""
    return nullcontext() if telemetry is None else telemetry.operation(name, kind, destination)


def telemetry_of_process() -> Telemetry | None:
    """Return what reports to the providers of this process; None if the application does not use OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return None
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        return None
    return Telemetry(metrics.get_meter("penstock"), trace.get_tracer("penstock"))
