"""Serializers for writers and readers: ``client.event_writer(stream, serializer=JsonSerializer())``."""

from __future__ import annotations

from penstock.client.common.serializers import (
    ArrowSerializer,
    BytesSerializer,
    JsonSerializer,
    JsonValue,
    MsgspecSerializer,
    PydanticSerializer,
    Serializer,
    TextSerializer,
)
from penstock.traced_events import TracedEvent, TracedSerializer

__all__ = [
    "ArrowSerializer",
    "BytesSerializer",
    "JsonSerializer",
    "JsonValue",
    "MsgspecSerializer",
    "PydanticSerializer",
    "Serializer",
    "TextSerializer",
    "TracedEvent",
    "TracedSerializer",
]
