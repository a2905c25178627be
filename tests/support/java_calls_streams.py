"""Calls of the Java client on scopes, streams, events and bytes: see `support.java_client`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic, sleep

from support.java_client import JavaObject, JavaSession

#: As `killed_cluster.VARIABLE`, whose module loads the servers, too.
_KILLED_CLUSTER = "PENSTOCK_TEST_CLUSTER"

SCOPE = "shop"
#: Long enough for a server that is killed and started again.
RETRY_COUNT = 60


def writer_config(java: JavaSession) -> JavaObject:
    """Return a writer's configuration that retries soon; the default waits 10 s at the fifth attempt."""
    builder = java.java("stream.EventWriterConfig").builder()
    builder = builder.initialBackoffMillis(50).backoffMultiple(2).maxBackoffMillis(500).retryAttempts(RETRY_COUNT)
    return builder.transactionTimeoutTime(60_000).enableLargeEvents(True).build()


def text_serializer(java: JavaSession) -> JavaObject:
    """Return the serializer of strings."""
    return java.java("stream.impl.UTF8StringSerializer")()


def factory(java: JavaSession) -> JavaObject:
    """Return the maker of event writers and readers."""
    return java.keep("events", lambda: java.java("EventStreamClientFactory").withScope(SCOPE, java.config))


def manager(java: JavaSession) -> JavaObject:
    """Return the stream manager."""
    return java.keep("manager", lambda: java.java("admin.StreamManager").create(java.config))


def stream_configuration(java: JavaSession, segment_count: int, tags: Sequence[str] = ()) -> JavaObject:
    """Return the configuration of a stream of so many segments."""
    scaling = java.java("stream.ScalingPolicy").fixed(segment_count)
    builder = java.java("stream.StreamConfiguration").builder().scalingPolicy(scaling)
    for tag in tags:
        builder = builder.tag(tag)
    return builder.build()


# Scopes and streams.


def create_scope(java: JavaSession) -> bool:
    """Create the scope; return whether it is new."""
    return bool(manager(java).createScope(SCOPE))


def create_stream(java: JavaSession, stream: str, segment_count: int, tags: Sequence[str] = ()) -> bool:
    """Create a stream; return whether it is new.

    If controllers are killed all the time, the client repeats a call whose answer was lost, and finds the stream.
    """
    is_repeated = _KILLED_CLUSTER in os.environ and not manager(java).checkStreamExists(SCOPE, stream)
    is_new = bool(manager(java).createStream(SCOPE, stream, stream_configuration(java, segment_count, tags)))
    return is_new or is_repeated


def update_stream(java: JavaSession, stream: str, segment_count: int, tags: Sequence[str] = ()) -> bool:
    """Replace a stream's configuration."""
    return bool(manager(java).updateStream(SCOPE, stream, stream_configuration(java, segment_count, tags)))


def seal_stream(java: JavaSession, stream: str) -> bool:
    """Seal a stream."""
    return bool(manager(java).sealStream(SCOPE, stream))


def delete_stream(java: JavaSession, stream: str) -> bool:
    """Delete a stream; return whether there was one."""
    return bool(manager(java).deleteStream(SCOPE, stream))


def delete_scope(java: JavaSession, is_recursive: bool) -> bool:
    """Delete the scope; return whether there was one."""
    return bool(manager(java).deleteScope(SCOPE, is_recursive))


def list_scopes(java: JavaSession) -> list[str]:
    """Return all scopes, sorted by name."""
    return sorted(map(str, manager(java).listScopes()))


def list_streams(java: JavaSession, tag: str) -> list[str]:
    """Return the scope's streams, those of a tag when it is not empty, sorted by name."""
    found = manager(java).listStreams(SCOPE, tag) if tag else manager(java).listStreams(SCOPE)
    return sorted(str(stream.getStreamName()) for stream in found)


def stream_tags(java: JavaSession, stream: str) -> list[str]:
    """Return a stream's tags in order."""
    return sorted(map(str, manager(java).getStreamTags(SCOPE, stream)))


def stream_info(java: JavaSession, stream: str) -> tuple[bool, dict[int, int], dict[int, int]]:
    """Return whether a stream is sealed, and head and tail: offsets by segment."""
    info = manager(java).fetchStreamInfo(SCOPE, stream).get()
    return bool(info.isSealed()), cut_offsets(info.getHeadStreamCut()), cut_offsets(info.getTailStreamCut())


def tail_cut(java: JavaSession, stream: str) -> str:
    """Return the stream cut at a stream's tail as text."""
    return str(manager(java).fetchStreamInfo(SCOPE, stream).get().getTailStreamCut().asText())


def truncate_stream(java: JavaSession, stream: str, cut: str) -> bool:
    """Truncate a stream at a stream cut in text form."""
    return bool(manager(java).truncateStream(SCOPE, stream, java.java("stream.StreamCut").from_(cut)))


def cut_offsets(cut: JavaObject) -> dict[int, int]:
    """Return offsets by segment."""
    positions = cut.asImpl().getPositions()
    return {int(entry.getKey().getSegmentId()): int(entry.getValue()) for entry in positions.entrySet()}


