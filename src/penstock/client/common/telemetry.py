"""`Telemetry`: metrics and spans of a client for OpenTelemetry, if the application uses it.

It is used if the application has imported ``opentelemetry`` before it makes a writer or a reader. Otherwise nothing is
imported, and each place that reports costs one comparison. The names are those of OpenTelemetry's semantic conventions
for messaging, which are still in development; they are all in this module.

Reports are per acknowledged block, per chunk of events read, per flush and per commit; none is per event. Bytes of
writers and readers are read when the application exports. Events have no headers, so no context travels with them.

Source: OpenTelemetry semantic conventions 1.44, messaging spans and metrics.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Protocol
from weakref import ref

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
    from opentelemetry.metrics import Counter as MeterCounter
    from opentelemetry.trace import Tracer

#: Upper bounds of the histogram of durations, in seconds, as the conventions recommend.
_DURATION_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PENSTOCK = "penstock"
_SYSTEM = "messaging.system"
_OPERATION = "messaging.operation.name"
_OPERATION_TYPE = "messaging.operation.type"
_DESTINATION = "messaging.destination.name"
_GROUP = "messaging.consumer.group.name"
_PARTITION = "messaging.destination.partition.id"
_COUNT = "messaging.batch.message_count"
_ERROR = "error.type"
_SERVER = "server.address"
_PORT = "server.port"

Labels = Mapping[str, str | int]


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


class WaitingWrites(Protocol):
    """A part with events that are not durable: an `EventWriter`."""

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of them."""


