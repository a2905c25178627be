"""`StoreMetrics`: the metrics of a segment store in this process."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.operations.metrics import Metrics
from penstock.segmentstore.container.activity.stream_totals import StreamTotal, StreamTotals
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore

#: The name under which all streams beyond the limit are counted. No stream has this name.
OTHER = "_other"


class StoreMetrics:
    """Collects the metrics of one store, from the beginning of its start.

    Args:
        store: the store.
        streams_max: streams that get series of their own, the first ones seen.
    """

    def __init__(self, store: SegmentStore, streams_max: int) -> None:
        self._store = store
        #: Serves the store; None: it does not listen yet.
        self.server: SegmentStoreServer | None = None
        self._sums = _StreamSums(streams_max)

    def collect(self, metrics: Metrics) -> None:
        """Add the present numbers."""
        if self.server is not None:
            _collect_server(metrics, self.server)
        self._collect_store(metrics)
        self._collect_objects(metrics)
        self._collect_containers(metrics)
        self._sums.update({container.id: container.activity_watch.totals for container in self._store.containers})
        for name, total in self._sums.by_stream.items():
            scope, _, stream = name.rpartition("/")
            metrics.counter(
                "stream_append_events_total", "Events appended to a stream.", total.event_count,
                scope=scope, stream=stream,
            )  # fmt: skip
            metrics.counter(
                "stream_append_bytes_total", "Bytes appended to a stream.", total.byte_count,
                scope=scope, stream=stream,
            )  # fmt: skip

    def _collect_store(self, metrics: Metrics) -> None:
        store = self._store
        cache = store.cache
        metrics.gauge("cache_used_bytes", "Bytes of segment data and indexes in memory.", cache.used_bytes)
        metrics.gauge("cache_limit_bytes", "Limit of these bytes.", cache.settings.bytes_max)
        metrics.gauge(
            "cache_unflushed_bytes", "Bytes in memory that long-term storage does not have.", cache.lacking_bytes
        )
        metrics.gauge(
            "storage_up", "Whether long-term storage works: 0 while it is away, full, or refuses flushes.",
            int(store.storage_problem is None),
        )  # fmt: skip
        metrics.gauge(
            "writes_blocked", "Whether users' writes wait or are refused for lack of space.",
            int(store.full_disk is not None),
        )  # fmt: skip

        requests = store.storage_requests
        for (verb, result), count in requests.counts.items():
            metrics.counter(
                "storage_requests_total", "Requests to long-term storage, by verb and result (ok, missing, error).",
                count, verb=verb, result=result,
            )  # fmt: skip
        for verb, durations in requests.durations.items():
            metrics.histogram(
                "storage_request_duration_seconds", "Time of a request to long-term storage.", durations, verb=verb
            )
        metrics.counter("storage_written_bytes_total", "Bytes written to chunks.", requests.written_bytes)
        metrics.counter("storage_read_bytes_total", "Bytes read from chunks.", requests.read_bytes)

    def _collect_objects(self, metrics: Metrics) -> None:
        for bucket, counts in self._store.runtime.object_requests.by_bucket.items():
            for kind, count in (
                ("write", counts.write_count), ("read", counts.read_count), ("delete", counts.delete_count),
            ):  # fmt: skip
                metrics.counter("object_requests_total", "Requests to a bucket.", count, bucket=bucket, kind=kind)
            metrics.counter("object_sent_bytes_total", "Bytes sent to a bucket.", counts.sent_bytes, bucket=bucket)
            metrics.counter(
                "object_received_bytes_total", "Bytes read from a bucket.", counts.received_bytes, bucket=bucket
            )

    def _collect_containers(self, metrics: Metrics) -> None:
        running = {container.id: container for container in self._store.containers}
        for container_id in self._store.assigned:
            if container_id in running:
                state = "running"
            else:
                state = "offline" if container_id in self._store.failures else "starting"
            for each in ("running", "starting", "offline"):
                metrics.gauge(
                    "container_state", "1 for the present state of a container, 0 for the others.",
                    int(each == state), container=container_id, state=each,
                )  # fmt: skip
        for container_id, container in running.items():
            statistics = container.activity_watch.statistics
            labels = {"container": container_id}
            metrics.counter("append_events_total", "Events appended.", statistics.event_count, **labels)
            metrics.counter("append_bytes_total", "Bytes appended.", statistics.byte_count, **labels)
            reads = container.reader
            metrics.counter("reads_total", "Reads of segments.", reads.read_count, **labels)
            metrics.counter("read_bytes_total", "Bytes read from segments.", reads.read_bytes, **labels)
            metrics.counter(
                "storage_reads_total", "Reads of bytes that were not in memory.", reads.storage_read_count, **labels
            )
            pipeline = container.pipeline
            metrics.histogram(
                "append_duration_seconds", "Time from the acceptance of an operation to its durability.",
                pipeline.operation_durations, **labels,
            )  # fmt: skip
            metrics.histogram(
                "log_sync_duration_seconds", "Time of one write to the log with its sync.",
                pipeline.sync_durations, **labels,
            )  # fmt: skip
            metrics.gauge(
                "log_unsynced_bytes", "Bytes accepted and not yet durable.", pipeline.outstanding_bytes, **labels
            )
            metrics.gauge(
                "log_bytes", "Length of the log; a start reads all of it.", container.checkpoints.log_bytes, **labels
            )
            metrics.gauge(
                "log_is_long", "Whether something prevents the truncation of the log.",
                int(container.log_rewriter.is_alarmed), **labels,
            )  # fmt: skip
            backlog = container.state.backlog
            metrics.gauge(
                "unflushed_bytes", "Appended bytes that long-term storage does not have.", backlog.byte_count, **labels
            )
            metrics.gauge(
                "unflushed_operations", "Operations that long-term storage does not have.",
                backlog.operation_count, **labels,
            )  # fmt: skip
            metrics.gauge(
                "held_appends", "Appends that wait because too much of their segment is not flushed.",
                container.quota.held_count, **labels,
            )  # fmt: skip
            metrics.gauge("active_segments", "Segments in memory.", len(container.state.metadata.by_name), **labels)


def _collect_server(metrics: Metrics, server: SegmentStoreServer) -> None:
    metrics.gauge("connections", "Connections of segment store clients.", len(server.connections))
    metrics.counter("connections_refused_total", "Connections refused because of the limit.", server.refused_count)
    metrics.gauge(
        "ingest_used_bytes", "Bytes of appends received and not yet durable, over all connections.",
        server.budget.used_bytes,
    )  # fmt: skip


class _StreamSums:
    """Sums of the totals of all containers, which survive the restart of a container. No sum falls."""

    def __init__(self, streams_max: int) -> None:
        self.by_stream: dict[str, StreamTotal] = {}
        self._streams_max = streams_max
        #: By container: the totals last read, and what of each stream was added to the sums.
        self._read: dict[int, tuple[StreamTotals, dict[str, tuple[int, int]]]] = {}

    def update(self, totals: Mapping[int, StreamTotals]) -> None:
        """Add what was appended since the last call."""
        for container_id, found in totals.items():
            source, added = self._read.get(container_id, (None, {}))
            if source is not found:
                added = {}  # The container was started again, and counts from 0.
            self._read[container_id] = (found, added)
            for name, total in [*found.by_stream.items(), (f"{OTHER}/{OTHER}", found.others)]:
                events, byte_count = added.get(name, (0, 0))
                if (total.event_count, total.byte_count) == (events, byte_count):
                    continue
                sums = self._sum_of(name)
                sums.event_count += total.event_count - events
                sums.byte_count += total.byte_count - byte_count
                added[name] = (total.event_count, total.byte_count)

    def _sum_of(self, name: str) -> StreamTotal:
        found = self.by_stream.get(name)
        if found is None:
            other = f"{OTHER}/{OTHER}"
            if name != other and len(self.by_stream) - (other in self.by_stream) >= self._streams_max:
                return self._sum_of(other)
            found = self.by_stream[name] = StreamTotal()
        return found