def exists(java: JavaSession, stream: str) -> tuple[bool, bool]:
    """Return whether the scope exists, and whether the stream does."""
    return bool(manager(java).checkScopeExists(SCOPE)), bool(manager(java).checkStreamExists(SCOPE, stream))


# Events.


def write_events(java: JavaSession, stream: str, first: int, last: int, key_count: int) -> None:
    """Write the events [first, last), ``key:number``, keys in turn, and wait until all are acknowledged.

    Says "begun" when a third was handed over; the events fly freely.
    """
    writer = factory(java).createEventWriter(stream, text_serializer(java), writer_config(java))
    results = []
    for number in range(first, last):
        key = f"key{number % key_count}"
        results.append(writer.writeEvent(key, f"{key}:{number}"))
        if number == first + (last - first) // 3:
            java.say("begun")
    writer.flush()
    for result in results:
        result.get()
    writer.close()


def write_events_for(java: JavaSession, stream: str, seconds: float, key_count: int) -> int:
    """Write events ``key:number`` one after the other for a time, about 50 a second; return how many."""
    writer = factory(java).createEventWriter(stream, text_serializer(java), writer_config(java))
    results: list[JavaObject] = []
    end_s = monotonic() + seconds
    while monotonic() < end_s:
        key = f"key{len(results) % key_count}"
        results.append(writer.writeEvent(key, f"{key}:{len(results)}"))
        sleep(0.02)
    writer.flush()
    for result in results:
        result.get()
    writer.close()
    return len(results)


def note_times(java: JavaSession, stream: str, count: int) -> None:
    """Write some events with different keys and note a time after each."""
    writer = factory(java).createEventWriter("noting", stream, text_serializer(java), writer_config(java))
    for number in range(count):
        writer.writeEvent(f"key{number}", f"event {number}").get()
        writer.noteTime(1000 * (number + 1))
    writer.close()


def write_large_events(java: JavaSession, stream: str, lengths: Sequence[int]) -> None:
    """Write events of these lengths with one key, see `large_event`. Says "begun 0" before the first, and so on."""
    import jpype

    serializer = java.java("stream.impl.ByteArraySerializer")()
    writer = factory(java).createEventWriter(stream, serializer, writer_config(java))
    for index, length in enumerate(lengths):
        content = jpype.JArray(jpype.JByte)(large_event(index, length))
        java.say(f"begun {index}")
        writer.writeEvent("key", content).get()
    writer.close()


def write_batch(java: JavaSession, stream: str, lengths: Sequence[int]) -> None:
    """Write events of these lengths with one key as one, all or nothing."""
    import jpype

    serializer = java.java("stream.impl.ByteArraySerializer")()
    writer = factory(java).createEventWriter(stream, serializer, writer_config(java))
    events = java.java("java.util.ArrayList")()
    for index, length in enumerate(lengths):
        events.add(jpype.JArray(jpype.JByte)(large_event(index, length)))
    java.say("begun")
    writer.writeEvents("key", events).get()
    writer.close()


