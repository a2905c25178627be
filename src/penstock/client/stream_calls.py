"""`StreamCalls`: the client's operations on scopes and streams, and its queries about the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.client.client_core import ClientCore
from penstock.client.controller.retention import RetentionExplanation
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.statistics.statistics import ClusterStatistics
from penstock.client.statistics.statistics_calls import Groups
from penstock.client.streams import creation
from penstock.client.streams.cut_checks import check_between_events
from penstock.client.streams.stream_history import StreamHistory, history_of
from penstock.client.streams.time_windows import cut_at_noted_time
from penstock.client.streams.times import cut_at_time
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import (
    SegmentId,
    check_new_scope_name,
    check_users_new_scope_name,
    check_users_new_stream_name,
    split_scoped_name,
)
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut
from penstock.model.times import NotedTime, Time, noted_time, time_ms


class StreamCalls(ClientCore):
    """The part of a `Client` that creates, changes and inspects scopes and streams."""

    async def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `ScopeExistsError`; `InvalidNameError`, also for a reserved name."""
        check_users_new_scope_name(scope)
        await self._controller_client.create_scope(scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        """Delete a scope. It must be empty, unless `recursive` deletes its streams, reader groups and tables, too.

        A recursive deletion continues when its caller gives up. From its start, nothing new can be created in the
        scope.

        Raises `NoSuchScopeError`, `ScopeNotEmptyError`.
        """
        await self._controller_client.delete_scope(scope, recursive=recursive)

    def scopes(self) -> AsyncIterator[str]:
        """Iterate over the names of all scopes."""
        return self._controller_client.scopes()

    async def create_stream(
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
        _check_policies(scaling, retention)
        scope, name = split_scoped_name(stream)
        check_new_scope_name(scope)
        check_users_new_stream_name(name)
        config = StreamConfig(
            scaling or Scaling.fixed(1), retention, tuple(tags), round(1000 * timestamp_aggregation_timeout_s),
            rollover_bytes,
        )  # fmt: skip
        config = config.checked()
        with self._deadline(f"create stream {stream}"):
            await creation.create_stream(self._controller_client, scope, name, config, exist_ok=exist_ok)

    async def update_stream(
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
        _check_policies(scaling, retention)
        scope, name = split_scoped_name(stream)
        with self._deadline(f"update stream {stream}"):
            old = await self._controller_client.stream_config(scope, name)
            config = StreamConfig(
                scaling or old.scaling,
                retention or old.retention,
                old.tags if tags is None else tuple(tags),
                old.timestamp_aggregation_timeout_ms
                if timestamp_aggregation_timeout_s is None
                else round(1000 * timestamp_aggregation_timeout_s),
                old.rollover_bytes,
            )
            await self._controller_client.update_stream(scope, name, config.checked())

    async def segments_of(self, stream: str) -> Sequence[SegmentRange]:
        """Return the segments that take events now, in order of key range; none for a sealed stream.

        Raises `NoSuchStreamError`.
        """
        return await self._controller_client.current_segments(*split_scoped_name(stream))

    async def history(self, stream: str, *, epoch_count_max: int = 100, before: int | None = None) -> StreamHistory:
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
        scope, name = split_scoped_name(stream)
        with self._deadline(f"read the history of stream {stream}"):
            return await history_of(
                self._controller_client, self._settings, scope, name, epoch_count_max=epoch_count_max, before=before
            )

    async def scale_stream(
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
        scope, name = split_scoped_name(stream)
        await self._controller_client.scale_stream(
            scope, name, seal=[SegmentId(segment) for segment in seal], key_ranges=key_ranges, timeout_s=timeout_s
        )

    async def seal_stream(self, stream: str) -> None:
        """Seal a stream: it takes no more events. Open transactions are aborted.

        Raises `NoSuchStreamError`; `TransactionPreparedError` while a prepared transaction waits for its decision.
        """
        await self._controller_client.seal_stream(*split_scoped_name(stream))

    async def delete_stream(self, stream: str) -> None:
        """Delete a sealed stream and its data. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        await self._controller_client.delete_stream(*split_scoped_name(stream))

    async def truncate_stream(self, cut: StreamCut, *, at_any_byte: bool = False) -> None:
        """Delete the events of a stream before `cut`.

        `at_any_byte`: the stream holds raw bytes, not events, so the cut may be at any byte.

        Raises `NoSuchStreamError`, `MetadataConflictError`; `InvalidArgumentError` if the cut lies inside an event.
        """
        if not at_any_byte:
            with self._deadline(f"check where to truncate stream {cut.scope}/{cut.stream}"):
                await check_between_events(self._open_cluster(), cut)
        await self._controller_client.truncate_stream(cut)

    async def streams(
        self, scope: str, *, tag: str | None = None, includes_internal: bool = False
    ) -> AsyncIterator[str]:
        """Iterate over the names of the streams of `scope`, all or those with `tag`. Raises `NoSuchScopeError`.

        The system's own streams, whose names begin with ``_`` (watermarks of streams, state of reader groups), are
        omitted unless `includes_internal`.
        """
        async for stream in self._controller_client.streams(scope, tag=tag):
            if includes_internal or not stream.startswith("_"):
                yield stream

    async def stream_exists(self, stream: str) -> bool:
        """Return whether a stream exists."""
        return await self._controller_client.stream_exists(*split_scoped_name(stream))

    async def stream_config(self, stream: str) -> StreamConfig:
        """Return a stream's policies and tags. Raises `NoSuchStreamError`."""
        return await self._controller_client.stream_config(*split_scoped_name(stream))

    async def stream_identity(self, stream: str) -> str | None:
        """Return the identity of the stream that has this name now: an opaque text to store and to compare.

        The identity is constant for the stream's lifetime: through scales, updates, truncations, seals and restarts of
        servers. A stream that is deleted and created again under the same name has a new identity. A program that
        stores positions can thus detect that they belong to a stream that no longer exists. Streams of earlier releases
        have an identity too.

        Returns None if the controller has no identities: it is Pravega's own, or of an earlier release. Raises
        `NoSuchStreamError`.
        """
        return await self._controller_client.stream_identity(*split_scoped_name(stream))

    async def explain_retention(self, stream: str) -> RetentionExplanation:
        """Return what the controller's next retention pass would truncate from a stream by its policy, and why.

        Raises `NoSuchStreamError`; `UnsupportedOperationError` if the controller is not Penstock's.
        """
        scope, name = split_scoped_name(stream)
        with self._deadline(f"explain what is kept of stream {stream}"):
            return await self._controller_client.explain_retention(scope, name)

    async def head(self, stream: str) -> StreamCut:
        """Return the cut of the oldest events that still exist. Raises `NoSuchStreamError`."""
        return await self._open_cluster().head(stream)

    async def tail(self, stream: str, *, whole_transactions: bool = False) -> StreamCut:
        """Return a cut after everything acknowledged so far. Raises `NoSuchStreamError`.

        A transaction is merged segment by segment, so the cut may lie in the middle of one that is being committed.
        With `whole_transactions`, each transaction lies entirely before or entirely after the cut: the controller
        computes the cut after the commits in progress have ended. A transaction whose commit was decided just now may
        lie after it.

        With `whole_transactions` it also raises `UnsupportedOperationError` if the controller is not Penstock's, and
        `ControllerUnavailableError` if the commits do not end within `retry_time_max_s`.
        """
        if whole_transactions:
            return await self._open_cluster().whole_tail(stream)
        return await self._open_cluster().tail(stream)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """Return start, length and state of a segment, given by its full name. Raises `NoSuchSegmentError`."""
        return await self._segment_client.segment_info(segment)

    async def successors(self, stream: str, segment: int) -> dict[int, Sequence[int]]:
        """Return the segments that follow a sealed one (by its id), each with all segments that it replaces.

        An empty result: the stream ends there. A successor may be read once all segments that it replaces are read to
        their end.
        """
        scope, name = split_scoped_name(stream)
        following = await self._controller_client.successors(scope, name, SegmentId(segment))
        return {int(each.segment.segment_id): each.predecessors for each in following}

    async def cut_at_time(self, stream: str, time: Time, *, is_end: bool = False) -> StreamCut:
        """Return a cut of a stream such that no event before it was stored at `time` or later.

        With `is_end`, no event after the cut was stored before `time`. Stores record the time of about every MiB of a
        segment, and of its last change. The cut therefore lies up to that much earlier than the time, with `is_end`
        later. Times are those of the segment stores' clocks; an event of a transaction has the time of the commit.

        Raises `NoSuchStreamError`; `InvalidArgumentError` for a time without a zone, or one in the future.
        """
        return await cut_at_time(self._open_cluster(), stream, time_ms(time, "time"), is_end=is_end)

    async def cut_at_noted_time(self, stream: str, time: NotedTime) -> StreamCut | None:
        """Return a cut of a stream such that no event after it was noted by a writer as of `time` or before.

        The cut is that of the first watermark of that time; None if there is none yet because some writer has not
        reached that time. Newer events may lie before the cut. Times are those of `EventWriter.note_time`. Watermarks
        are read from the oldest on: about ten bytes for each, and 40 for each segment.
        """
        return await cut_at_noted_time(self._open_cluster(), stream, noted_time(time))

    # -- administration of the cluster ------------------------------------------------------------------------------

    async def statistics(self, since: ClusterStatistics | None = None, *, groups: Groups = ()) -> ClusterStatistics:
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
        self._open_cluster()
        return await self._statistics_calls.ask(since, groups)


def _check_policies(scaling: object, retention: object) -> None:
    """Raise `InvalidArgumentError` for a value that is not a policy, and name the call that makes one."""
    if scaling is not None and not isinstance(scaling, Scaling):
        segment_count = scaling if isinstance(scaling, int) and not isinstance(scaling, bool) else 4
        raise InvalidArgumentError(
            f"scaling={scaling!r}: give a Scaling, as Scaling.fixed({segment_count}) for that many segments, "
            "Scaling.by_event_rate(1000) or Scaling.by_data_rate(1000)"
        )
    if retention is not None and not isinstance(retention, Retention):
        raise InvalidArgumentError(
            f"retention={retention!r}: give a Retention, as Retention.by_time(days=7) or Retention.by_size(10**9)"
        )
