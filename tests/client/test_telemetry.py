"""OpenTelemetry: what a real SDK gets of a writer and a reader, and that nothing is imported without it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from typing import Any

import pytest

from penstock import aio
from penstock.client.common import telemetry
from penstock.client.common.telemetry import Instruments, Telemetry
from penstock.client.transport.connection_pool import Purpose
from penstock.model.errors import SerializationError
from penstock.serializers import BytesSerializer, JsonSerializer, TracedEvent, TracedSerializer
from penstock.testing import MemoryServer

metrics_sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="needs opentelemetry-sdk")
trace_sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
trace = pytest.importorskip("opentelemetry.trace", reason="needs opentelemetry-api")


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what gives (metrics by name and attributes, spans) of this test, which has providers of its own."""
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters = metrics_sdk.MeterProvider([reader])
    tracers = trace_sdk.TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    instruments, tracer = Instruments(meters.get_meter("penstock")), tracers.get_tracer("penstock")

    def mine(controller: str) -> Telemetry:
        return Telemetry(instruments, tracer, controller)

    for module in ("writing.event_writer", "groups.reader", "transactions.transaction", "transport.connection_pool"):
        monkeypatch.setattr(f"penstock.client.{module}.telemetry_of_process", mine)

    def found() -> tuple[dict[Any, Any], list[Any]]:
        data = reader.get_metrics_data()
        assert data is not None
        points: dict[Any, Any] = {
            (metric.name, frozenset((point.attributes or {}).items())): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }
        return points, list(spans.get_finished_spans())

    yield found
    meters.shutdown()
    tracers.shutdown()


#: Operation -> its type, in the labels of durations.
KINDS = {"send": "send", "receive": "receive"}


class Labels:
    """Labels of reports about one cluster, which all have its address."""

    def __init__(self, uri: str) -> None:
        host, _, port = uri.partition("://")[2].rpartition(":")
        self.server = {"messaging.system": "penstock", "server.address": host, "server.port": int(port)}

    def of(self, operation: str, destination: str = "", **more: str) -> frozenset[tuple[str, object]]:
        """Return those of an operation."""
        named: dict[str, object] = {**self.server, "messaging.operation.name": operation}
        if destination:
            named["messaging.destination.name"] = destination
        named.update({name.replace("__", "."): value for name, value in more.items()})
        return frozenset(named.items())

    def duration(self, operation: str, destination: str = "", **more: str) -> frozenset[tuple[str, object]]:
        """Return those of the duration of an operation, which has a type as well."""
        return self.of(operation, destination, **more) | {
            ("messaging.operation.type", KINDS.get(operation, "settle"))
        }  # fmt: skip


@pytest.fixture
def labels(penstock_server: MemoryServer) -> Labels:
    return Labels(penstock_server.uri)


async def test_a_real_sdk_gets_counts_durations_and_spans(
    penstock_server: MemoryServer, exported: Any, labels: Labels
) -> None:
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/orders")
        async with client.event_writer("telemetry/orders") as writer:
            for number in range(100):
                await writer.write(b"%d" % number)
            await writer.flush()
        group = await client.reader_group("audit", ["telemetry/orders"], scope="telemetry")
        async with group.reader("one") as reader:
            count = 0
            while count < 100:
                batch = await reader.read_batch(timeout_s=60)
                assert batch is not None
                count += len(batch)
            await reader.commit()
    points, spans = exported()
    assert points["messaging.client.sent.messages", labels.of("send", "telemetry/orders")].value == 100
    consumed = labels.of("receive", "telemetry/orders", messaging__consumer__group__name="telemetry/audit")
    assert points["messaging.client.consumed.messages", consumed].value == 100
    assert points["messaging.client.operation.duration", labels.duration("send", "telemetry/orders")].count >= 1
    assert (
        points[
            "messaging.client.operation.duration",
            labels.duration("commit", messaging__consumer__group__name="telemetry/audit"),
        ].count
        == 1
    )
    waited = labels.duration("receive", "telemetry/orders", messaging__consumer__group__name="telemetry/audit")
    assert points["messaging.client.operation.duration", waited].count >= 1
    # The reader was closed with the last events: they were processed, too.
    processed = labels.of("process", "telemetry/orders", messaging__consumer__group__name="telemetry/audit")
    assert (
        points["messaging.process.duration", processed].count
        == points["messaging.client.operation.duration", waited].count
    )
    names = [span.name for span in spans]
    (sent,) = [span for span in spans if span.name == "send telemetry/orders"][:1]
    assert labels.server.items() <= sent.attributes.items()
    assert {"send telemetry/orders", "receive telemetry/orders", "commit telemetry/audit"} == set(names)
    # None per event.
    assert len(names) < 20


async def test_a_failed_flush_is_an_error_of_the_operation(
    penstock_server: MemoryServer, exported: Any, labels: Labels
) -> None:
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/sealed")
        writer = await client.event_writer("telemetry/sealed")
        await client.seal_stream("telemetry/sealed")
        await writer.write(b"late")
        with pytest.raises(Exception, match="sealed"):
            await writer.flush()
        await writer.abandon()
    points, spans = exported()
    failed = labels.duration("send", "telemetry/sealed", error__type="StreamSealedError")
    assert points["messaging.client.operation.duration", failed].count == 1
    (span,) = [span for span in spans if span.name == "send telemetry/sealed"]
    assert span.attributes["error.type"] == "StreamSealedError"
    assert not span.status.is_ok


