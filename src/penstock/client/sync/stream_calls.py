"""The blocking `StreamCalls`. Generated from `penstock.client.stream_calls`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.client.controller.retention import RetentionExplanation
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.statistics.statistics import ClusterStatistics
from penstock.client.statistics.statistics_calls import Groups
from penstock.client.streams.stream_history import StreamHistory
from penstock.client.sync.client_core import ClientCore
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut
from penstock.model.times import NotedTime, Time


class StreamCalls(ClientCore):
    """The part of a `Client` that creates, changes and inspects scopes and streams."""

    def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `ScopeExistsError`; `InvalidNameError`, also for a reserved name."""
        self._portal.call(self._part.create_scope(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        """Delete a scope. It must be empty, unless `recursive` deletes its streams, reader groups and tables, too.

        A recursive deletion continues when its caller gives up. From its start, nothing new can be created in the
        scope.

        Raises `NoSuchScopeError`, `ScopeNotEmptyError`.
        """
        self._portal.call(self._part.delete_scope(scope, recursive=recursive))

    def scopes(self) -> Iterator[str]:
        """Iterate over the names of all scopes."""
        return self._portal.iterate(self._part.scopes())

    def create_stream(
        self,
        stream: str,
        *,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] = (),
        rollover_bytes: int = 0,
        timestamp_aggregation_timeout_s: float = 0.0,
        exist_ok: bool = False,
    ) -> None:
        """Create a stream, and its scope if it is missing. The default is one segment with unlimited retention.

        `timestamp_aggregation_timeout_s`: how long, in seconds, the stream's watermarks wait for a writer
        that notes times and falls behind; see `EventWriter.note_time`.

        Raises `StreamExistsError` unless `exist_ok`; the policies of an existing stream are not compared. Raises
        `InvalidNameError`, also for a reserved name: names that begin with ``_`` belong to the system.
        """
        self._portal.call(self._part.create_stream(
            stream,
            scaling=scaling,
            retention=retention,
            tags=tags,
            rollover_bytes=rollover_bytes,
            timestamp_aggregation_timeout_s=timestamp_aggregation_timeout_s,
            exist_ok=exist_ok,
        ))

    def update_stream(
        self,
        stream: str,
        *,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] | None = None,
        timestamp_aggregation_timeout_s: float | None = None,
    ) -> None:
        """Change a stream's policies or tags; None keeps one. Raises `NoSuchStreamError`, `StreamSealedError`.

        To drop a retention policy, use `penstock.aio`, whose `Client.controller` takes a whole `StreamConfig`.
        """
        self._portal.call(self._part.update_stream(
            stream,
            scaling=scaling,
            retention=retention,
            tags=tags,
            timestamp_aggregation_timeout_s=timestamp_aggregation_timeout_s,
        ))

    def segments_of(self, stream: str) -> Sequence[SegmentRange]:
        """Return the segments that take events now, in order of key range; none for a sealed stream.

        Raises `NoSuchStreamError`.
        """
        return self._portal.call(self._part.segments_of(stream))

    def history(self, stream: str, *, epoch_count_max: int = 100, before: int | None = None) -> StreamHistory:
        """Return the segments of a stream's latest epochs, up to `epoch_count_max` of them.

        Args:
            stream: ``scope/stream``.
            epoch_count_max: limits the number of epochs; each epoch costs one request.
            before: return only epochs with a smaller number. To page back, give the number of the first epoch of the
                last result.

        The result does not contain the time at which an epoch began. Events of an epoch's segments may be truncated
        since.

        Raises `NoSuchStreamError`; `InvalidArgumentError` if no epoch is requested.
        """
        return self._portal.call(self._part.history(stream, epoch_count_max=epoch_count_max, before=before))

    def scale_stream(
        self, stream: str, *, seal: Sequence[int], key_ranges: Sequence[tuple[float, float]], timeout_s: float = 60.0
    ) -> None:
        """Replace the segments `seal`, given by id, with one new segment per key range, and wait until that is done.

        Ranges are (low, high) with 0.0 <= low < high <= 1.0; together they cover the ranges of the segments they
        replace. To get a given number of equal segments, set `Scaling.fixed` with `update_stream`. Writers and readers
        follow automatically, and events of one routing key stay in order.

        Raises `NoSuchStreamError`; `InvalidArgumentError` or `MetadataConflictError` for ranges that do not fit, or
        while another scale is in progress; `OutcomeUnknownError` if it is not done within `timeout_s` seconds: the
        scale continues.
        """
        self._portal.call(self._part.scale_stream(
            stream, seal=seal, key_ranges=key_ranges, timeout_s=timeout_s
        ))

    def seal_stream(self, stream: str) -> None:
        """Seal a stream: it takes no more events. Open transactions are aborted.

        Raises `NoSuchStreamError`; `TransactionPreparedError` while a prepared transaction waits for its decision.
        """
        self._portal.call(self._part.seal_stream(stream))

    def delete_stream(self, stream: str) -> None:
        """Delete a sealed stream and its data. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        self._portal.call(self._part.delete_stream(stream))

    def truncate_stream(self, cut: StreamCut, *, at_any_byte: bool = False) -> None:
        """Delete the events of a stream before `cut`.

        `at_any_byte`: the stream holds raw bytes, not events, so the cut may be at any byte.

        Raises `NoSuchStreamError`, `MetadataConflictError`; `InvalidArgumentError` if the cut lies inside an event.
        """
        self._portal.call(self._part.truncate_stream(cut, at_any_byte=at_any_byte))

    def streams(self, scope: str, *, tag: str | None = None, includes_internal: bool = False) -> Iterator[str]:
        """Iterate over the names of the streams of `scope`, all or those with `tag`. Raises `NoSuchScopeError`.

        The system's own streams, whose names begin with ``_`` (watermarks of streams, state of reader groups), are
        omitted unless `includes_internal`.
        """
        return self._portal.iterate(self._part.streams(scope, tag=tag, includes_internal=includes_internal))

    def stream_exists(self, stream: str) -> bool:
        """Return whether a stream exists."""
        return self._portal.call(self._part.stream_exists(stream))

    def stream_config(self, stream: str) -> StreamConfig:
        """Return a stream's policies and tags. Raises `NoSuchStreamError`."""
        return self._portal.call(self._part.stream_config(stream))

    def stream_identity(self, stream: str) -> str | None:
        """Return the identity of the stream that has this name now: an opaque text to store and to compare.

        The identity is constant for the stream's lifetime: through scales, updates, truncations, seals and restarts of
        servers. A stream that is deleted and created again under the same name has a new identity. A program that
        stores positions can thus detect that they belong to a stream that no longer exists. Streams of earlier releases
        have an identity too.

        Returns None if the controller has no identities: it is Pravega's own, or of an earlier release. Raises
        `NoSuchStreamError`.
        """
        return self._portal.call(self._part.stream_identity(stream))

    def explain_retention(self, stream: str) -> RetentionExplanation:
        """Return what the controller's next retention pass would truncate from a stream by its policy, and why.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` if the controller is not Penstock's.
        """
        return self._portal.call(self._part.explain_retention(stream))

    def head(self, stream: str) -> StreamCut:
        """Return the cut of the oldest events that still exist. Raises `NoSuchStreamError`."""
        return self._portal.call(self._part.head(stream))

    def tail(self, stream: str, *, whole_transactions: bool = False) -> StreamCut:
        """Return a cut after everything acknowledged so far. Raises `NoSuchStreamError`.

        A transaction is merged segment by segment, so the cut may lie in the middle of one that is being committed.
        With `whole_transactions`, each transaction lies entirely before or entirely after the cut: the controller
        computes the cut after the commits in progress have ended. A transaction whose commit was decided just now may
        lie after it.

        With `whole_transactions` it also raises `UnsupportedOperationError` if the controller is not Penstock's, and
        `ControllerUnavailableError` if the commits do not end within `retry_time_max_s`.
        """
        return self._portal.call(self._part.tail(stream, whole_transactions=whole_transactions))

    def segment_info(self, segment: str) -> SegmentInfo:
        """Return start, length and state of a segment, given by its full name. Raises `NoSuchSegmentError`."""
        return self._portal.call(self._part.segment_info(segment))

    def successors(self, stream: str, segment: int) -> dict[int, Sequence[int]]:
        """Return the segments that follow a sealed one (by its id), each with all segments that it replaces.

        An empty result: the stream ends there. A successor may be read once all segments that it replaces are read to
        their end.
        """
        return self._portal.call(self._part.successors(stream, segment))

    def cut_at_time(self, stream: str, time: Time, *, is_end: bool = False) -> StreamCut:
        """Return a cut of a stream such that no event before it was stored at `time` or later.

        With `is_end`, no event after the cut was stored before `time`. Stores record the time of about every MiB of a
        segment, and of its last change. The cut therefore lies up to that much earlier than the time, with `is_end`
        later. Times are those of the segment stores' clocks; an event of a transaction has the time of the commit.

        Raises `NoSuchStreamError`; `InvalidArgumentError` for a time without a zone, or one in the future.
        """
        return self._portal.call(self._part.cut_at_time(stream, time, is_end=is_end))

    def cut_at_noted_time(self, stream: str, time: NotedTime) -> StreamCut | None:
        """Return a cut of a stream such that no event after it was noted by a writer as of `time` or before.

        The cut is that of the first watermark of that time; None if there is none yet because some writer has not
        reached that time. Newer events may lie before the cut. Times are those of `EventWriter.note_time`. Watermarks
        are read from the oldest on: about ten bytes for each, and 40 for each segment.
        """
        return self._portal.call(self._part.cut_at_noted_time(stream, time))

    def statistics(self, since: ClusterStatistics | None = None, *, groups: Groups = ()) -> ClusterStatistics:
        """Return the cluster's state: loads of segments, streams and containers, memory, cache, log, backlog.

        Cheap enough to call every second: pass the last result as `since`, and only changes are requested.

        Args:
            since: an earlier result, of this cluster. Rates then cover the time since it, otherwise the last second.
            groups: reader groups, ``scope/group`` each, whose lag to include; or "all".

        A segment store that does not reply within `statistics_timeout_s` is included with its problem, and its
        containers are missing; the rest is complete.

        Raises:
            NoSuchReaderGroupError: one of `groups` does not exist.
            ControllerUnavailableError: the controller, which locates the stores, cannot be reached.
        """
        return self._portal.call(self._part.statistics(since, groups=groups))
