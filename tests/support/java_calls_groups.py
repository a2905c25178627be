"""Calls of the Java client on reader groups: see `support.java_client`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic, sleep

from support.java_calls_streams import SCOPE, cut_offsets, factory, manager, text_serializer
from support.java_client import JavaObject, JavaSession, content_of

#: How long one ask for an event waits; readers of a group take turns.
READ_TIMEOUT_MS = 200
#: When nothing has come for so long there is no more: longer than the client takes to try again after a restart.
QUIET_S = 40.0
#: How long checkpoints and stream cuts may take; readers must continue meanwhile.
CUT_TIMEOUT_S = 30.0
#: A reader notices a reset of its group within this time.
RESET_TIMEOUT_S = 10.0


def _manager(java: JavaSession) -> JavaObject:
    return java.keep("group manager", lambda: java.java("admin.ReaderGroupManager").withScope(SCOPE, java.config))


def _group(java: JavaSession, group: str) -> JavaObject:
    return java.keep(f"group {group}", lambda: _manager(java).getReaderGroup(group))


def _configuration(
    java: JavaSession, streams: Mapping[str, tuple[str, str]], checkpoint_ms: int = 0, retention: str = "NONE"
) -> JavaObject:
    kind = java.java("stream.ReaderGroupConfig")
    builder = kind.builder().retentionType(getattr(kind.StreamDataRetention, retention))
    if checkpoint_ms:
        builder = builder.automaticCheckpointIntervalMillis(checkpoint_ms)
    else:
        builder = builder.disableAutomaticCheckpoints()
    builder = builder.groupRefreshTimeMillis(500)
    cuts = java.java("stream.StreamCut")
    for stream, texts in streams.items():
        first, last = (cuts.UNBOUNDED if text == "" else cuts.from_(text) for text in texts)
        builder = builder.stream(java.java("stream.Stream").of(SCOPE, stream), first, last)
    return builder.build()


def create_group(
    java: JavaSession, group: str, streams: Mapping[str, tuple[str, str]], checkpoint_ms: int = 0,
    retention: str = "NONE",
) -> bool:  # fmt: skip
    """Create a group over streams, each from a stream cut in text form to another (empty: unbounded).

    With checkpoints every so often, if `checkpoint_ms`: without any, its readers stay with sealed segments.
    `retention`: the name of its ``StreamDataRetention``. Returns whether it is new.
    """
    return bool(_manager(java).createReaderGroup(group, _configuration(java, streams, checkpoint_ms, retention)))


def publish_cut(java: JavaSession, group: str, stream: str, text: str) -> None:
    """Say that a group needs nothing of a stream before a cut in text form."""
    cuts = java.java("java.util.HashMap")()
    cuts.put(java.java("stream.Stream").of(SCOPE, stream), java.java("stream.StreamCut").from_(text))
    _group(java, group).updateRetentionStreamCut(cuts)


def group_exists(java: JavaSession, group: str) -> bool:
    """Return whether there is such a group."""
    try:
        _manager(java).getReaderGroup(group).close()
    except java.java("stream.ReaderGroupNotFoundException"):
        return False
    return True


def delete_group(java: JavaSession, group: str) -> None:
    """Delete a group."""
    if f"group {group}" in java.kept:
        java.close(f"group {group}")
    _manager(java).deleteReaderGroup(group)


def online_readers(java: JavaSession, group: str) -> list[str]:
    """Return the readers that the group knows."""
    return sorted(map(str, _group(java, group).getOnlineReaders()))


def _reader(java: JavaSession, group: str, name: str) -> JavaObject:
    configuration = java.java("stream.ReaderConfig").builder().build()
    return java.keep(
        f"reader {group} {name}",
        lambda: factory(java).createReader(name, group, text_serializer(java), configuration),
    )


def read_events(
    java: JavaSession, group: str, readers: Sequence[str], count: int, quiet_s: float = QUIET_S
) -> list[tuple[str, str]]:
    """Read `count` events, fewer when nothing comes for `quiet_s`, with readers taking turns; return (reader, event).

    In place of an event there may be "truncated", when a reader gets a truncation error, and "end", when the
    group has read everything it ever will. The readers stay for later calls. Says "begun" at a third.
    """
    made = [(name, _reader(java, group, name)) for name in readers]
    events: list[tuple[str, str]] = []
    latest = monotonic()
    is_begun = False
    while monotonic() - latest < quiet_s:
        for name, reader in made:
            # What has arrived is taken at once; then it is the next one's turn.
            for _ in range(50):
                try:
                    read = reader.readNextEvent(READ_TIMEOUT_MS)
                except java.java("stream.TruncatedDataException"):
                    events.append((name, "truncated"))
                    if len(events) >= count:
                        return events
                    continue
                event = read.getEvent()
                if event is None and read.isReadCompleted():
                    return [*events, (name, "end")]
                if event is None:
                    break
                latest = monotonic()
                events.append((name, str(event)))
                if not is_begun and len(events) >= count // 3:
                    is_begun = True
                    java.say("begun")
                if len(events) >= count:
                    return events
    return events


def read_pointers(java: JavaSession, group: str, reader: str, count: int) -> dict[bytes, str]:
    """Read `count` events; return them by the bytes of their pointers."""
    made = _reader(java, group, reader)
    events: dict[bytes, str] = {}
    deadline = monotonic() + QUIET_S
    while len(events) < count and monotonic() < deadline:
        read = made.readNextEvent(READ_TIMEOUT_MS)
        if read.getEvent() is not None:
            events[content_of(read.getEventPointer().toBytes())] = str(read.getEvent())
    return events


def fetch_events(java: JavaSession, pointers: Sequence[bytes]) -> list[str]:
    """Return the events of pointers."""
    wrap, decode = java.java("java.nio.ByteBuffer").wrap, java.java("stream.EventPointer").fromBytes
    fetch = manager(java).fetchEvent
    return [str(fetch(decode(wrap(pointer)), text_serializer(java)).get()) for pointer in pointers]


def close_readers(java: JavaSession, group: str, readers: Sequence[str]) -> None:
    """Close readers: the group knows how far they were."""
    for name in readers:
        java.close(f"reader {group} {name}")


def checkpoint(java: JavaSession, group: str, readers: Sequence[str], name: str) -> tuple[bytes, dict[str, str]]:
    """Make a checkpoint while readers continue; return its bytes, and its stream cuts as text by stream.

    Fails when an event comes meanwhile: there must be none to read.
    """
    made = [_reader(java, group, reader) for reader in readers]
    # Without an executor of ours, the group's only thread would wait for something that it has to do itself.
    executor = java.keep("executor", lambda: _Executor(java))
    wanted = _group(java, group).initiateCheckpoint(name, executor.service)
    seen: list[str] = []
    deadline = monotonic() + CUT_TIMEOUT_S
    while not wanted.isDone() and monotonic() < deadline:
        for reader in made:
            read = reader.readNextEvent(READ_TIMEOUT_MS)
            # At the end of everything the answer comes at once.
            sleep(0.02)
            assert read.getEvent() is None, f"unexpected event {read.getEvent()}"
            if read.isCheckpoint():
                seen.append(str(read.getCheckpointName()))
    done = wanted.getNow(None)
    assert done is not None, f"no checkpoint; the readers saw {seen}"
    # The last reader learns of it with its next read.
    for reader in made:
        assert reader.readNextEvent(READ_TIMEOUT_MS).getEvent() is None
    assert set(seen) == {name}
    cuts = {
        str(entry.getKey().getStreamName()): str(entry.getValue().asText()) for entry in _cuts_of(java, done).entrySet()
    }
    return content_of(done.toBytes()), cuts


def _cuts_of(java: JavaSession, made: JavaObject) -> JavaObject:
    """Return the stream cuts of a checkpoint, by way of a configuration that starts there."""
    builder = java.java("stream.ReaderGroupConfig").builder().startFromCheckpoint(made)
    return builder.build().getStartingStreamCuts()


def stream_cuts(java: JavaSession, group: str, readers: Sequence[str]) -> dict[str, tuple[str, dict[int, int]]]:
    """Generate stream cuts while readers continue; return text and offsets of each by stream."""
    made = [_reader(java, group, reader) for reader in readers]
    executor = java.keep("executor", lambda: _Executor(java))
    wanted = _group(java, group).generateStreamCuts(executor.service)
    deadline = monotonic() + CUT_TIMEOUT_S
    while not wanted.isDone() and monotonic() < deadline:
        for reader in made:
            assert reader.readNextEvent(READ_TIMEOUT_MS).getEvent() is None
    done = wanted.getNow(None)
    assert done is not None, "no stream cuts"
    return {
        str(entry.getKey().getStreamName()): (str(entry.getValue().asText()), cut_offsets(entry.getValue()))
        for entry in done.entrySet()
    }


class _Executor:
    """A Java executor that can be closed."""

    def __init__(self, java: JavaSession) -> None:
        self.service = java.java("java.util.concurrent.Executors").newSingleThreadScheduledExecutor()

    def close(self) -> None:
        """End its thread."""
        self.service.shutdownNow()


def reset_to_checkpoint(java: JavaSession, group: str, content: bytes) -> None:
    """Take the group back to a checkpoint, given by its bytes."""
    buffer = java.java("java.nio.ByteBuffer").wrap(content)
    made = java.java("stream.Checkpoint").fromBytes(buffer)
    builder = java.java("stream.ReaderGroupConfig").builder().disableAutomaticCheckpoints()
    builder = builder.groupRefreshTimeMillis(500)
    _group(java, group).resetReaderGroup(builder.startFromCheckpoint(made).build())


def reset_to_streams(java: JavaSession, group: str, streams: Mapping[str, tuple[str, str]]) -> None:
    """Give the group another configuration, see `create_group`."""
    _group(java, group).resetReaderGroup(_configuration(java, streams))


def must_begin_again(java: JavaSession, group: str, reader: str) -> bool:
    """Return whether a reader gets the error that its group was reset; it is closed then.

    This client reads the state of the group at most once per refresh interval (`groupRefreshTimeMillis`), so its first
    read after a reset may return an event as before.
    """
    deadline = monotonic() + RESET_TIMEOUT_S
    while monotonic() < deadline:
        try:
            _reader(java, group, reader).readNextEvent(READ_TIMEOUT_MS)
        except java.java("stream.ReinitializationRequiredException"):
            java.close(f"reader {group} {reader}")
            return True
    return False


def unread_bytes(java: JavaSession, group: str) -> int:
    """Return how many bytes the group has not read, as of its last checkpoint."""
    return int(_group(java, group).getMetrics().unreadBytes())