def large_event(index: int, length: int) -> bytes:
    """Return content that shows any piece that is missing, doubled or misplaced."""
    unit = b"".join(number.to_bytes(4, "big") for number in range(index, index + 65_536))
    return (unit * (length // len(unit) + 1))[:length]


# Transactions.


def _transactional_writer(java: JavaSession, stream: str) -> JavaObject:
    return java.keep(
        f"transactions of {stream}",
        lambda: factory(java).createTransactionalEventWriter(
            "writer", stream, text_serializer(java), writer_config(java)
        ),
    )


def begin_transaction(java: JavaSession, stream: str, name: str) -> str:
    """Begin a transaction, keep it under `name` and return its id."""
    transaction = _transactional_writer(java, stream).beginTxn()
    java.kept[name] = transaction
    return str(transaction.getTxnId())


def find_transaction(java: JavaSession, stream: str, name: str, number: str) -> str:
    """Keep the transaction of an id under `name`, as a process does that restarts; return its state."""
    transaction = _transactional_writer(java, stream).getTxn(java.java("java.util.UUID").fromString(number))
    java.kept[name] = transaction
    return str(transaction.checkStatus())


def write_to_transaction(java: JavaSession, name: str, first: int, last: int, key_count: int) -> None:
    """Write the events [first, last) into a transaction and flush it."""
    transaction = java.kept[name]
    for number in range(first, last):
        key = f"key{number % key_count}"
        transaction.writeEvent(key, f"{key}:{number}")
    transaction.flush()


def commit_transaction(java: JavaSession, name: str) -> None:
    """Commit."""
    java.kept[name].commit()


def abort_transaction(java: JavaSession, name: str) -> None:
    """Abort."""
    java.kept[name].abort()


def transaction_status(java: JavaSession, name: str) -> str:
    """Return a transaction's state."""
    return str(java.kept[name].checkStatus())


def await_status(java: JavaSession, name: str, status: str) -> None:
    """Wait until a transaction has a state; it goes there through others."""
    transaction = java.kept[name]
    while str(transaction.checkStatus()) != status:
        java.java("java.lang.Thread").sleep(20)


def completed_transactions(java: JavaSession, stream: str) -> dict[str, str]:
    """Return the states of the latest transactions that have ended, by id."""
    found = manager(java).listCompletedTransactions(java.java("stream.Stream").of(SCOPE, stream))
    return {str(info.getTransactionId()): str(info.getTransactionStatus()) for info in found}


# Bytes.


def _bytes_factory(java: JavaSession) -> JavaObject:
    return java.keep("bytes", lambda: java.java("ByteStreamClientFactory").withScope(SCOPE, java.config))


def _byte_writer(java: JavaSession, stream: str) -> JavaObject:
    return java.keep(f"writer of {stream}", lambda: _bytes_factory(java).createByteStreamWriter(stream))


def _byte_reader(java: JavaSession, stream: str) -> JavaObject:
    return java.keep(f"reader of {stream}", lambda: _bytes_factory(java).createByteStreamReader(stream))


def write_bytes(java: JavaSession, stream: str, content: bytes, piece_length: int) -> None:
    """Write content in pieces and flush. Says "begun" when a third was handed over."""
    writer = _byte_writer(java, stream)
    is_begun = False
    for start in range(0, len(content), piece_length):
        writer.write(content[start : start + piece_length])
        if not is_begun and start >= len(content) // 3:
            is_begun = True
            java.say("begun")
    writer.flush()


def close_and_seal(java: JavaSession, stream: str) -> None:
    """Seal a byte stream through its writer."""
    java.kept.pop(f"writer of {stream}").closeAndSeal()


def bounds(java: JavaSession, stream: str) -> tuple[int, int, int, int]:
    """Return head and tail as the writer sees them, then as the reader does."""
    writer, reader = _byte_writer(java, stream), _byte_reader(java, stream)
    ends = (writer.fetchHeadOffset(), writer.fetchTailOffset(), reader.fetchHeadOffset(), reader.fetchTailOffset())
    head, tail, reader_head, reader_tail = map(int, ends)
    return head, tail, reader_head, reader_tail


def truncate_bytes(java: JavaSession, stream: str, offset: int) -> None:
    """Forget the bytes before `offset`."""
    _byte_writer(java, stream).truncateDataBefore(offset)


def seek(java: JavaSession, stream: str, offset: int) -> int:
    """Move the reader; return where it says it stands."""
    reader = _byte_reader(java, stream)
    reader.seekToOffset(offset)
    return int(reader.getOffset())


def read_bytes(java: JavaSession, stream: str, length: int) -> bytes:
    """Read `length` bytes from where the reader stands, fewer at the end of a sealed stream.

    Says "begun" when a third was read, and "at the tail" when there is no more yet.
    """
    import jpype

    reader = _byte_reader(java, stream)
    offset = reader.getOffset()
    parts = bytearray()
    is_begun = False
    buffer = jpype.JArray(jpype.JByte)(64 * 1024)
    while len(parts) < length:
        if parts and not reader.available() and len(parts) + offset == reader.fetchTailOffset():
            java.say("at the tail")
        count = int(reader.read(buffer, 0, min(len(buffer), length - len(parts))))
        if count < 0:
            break
        parts += memoryview(buffer).tobytes()[:count]
        if not is_begun and len(parts) >= length // 3:
            is_begun = True
            java.say("begun")
    return bytes(parts)


# Batches.


def read_batch(java: JavaSession, stream: str, begin: str, end: str) -> tuple[list[str], dict[int, tuple[int, int]]]:
    """Return all events between two stream cuts in text form (empty: head, tail), and the ranges by segment."""
    cuts = java.java("stream.StreamCut")
    first, last = (cuts.UNBOUNDED if text == "" else cuts.from_(text) for text in (begin, end))
    batches = java.keep("batches", lambda: java.java("BatchClientFactory").withScope(SCOPE, java.config))
    segments = batches.getSegments(java.java("stream.Stream").of(SCOPE, stream), first, last)
    events: list[str] = []
    ranges: dict[int, tuple[int, int]] = {}
    for found in segments.getIterator():
        ranges[int(found.getSegmentId())] = (int(found.getStartOffset()), int(found.getEndOffset()))
        iterator = batches.readSegment(found, text_serializer(java))
        events.extend(map(str, iterator))
        iterator.close()
    return events, ranges


def read_large_batch(java: JavaSession, stream: str) -> list[bytes]:
    """Return all events of a stream of one segment as bytes."""
    batches = java.keep("batches", lambda: java.java("BatchClientFactory").withScope(SCOPE, java.config))
    unbounded = java.java("stream.StreamCut").UNBOUNDED
    segments = batches.getSegments(java.java("stream.Stream").of(SCOPE, stream), unbounded, unbounded)
    (found,) = segments.getIterator()
    iterator = batches.readSegment(found, java.java("stream.impl.ByteArraySerializer")())
    events = [memoryview(event).tobytes() for event in iterator]
    iterator.close()
    return events
