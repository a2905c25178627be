"""Calls of the Java client on revisioned streams and state synchronizers: see `support.java_client`."""

from __future__ import annotations

from support.java_calls_streams import SCOPE, text_serializer, writer_config
from support.java_client import JavaObject, JavaSession


def _factory(java: JavaSession) -> JavaObject:
    return java.keep("synchronizers", lambda: java.java("SynchronizerClientFactory").withScope(SCOPE, java.config))


def _configuration(java: JavaSession) -> JavaObject:
    return java.java("state.SynchronizerConfig").builder().eventWriterConfig(writer_config(java)).build()


# Revisioned streams.


def _revisioned(java: JavaSession, stream: str) -> JavaObject:
    return java.keep(
        f"revisioned {stream}",
        lambda: _factory(java).createRevisionedStreamClient(stream, text_serializer(java), _configuration(java)),
    )


def _revision(java: JavaSession, text: str) -> JavaObject:
    return java.java("state.Revision").fromString(text)


def ends(java: JavaSession, stream: str) -> tuple[str, str]:
    """Return the oldest and the latest revision, as text."""
    client = _revisioned(java, stream)
    return str(client.fetchOldestRevision()), str(client.fetchLatestRevision())


def write_conditionally(java: JavaSession, stream: str, latest: str, value: str) -> str:
    """Write if `latest` is the latest revision; return the new one, empty when it was not."""
    written = _revisioned(java, stream).writeConditionally(_revision(java, latest), value)
    return "" if written is None else str(written)


def write_unconditionally(java: JavaSession, stream: str, value: str) -> None:
    """Write unconditionally."""
    _revisioned(java, stream).writeUnconditionally(value)


def read_from(java: JavaSession, stream: str, revision: str) -> list[str]:
    """Return the values after a revision; or, as the only one, the class of the exception."""
    try:
        entries = _revisioned(java, stream).readFrom(_revision(java, revision))
        return [str(entry.getValue()) for entry in entries]
    except java.java("stream.TruncatedDataException") as error:
        return [str(error.getClass().getSimpleName())]


def truncate_to(java: JavaSession, stream: str, revision: str) -> None:
    """Forget everything before a revision."""
    _revisioned(java, stream).truncateToRevision(_revision(java, revision))


def mark(java: JavaSession, stream: str) -> str:
    """Return the mark, empty when there is none."""
    found = _revisioned(java, stream).getMark()
    return "" if found is None else str(found)


def set_mark(java: JavaSession, stream: str, expected: str, revision: str) -> bool:
    """Set the mark if it is the expected one; an empty string means none."""
    first, second = (_revision(java, text) if text else None for text in (expected, revision))
    return bool(_revisioned(java, stream).compareAndSetMark(first, second))


# State synchronizers.


def _counters(java: JavaSession, stream: str, name: str) -> JavaObject:
    from support.java_counters import Beginning, Serializer

    def make() -> JavaObject:
        made = _factory(java).createStateSynchronizer(stream, Serializer(), Serializer(), _configuration(java))
        made.initialize(Beginning({}))
        return made

    return java.keep(f"counters {stream} {name}", make)


def add(java: JavaSession, stream: str, name: str, count: int) -> list[int]:
    """Add 1 to the counter "all" `count` times, each time on the condition that the state has not changed.

    Returns the values that were replaced. Says "begun" at a third. `name` tells the synchronizers of one stream apart.
    """
    import jpype

    from support.java_counters import Addition

    synchronizer = _counters(java, stream, name)
    replaced: list[int] = []
    for index in range(count):
        seen: list[int] = []

        def generate(state: JavaObject, updates: JavaObject, seen: list[int] = seen) -> None:
            seen.append(state.values.get("all", 0))
            updates.add(Addition("all", 1))
            # Never conflicts with itself: one's own share.
            updates.add(Addition(name, 1))

        generator = jpype.JProxy("io.pravega.client.state.StateSynchronizer$UpdateGenerator", dict={"accept": generate})
        synchronizer.updateState(generator)
        replaced.append(seen[-1])
        if index == count // 3:
            java.say("begun")
    return replaced


def add_unconditionally(java: JavaSession, stream: str, name: str, amount: int) -> None:
    """Add to the counter "all", without a condition on the state."""
    import jpype

    from support.java_counters import Addition

    update = jpype.JObject(Addition("all", amount), java.java("state.Update"))
    _counters(java, stream, name).updateStateUnconditionally(update)


def counters(java: JavaSession, stream: str, name: str) -> dict[str, int]:
    """Return the newest state."""
    synchronizer = _counters(java, stream, name)
    synchronizer.fetchUpdates()
    return dict(synchronizer.getState().values)


def compact(java: JavaSession, stream: str, name: str) -> int:
    """Compact the stream to its state; return how many bytes were written since the last time."""
    import jpype

    from support.java_counters import Beginning

    synchronizer = _counters(java, stream, name)
    byte_count = int(synchronizer.bytesWrittenSinceCompaction())
    apply = jpype.JProxy("java.util.function.Function", dict={"apply": lambda state: Beginning(state.values)})
    synchronizer.compact(apply)
    return byte_count