class WaitingReads(Protocol):
    """A part with events that the application has not taken: a `Reader`."""

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes of them."""


class Instruments:
    """The instruments of a meter, and the writers and readers that they observe, as long as these exist."""

    def __init__(self, meter: Meter) -> None:
        self.durations: Histogram = meter.create_histogram(
            "messaging.client.operation.duration", unit="s",
            description="Duration of a flush, of a commit, or of the wait for events.",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S,
        )  # fmt: skip
        self.processing: Histogram = meter.create_histogram(
            "messaging.process.duration", unit="s",
            description="Time from events given to the application until it takes further ones.",
            explicit_bucket_boundaries_advisory=_DURATION_BOUNDS_S,
        )  # fmt: skip
        self.sent: MeterCounter = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Events that are durable."
        )
        self.consumed: MeterCounter = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Events given to a reader."
        )
        self.reconnects: MeterCounter = meter.create_counter(
            "penstock.client.reconnects", unit="{connection}",
            description="Connections to segment stores that were opened in place of lost ones.",
        )  # fmt: skip
        #: By the id of the object. Exporters read them in threads of their own: each access is one step.
        self._writers: dict[int, tuple[Callable[[], WaitingWrites | None], Labels]] = {}
        self._readers: dict[int, tuple[Callable[[], WaitingReads | None], Labels]] = {}
        meter.create_observable_up_down_counter(
            "penstock.client.unacknowledged_bytes", [self._unacknowledged], unit="By",
            description="Bytes of events that are not durable yet.",
        )  # fmt: skip
        meter.create_observable_up_down_counter(
            "penstock.client.read_ahead_bytes", [self._read_ahead], unit="By",
            description="Bytes that were read and not yet given to the application.",
        )  # fmt: skip

    def add_writer(self, writer: WaitingWrites, labels: Labels) -> None:
        """Observe a writer until it is freed."""
        key = id(writer)
        self._writers[key] = (ref(writer, lambda _: self._writers.pop(key, None)), labels)

    def add_reader(self, reader: WaitingReads, labels: Labels) -> None:
        """Observe a reader until it is freed."""
        key = id(reader)
        self._readers[key] = (ref(reader, lambda _: self._readers.pop(key, None)), labels)

    def _unacknowledged(self, options: CallbackOptions) -> Sequence[Observation]:
        found: Counter[tuple[tuple[str, str | int], ...]] = Counter()
        for reference, labels in list(self._writers.values()):
            if (writer := reference()) is not None:
                found[tuple(labels.items())] += writer.unacknowledged_bytes
        return _observations(found)

    def _read_ahead(self, options: CallbackOptions) -> Sequence[Observation]:
        found: Counter[tuple[tuple[str, str | int], ...]] = Counter()
        for reference, labels in list(self._readers.values()):
            if (reader := reference()) is not None:
                found[tuple(labels.items())] += reader.read_ahead_bytes
        return _observations(found)


def _observations(found: Mapping[tuple[tuple[str, str | int], ...], int]) -> Sequence[Observation]:
    from opentelemetry.metrics import Observation

    return [Observation(value, dict(labels)) for labels, value in found.items()]


class Telemetry:
    """Reports of one writer, reader, transaction or pool to the meter and the tracer of the application.

    Args:
        controller: URI of the cluster; the address in its reports is the first one of it. Empty: they have none.
    """

    def __init__(self, instruments: Instruments, tracer: Tracer, controller: str = "") -> None:
        self._instruments = instruments
        self._tracer = tracer
        host, _, port = controller.partition("://")[2].rstrip("/").partition(",")[0].rpartition(":")
        self._server: Labels = {_SERVER: host, _PORT: int(port)} if host and port.isdecimal() else {}

    def watch_writer(self, writer: WaitingWrites, stream: str) -> None:
        """Report the unacknowledged bytes of a writer at each export."""
        self._instruments.add_writer(writer, {_SYSTEM: _PENSTOCK, _DESTINATION: stream, **self._server})

    def watch_reader(self, reader: WaitingReads, group: str) -> None:
        """Report the bytes that a reader has read ahead at each export."""
        self._instruments.add_reader(reader, {_SYSTEM: _PENSTOCK, _GROUP: group, **self._server})

    def reconnected(self, host: str, port: int) -> None:
        """Count a connection to a segment store that was opened in place of a lost one."""
        self._instruments.reconnects.add(1, {_SYSTEM: _PENSTOCK, _SERVER: host, _PORT: port})

    def sent(self, stream: str, event_count: int) -> None:
        """Count events of a stream that are durable."""
        self._instruments.sent.add(event_count, self._labels("send", stream))

    def received(self, chunk: EventsOfSegment, group: str, waited_s: float) -> None:
        """Count the events of a chunk that a reader of `group` has got, with a span that marks the moment.

        `waited_s`: how long the application waited for it.
        """
        stream, event_count = chunk.stream, len(chunk.events)
        labels = {**self._labels("receive", stream), _GROUP: group}
        self._instruments.consumed.add(event_count, labels)
        labels[_OPERATION_TYPE] = "receive"
        self._instruments.durations.record(waited_s, labels)
        more: Labels = {_PARTITION: str(chunk.segment_id), _COUNT: event_count}
        self._tracer.start_span(f"receive {stream}", attributes={**labels, **more}).end()

    def processed(self, stream: str, group: str, took_s: float, error: str = "") -> None:
        """Note how long the application had the events of a chunk; `error`: the exception that ended it."""
        labels = {**self._labels("process", stream), _GROUP: group}
        self._instruments.processing.record(took_s, {**labels, **({_ERROR: error} if error else {})})

    @contextmanager
    def operation(self, name: str, kind: str, destination: str, group: str = "") -> Iterator[None]:
        """Measure what is done inside as one operation, with a span. An exception is its error.

        `name`: send, commit. `kind`: the type of operation in the conventions: send, settle. `destination`: the stream;
        empty for an operation on all streams of `group`.
        """
        labels = {**self._labels(name, destination), _OPERATION_TYPE: kind}
        if group:
            labels[_GROUP] = group
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        error = ""
        with self._tracer.start_as_current_span(f"{name} {destination or group}", attributes=labels) as span:
            try:
                yield
            except BaseException as raised:
                error = type(raised).__name__
                span.set_attribute(_ERROR, error)
                raise
            finally:
                failed = {_ERROR: error} if error else {}
                self._instruments.durations.record(loop.time() - began_s, {**labels, **failed})

    def _labels(self, name: str, destination: str) -> dict[str, str | int]:
        labels: dict[str, str | int] = {_SYSTEM: _PENSTOCK, _OPERATION: name, **self._server}
        if destination:
            labels[_DESTINATION] = destination
        return labels


def operation(
    telemetry: Telemetry | None, name: str, kind: str, destination: str, group: str = ""
) -> AbstractContextManager[None]:
    """Return a context that measures an operation; it does nothing without telemetry. See `Telemetry.operation`."""
    return nullcontext() if telemetry is None else telemetry.operation(name, kind, destination, group)


def telemetry_of_process(controller: str = "") -> Telemetry | None:
    """Return what reports to the providers of this process; None if the application does not use OpenTelemetry.

    `controller`: URI of the cluster.
    """
    if "opentelemetry" not in sys.modules:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return Telemetry(_instruments_of_process(), trace.get_tracer("penstock"), controller)


@cache
def _instruments_of_process() -> Instruments:
    """Return the one set of instruments: each exists once, and observes all writers and readers."""
    from opentelemetry import metrics

    return Instruments(metrics.get_meter("penstock"))
