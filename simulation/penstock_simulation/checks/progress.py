"""`ProgressMonitor`: parts that can make progress do, although others are paused, and stay within their memory.

A log whose disk answers is written while long-term storage hangs. A connection is read again within a bound, however
long its appends cannot be taken, since reads and group state stand after them. What all connections hold stays within
one budget, however many they are. A connection that was forgotten in between goes, and what it holds with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tail_read_budget import TAIL_READ_BYTES
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.writer_budget import WRITER_BYTES
from penstock_simulation.simulated.host import Host

#: How long a log that can be written may write nothing of what it was given; many times a slow sync.
_LOG_S_MAX = 4.0
#: The same for a log in a bucket whose requests hang, get lost and are refused: each is repeated.
_BUCKET_LOG_S_MAX = 30.0
#: What a request may wait beyond `read_delay_s_max`: between two polls, and for a loop that is busy.
_READ_SLACK_S = 3.0
#: What a connection may stay beyond `dead_peers.timeout_s` after it was forgotten: its end is a turn of the process.
_END_SLACK_S = 3.0


class ProgressMonitor:
    """Remembers between checks since when a part makes no progress, for hosts that nothing holds up."""

    def __init__(self) -> None:
        #: By host and container: epoch and durable sequence number, and since when they are the same.
        self._logs: dict[tuple[str, int], tuple[tuple[int, int], float]] = {}
        #: By host, of connections that are not read although something has come: what was read, and since when.
        self._unread: dict[str, dict[int, tuple[int, float]]] = {}

    def observe(
        self, host: Host, store: SegmentStore, server: SegmentStoreServer | None, now_s: float
    ) -> Iterator[str]:
        """Inspect a store once. Yields what is wrong."""
        for container in store.containers:
            yield from self._observe_log(host, container, now_s)
        if server is not None:
            yield from self._observe_connections(host, server, now_s)
            yield from _observe_memory(server)

    def _observe_log(self, host: Host, container: SegmentContainer, now_s: float) -> Iterator[str]:
        slot = (host.name, container.id)
        pipeline = container.pipeline
        state = (container.log.epoch, pipeline.durable_sequence_number)
        before, since_s = self._logs.get(slot, (state, now_s))
        can_write = (
            container.status is ContainerStatus.RUNNING
            and container.failure is None
            and not host.is_held
            and host.disk.faults == host.disk_faults
            and host.stalls.until_s("/data/tier1/") is None
            and not container.space.is_log_low
        )
        if pipeline.is_all_durable or state != before or not can_write:
            since_s = now_s
        self._logs[slot] = (state, since_s)
        if now_s - since_s > (_BUCKET_LOG_S_MAX if isinstance(container.log, ObjectLog) else _LOG_S_MAX):
            yield (
                f"container {container.id}: its log has written nothing for {now_s - since_s:.0f} s, although its disk "
                "answers and there is something to write"
            )

    def _observe_connections(self, host: Host, server: SegmentStoreServer, now_s: float) -> Iterator[str]:
        before = self._unread.get(host.name, {})
        unread = self._unread[host.name] = {}
        settings = server.settings
        for connection in server.connections:
            forgotten_s = getattr(connection._transport, "forgotten_s", None)
            timeout_s = settings.dead_peers.timeout_s
            if forgotten_s is not None and not host.is_held and now_s > forgotten_s + timeout_s + _END_SLACK_S:
                yield (
                    f"a connection that was forgotten in between {now_s - forgotten_s:.0f} s ago is still there, with "
                    f"all that it holds: at most {timeout_s:g} s are allowed (dead_peers.timeout_s)"
                )
            if (
                connection._ingest.is_reading
                or connection.is_write_blocked
                or len(connection._tasks) >= settings.requests_max
                or host.is_held
            ):
                continue
            read, since_s = before.get(id(connection), (connection._ingest.received_bytes, now_s))
            if read != connection._ingest.received_bytes:
                since_s = now_s
            unread[id(connection)] = (connection._ingest.received_bytes, since_s)
            if now_s - since_s > settings.read_delay_s_max + _READ_SLACK_S:
                yield (
                    f"a connection was not read for {now_s - since_s:.0f} s: requests after its appends wait "
                    f"longer than {settings.read_delay_s_max:g} s (read_delay_s_max)"
                )


def _observe_memory(server: SegmentStoreServer) -> Iterator[str]:
    """Say when connections hold more than the budget for what comes in; each may be one read beyond its share."""
    held = [connection._ingest.outstanding_bytes + connection._ingest.frame_bytes for connection in server.connections]
    budget = server.budget
    if sum(held) != budget.used_bytes:
        yield f"connections hold {sum(held)} bytes, their budget counts {budget.used_bytes}"
    writer_count = sum(connection._appends._slots.count for connection in server.connections)
    if writer_count * WRITER_BYTES != server.writers.used_bytes:
        yield f"connections have {writer_count} writers, their budget counts {server.writers.used_bytes} bytes"
    tail_reads = [len(connection._reads._parked) * TAIL_READ_BYTES for connection in server.connections]
    if sum(tail_reads) != server.store.tail_reads.used_bytes:
        yield (
            f"reads of connections that wait at ends of segments take {sum(tail_reads)} bytes, their budget counts "
            f"{server.store.tail_reads.used_bytes}"
        )
    allowed = budget.bytes_max + server.receive_length * sum(map(bool, held))
    if sum(held) > allowed:
        yield (
            f"{len(held)} connections hold {sum(held)} bytes of what they sent, {budget.bytes_max} are allowed "
            f"(ingest_bytes_max) and a read of each beyond: {allowed}"
        )