async def test_a_real_sdk_gets_bytes_that_wait_in_writers_and_readers(
    penstock_server: MemoryServer, exported: Any, labels: Labels
) -> None:
    """Bytes of a writer fall to 0 when they are durable; the numbers of a writer end with it."""
    unacknowledged = (
        "penstock.client.unacknowledged_bytes",
        frozenset({**labels.server, "messaging.destination.name": "telemetry/waits"}.items()),
    )
    ahead = (
        "penstock.client.read_ahead_bytes",
        frozenset({**labels.server, "messaging.consumer.group.name": "telemetry/watch"}.items()),
    )
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/waits")
        async with client.event_writer("telemetry/waits") as writer:
            await writer.write(bytes(1000))
            points, _ = exported()
            assert points[unacknowledged].value == writer.unacknowledged_bytes > 1000
            await writer.flush()
            points, _ = exported()
            assert points[unacknowledged].value == 0
            for _ in range(3):
                await writer.write(bytes(1000))
        group = await client.reader_group("watch", ["telemetry/waits"], scope="telemetry")
        async with group.reader("one") as reader:
            assert await reader.read(timeout_s=60) is not None
            points, _ = exported()
            assert points[ahead].value == reader.read_ahead_bytes
    del writer, reader, group
    gc.collect()
    points, _ = exported()
    assert unacknowledged not in points
    assert ahead not in points


async def test_processing_that_raises_is_an_error(penstock_server: MemoryServer, exported: Any, labels: Labels) -> None:
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/raising")
        async with client.event_writer("telemetry/raising") as writer:
            await writer.write(b"1")
        group = await client.reader_group("raising", ["telemetry/raising"], scope="telemetry")

        async def process() -> None:
            async with group.reader("one") as reader:
                await reader.read(timeout_s=60)
                raise ValueError("not a number")

        with pytest.raises(ValueError, match="not a number"):
            await process()
    points, _ = exported()
    failed = labels.of(
        "process", "telemetry/raising", messaging__consumer__group__name="telemetry/raising", error__type="ValueError"
    )
    assert points["messaging.process.duration", failed].count == 1


async def test_a_connection_that_replaces_a_lost_one_is_counted(
    penstock_server: MemoryServer, exported: Any, labels: Labels
) -> None:
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/lost")
        async with client.event_writer("telemetry/lost") as writer:
            await writer.write(b"1")
            await writer.flush()
            assert not any(name == "penstock.client.reconnects" for name, _ in exported()[0])
            pool = client._open_pool()
            ((host, port, _), connection) = next(
                each for each in pool._connections.items() if each[0][2] is Purpose.APPEND
            )
            await connection.close()
            await writer.write(b"2")
            await writer.flush()
    points, _ = exported()
    place = frozenset({"messaging.system": "penstock", "server.address": host, "server.port": port}.items())
    assert points["penstock.client.reconnects", place].value == 1


async def test_ends_of_transactions_are_operations(
    penstock_server: MemoryServer, exported: Any, labels: Labels
) -> None:
    """The flush of a commit is inside it."""
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/payments")
        for end in ("commit", "abort"):
            transaction = await client.begin_transaction("telemetry/payments")
            await transaction.write(b"1")
            await getattr(transaction, end)()
        prepared = await client.begin_transaction("telemetry/payments")
        await client.abort_transaction("telemetry/payments", await prepared.prepare())
    points, spans = exported()
    for end in ("commit", "abort", "prepare"):
        assert points["messaging.client.operation.duration", labels.duration(end, "telemetry/payments")].count == 1, end
    (commit,) = [span for span in spans if span.name == "commit telemetry/payments"]
    sends = [span for span in spans if span.name == "send telemetry/payments"]
    assert commit.context.span_id in {span.parent.span_id for span in sends if span.parent is not None}


async def test_a_trace_continues_from_a_writer_to_a_reader(
    penstock_server: MemoryServer, exported: Any, labels: Labels
) -> None:
    """As a CloudEvent, with its content as JSON or as bytes."""
    tracer = trace_sdk.TracerProvider().get_tracer("shop")
    orders = TracedSerializer(JsonSerializer(), source="/shop", type="shop.order", content_type="application/json")
    raw = TracedSerializer(BytesSerializer(), source="/shop", type="shop.blob")
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/traced")
        with tracer.start_as_current_span("checkout") as span:
            async with client.event_writer("telemetry/traced") as writer:
                await writer.write(orders.serialize(TracedEvent({"total": 3})), routing_key="a")
                await writer.write(raw.serialize(TracedEvent(b"\xff\x00", id="7")), routing_key="a")
        async with client.batch("telemetry/traced") as batch:
            (part,) = batch.ranges
            first, second = [event.data async for event in batch.events(part)]
    order, blob = orders.deserialize(first), raw.deserialize(second)
    assert order.value == {"total": 3}
    assert blob == TracedEvent(b"\xff\x00", blob.trace, "7")
    written = json.loads(first)
    assert written["specversion"] == "1.0"
    assert (written["source"], written["type"], written["data"]) == ("/shop", "shop.order", {"total": 3})
    for event in (order, blob):
        found = trace.get_current_span(event.context()).get_span_context()
        assert (found.trace_id, found.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    # An event that is passed on keeps the trace of its writer.
    assert raw.deserialize(raw.serialize(blob)) == blob


@pytest.mark.parametrize(
    "data", [b"\xff", b"[]", b"{}", b'{"specversion":"1.0"}', b'{"specversion":"1.0","data_base64":"?"}']
)
def test_an_event_that_is_no_cloud_event_is_a_serialization_error(data: bytes) -> None:
    with pytest.raises(SerializationError):
        TracedSerializer(BytesSerializer(), source="/s", type="t").deserialize(data)


def test_opentelemetry_is_imported_only_if_the_application_imports_it() -> None:
    program = (
        "import sys; from penstock.client.common.telemetry import telemetry_of_process as made\n"
        "assert made() is None and 'opentelemetry' not in sys.modules\n"
        "import opentelemetry\nassert made() is not None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert telemetry.telemetry_of_process() is not None
