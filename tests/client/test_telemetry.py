"""OpenTelemetry: what a real SDK gets of a writer and a reader, and that nothing is imported without it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from penstock import aio
from penstock.client.common import telemetry
from penstock.client.common.telemetry import Telemetry
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
    mine = Telemetry(meters.get_meter("penstock"), tracers.get_tracer("penstock"))
    for module in ("writing.event_writer", "groups.reader", "transactions.transaction"):
        monkeypatch.setattr(f"penstock.client.{module}.telemetry_of_process", lambda: mine)

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


def labels(operation: str, destination: str, **more: str) -> frozenset[tuple[str, object]]:
    named = {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.destination.name": destination,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return frozenset(named.items())


async def test_a_real_sdk_gets_counts_durations_and_spans(penstock_server: MemoryServer, exported: Any) -> None:
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
    assert points["messaging.client.sent.messages", labels("send", "telemetry/orders")].value == 100
    consumed = labels("receive", "telemetry/orders", messaging__consumer__group__name="telemetry/audit")
    assert points["messaging.client.consumed.messages", consumed].value == 100
    assert points["messaging.client.operation.duration", labels("send", "telemetry/orders")].count >= 1
    assert points["messaging.client.operation.duration", labels("commit", "telemetry/audit")].count == 1
    names = [span.name for span in spans]
    assert {"send telemetry/orders", "receive telemetry/orders", "commit telemetry/audit"} == set(names)
    # None per event.
    assert len(names) < 20


async def test_a_failed_flush_is_an_error_of_the_operation(penstock_server: MemoryServer, exported: Any) -> None:
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream("telemetry/sealed")
        writer = await client.event_writer("telemetry/sealed")
        await client.seal_stream("telemetry/sealed")
        await writer.write(b"late")
        with pytest.raises(Exception, match="sealed"):
            await writer.flush()
        await writer.abandon()
    points, spans = exported()
    failed = labels("send", "telemetry/sealed", error__type="StreamSealedError")
    assert points["messaging.client.operation.duration", failed].count == 1
    (span,) = [span for span in spans if span.name == "send telemetry/sealed"]
    assert span.attributes["error.type"] == "StreamSealedError"
    assert not span.status.is_ok


async def test_ends_of_transactions_are_operations(penstock_server: MemoryServer, exported: Any) -> None:
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
        assert points["messaging.client.operation.duration", labels(end, "telemetry/payments")].count == 1, end
    (commit,) = [span for span in spans if span.name == "commit telemetry/payments"]
    sends = [span for span in spans if span.name == "send telemetry/payments"]
    assert commit.context.span_id in {span.parent.span_id for span in sends if span.parent is not None}


async def test_a_trace_continues_from_a_writer_to_a_reader(penstock_server: MemoryServer, exported: Any) -> None:
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
