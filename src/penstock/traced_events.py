"""`TracedSerializer`: events that have the trace of their writer with them, as CloudEvents in JSON.

Events have no headers, so a trace ends where an event is written. This serializer puts the content of an event and the
writer's trace context into one JSON object, which other programs can read as a CloudEvent with the Distributed Tracing
extension. It needs the extra ``otel``.

Source: CloudEvents 1.0.2, JSON event format; its Distributed Tracing extension; W3C Trace Context.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.common.serializers import Serializer
from penstock.model.errors import SerializationError, UnsupportedOperationError
from penstock.runtime.extras import missing_extra

if TYPE_CHECKING:
    from opentelemetry.context import Context

Value = TypeVar("Value")

JSON_TYPE = "application/json"
#: The attributes in which a trace context is kept.
_TRACE_FIELDS = ("traceparent", "tracestate")
_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class TracedEvent(Generic[Value]):
    """A value and the trace context of its writer.

    Attributes:
        value: the content.
        trace: ``traceparent`` and ``tracestate``. None: when it is written, those of the current span are taken.
        id: identifies the event among those of its source. Empty: when it is written, it gets a random one.
    """

    value: Value
    trace: Mapping[str, str] | None = None
    id: str = ""

    def context(self) -> Context:
        """Return the writer's context: the parent of spans that process the event, or a link of them."""
        from opentelemetry.propagate import extract

        return extract(dict(self.trace or {}))


class TracedSerializer(Generic[Value]):
    """See the module. A `Serializer` of `TracedEvent`.

    Args:
        inner: converts the values.
        source: identifies the writer, as a URI reference: ``/shop/checkout``.
        type: what happened: ``shop.order.placed``.
        content_type: of `inner`'s bytes. With ``application/json`` they are part of the object as JSON, else in base64.

    Raises `UnsupportedOperationError` without the extra ``otel``.
    """

    def __init__(
        self,
        inner: Serializer[Value],
        *,
        source: str,
        type: str,
        content_type: str = "application/octet-stream",
    ) -> None:
        self._inner = inner
        self._attributes = {
            "specversion": _VERSION,
            "source": source,
            "type": type,
            "datacontenttype": content_type,
        }
        self._is_json = content_type == JSON_TYPE
        try:
            from opentelemetry.propagate import inject
        except ImportError as error:
            raise UnsupportedOperationError(missing_extra("TracedSerializer", "otel", error)) from error
        self._inject: Callable[[dict[str, str]], None] = inject

    def serialize(self, value: TracedEvent[Value], /) -> bytes:
        """See `Serializer`."""
        if not isinstance(value, TracedEvent):
            raise SerializationError(f"TracedSerializer takes a TracedEvent, not {type(value).__name__}")
        trace: dict[str, str] = {}
        if value.trace is None:
            self._inject(trace)
        else:
            trace.update(value.trace)
        data = self._inner.serialize(value.value)
        content: dict[str, object] = {**self._attributes, "id": value.id or uuid.uuid4().hex}
        content |= {name: trace[name] for name in _TRACE_FIELDS if trace.get(name)}
        if self._is_json:
            try:
                content["data"] = json.loads(data)
            except ValueError as error:
                raise SerializationError(f"the content is not {JSON_TYPE}: {error}") from error
        else:
            content["data_base64"] = base64.b64encode(data).decode()
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()

    def deserialize(self, data: bytes, /) -> TracedEvent[Value]:
        """See `Serializer`."""
        try:
            content = json.loads(data)
        except ValueError as error:
            raise SerializationError(f"an event is not a CloudEvent in JSON: {error}") from error
        if not isinstance(content, dict) or content.get("specversion") != _VERSION:
            raise SerializationError(f"an event is not a CloudEvent of version {_VERSION}")
        trace = {name: content[name] for name in _TRACE_FIELDS if isinstance(content.get(name), str)}
        return TracedEvent(self._inner.deserialize(_data_of(content)), trace, str(content.get("id", "")))


def _data_of(content: Mapping[str, object]) -> bytes:
    """Return the bytes of the inner serializer. Raises `SerializationError`."""
    encoded = content.get("data_base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SerializationError(f"data_base64 of an event is not base64: {error}") from error
    if "data" not in content:
        raise SerializationError("a CloudEvent has neither data nor data_base64")
    return json.dumps(content["data"], ensure_ascii=False).encode()
