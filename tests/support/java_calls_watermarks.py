"""Calls of the Java client on times and watermarks: see `support.java_client`."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from support.java_calls_groups import READ_TIMEOUT_MS, _reader
from support.java_calls_streams import SCOPE, factory, text_serializer, writer_config
from support.java_client import JavaObject, JavaSession, content_of

WINDOW_TIMEOUT_S = 40.0


def _writer(java: JavaSession, stream: str, writer: str) -> JavaObject:
    return java.keep(
        f"writer {writer}",
        lambda: factory(java).createEventWriter(writer, stream, text_serializer(java), writer_config(java)),
    )


def write_and_note(java: JavaSession, stream: str, writer: str, events: Sequence[str], time: int) -> None:
    """Write events, each with itself as its key, then note a time. The writer stays for later calls."""
    made = _writer(java, stream, writer)
    for event in events:
        made.writeEvent(event, event).get()
    made.flush()
    made.noteTime(time)


def commit_with_time(java: JavaSession, stream: str, events: Sequence[str], time: int) -> None:
    """Write events in a transaction, and commit it with a time."""
    made = java.keep(
        "transactional",
        lambda: factory(java).createTransactionalEventWriter(
            "transactional", stream, text_serializer(java), writer_config(java)
        ),
    )
    transaction = made.beginTxn()
    for event in events:
        transaction.writeEvent(event, event)
    transaction.commit(time)


def _window(java: JavaSession, reader: JavaObject, stream: str) -> tuple[int | None, int | None]:
    window = reader.getCurrentTimeWindow(java.java("stream.Stream").of(SCOPE, stream))
    bounds = window.getLowerTimeBound(), window.getUpperTimeBound()
    lower, upper = (None if bound is None else int(bound) for bound in bounds)
    return lower, upper


def read_and_watch(
    java: JavaSession, group: str, name: str, stream: str, count: int, wanted: tuple[int | None, int | None]
) -> tuple[list[str], tuple[int | None, int | None]]:
    """Read `count` events, then wait for a time window; return the events, sorted, and the window.

    A reader learns of watermarks beside reading, so it continues to ask for an event.
    """
    reader = _reader(java, group, name)
    events: list[str] = []
    started = monotonic()
    while monotonic() - started < WINDOW_TIMEOUT_S:
        if len(events) < count or _window(java, reader, stream) != wanted:
            event = reader.readNextEvent(READ_TIMEOUT_MS).getEvent()
            if event is not None:
                events.append(str(event))
            continue
        break
    return sorted(events), _window(java, reader, stream)


def stored_again(java: JavaSession, watermark: bytes) -> tuple[bytes, int, int, dict[int, int]]:
    """Let Java's own class read a watermark, and write it again; return that, its times, and its stream cut."""
    import jpype

    buffer = jpype.JClass("java.nio.ByteBuffer").wrap(jpype.JArray(jpype.JByte)(watermark))
    read = java.java("io.pravega.shared.watermarks.Watermark").fromByteBuf(buffer)
    cut = {int(entry.getKey().getSegmentId()): int(entry.getValue()) for entry in read.getStreamCut().entrySet()}
    return content_of(read.toByteBuf()), int(read.getLowerTimeBound()), int(read.getUpperTimeBound()), cut
