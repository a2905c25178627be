"""`ControllerService`: the controller without a protocol around it.

Calls take and return values of the domain and raise the errors of `penstock.model.errors`; gRPC and REST translate.
All state is in the metadata store: a controller that starts finishes what one before it has begun.

Source: controller API specification, section 9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, assert_never

from penstock.controller import epochs as history
from penstock.controller.background_work import BackgroundWork
from penstock.controller.errors import HalfCreatedStreamError
from penstock.controller.key_value_tables import KeyValueTables
from penstock.controller.locator import ContainerLocator, endpoint_of_segment
from penstock.controller.locks import StreamLocks
from penstock.controller.mark_streams import MarkStreams, marked_stream
from penstock.controller.metadata import layout
from penstock.controller.metadata.catalog import Catalog, NamePage
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.records import EpochRecord, EpochTransition, ScaleOrder, SegmentRecord, StreamState
from penstock.controller.metadata.scope_records import (
    ChildKind,
    ChildWorkKind,
    KeyValueTableRecord,
    ReaderGroupRecord,
)
from penstock.controller.metadata.scoped_records import ScopedRecords
from penstock.controller.metadata.store import MetadataStore
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_numbers import TransactionNumbers
from penstock.controller.metadata.typed import Tables
from penstock.controller.metadata.work_index import WorkIndex
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.transactions.creations import Creations
from penstock.controller.transactions.service import Transactions
from penstock.controller.workflow_runner import Subject, WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import create_stream
from penstock.controller.workflows.delete_stream import delete_stream
from penstock.controller.workflows.scale_stream import ScaleStatus, begin_scale, pending_scale, scale_status
from penstock.controller.workflows.seal_stream import seal_stream
from penstock.controller.workflows.truncate_stream import truncate_stream
from penstock.controller.workflows.update_stream import update_stream
from penstock.controller.writer_marks import WriterMarks
from penstock.model.errors import (
    ContainerNotFoundError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    ScopeExistsError,
    ScopeNotEmptyError,
)
from penstock.model.names import SYSTEM_SCOPE, check_scope_name, check_stream_name, segment_epoch, segment_name
from penstock.model.policies import ScalingKind, StreamConfig
from penstock.model.routing import container_of
from penstock.model.segments import Segments
from penstock.runtime.runtime import Runtime

T = TypeVar("T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A segment and an offset in bytes in it."""

    segment: int
    offset: int


class ControllerService:
    """Scopes, streams and transactions. Start it before the first call; see the module."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        segments: Segments,
        locator: ContainerLocator,
        runtime: Runtime,
        settings: ControllerSettings | None = None,
    ) -> None:
        self.settings: ControllerSettings = settings or ControllerSettings()
        self._tables = Tables(metadata)
        self._locator = locator
        self._locks = StreamLocks()
        self._tasks = BackgroundTasks()
        self._catalog = Catalog(self._tables, self.settings)
        self._context = WorkflowContext(
            catalog=self._catalog,
            groups=ScopedRecords(self._tables, self._catalog, ReaderGroupRecord, layout.reader_groups_in_scope),
            tables=ScopedRecords(
                self._tables, self._catalog, KeyValueTableRecord, layout.key_value_tables_in_scope
            ),
            completed=CompletedTransactions(self._tables, runtime, self.settings),
            index=WorkIndex(self._tables, self.settings),
            segments=SegmentRequests(segments, self.settings, locator.container_count),
            locks=self._locks,
            runtime=runtime,
            settings=self.settings,
            creations=Creations(),
        )
        background = BackgroundWork(self._tasks, self.settings)
        self._runner = WorkflowRunner(self._context, background)
        self.reader_groups: ReaderGroups = ReaderGroups(self._context, self._runner)
        self.writer_marks: WriterMarks = WriterMarks(self._context)
        self._mark_streams = MarkStreams(self._context, self._runner)
        self.key_value_tables: KeyValueTables = KeyValueTables(self._context, self._runner)
        numbers = TransactionNumbers(self._tables, self.settings)
        self.transactions: Transactions = Transactions(self._context, numbers, self._runner, background)

    # Life.

    async def start(self) -> None:
        """Create the system tables if they are missing, then begin to finish what an earlier controller left.

        Returns when calls can be served. The unfinished work goes on in the background (`idle` waits for it).
        """
        for table in layout.SYSTEM_TABLES:
            await self._tables.store.create_table(table)
        starts = TransactionNumbers(self._tables, self.settings, counter=layout.CONTROLLERS, range_count=1)
        # Sorts behind the names of all controllers before this one: see `Announcements`.
        self._context.index.host = f"{await starts.next():016x}-{self._context.runtime.random_id().hex()}"
        if await self._catalog.scope_exists(SYSTEM_SCOPE):
            # Only its own tables may be missing, after a crash in the first start: nothing has to wait for them.
            self._tasks.start(f"repair of scope {SYSTEM_SCOPE}", self._complete_system_scope())
        else:
            await self._complete_system_scope()
        async for scope, stream in self._context.index.pending():
            self._runner.finish_later(self._runner.stream(scope, stream))
        async for kind, scope, name in self._context.index.pending_children():
            self._recover_child(kind, scope, name)
        self.transactions.work.take_over()

    async def _complete_system_scope(self) -> None:
        try:
            await self._catalog.create_scope(SYSTEM_SCOPE, self._context.new_id())
        except ScopeExistsError:
            pass

    def _recover_child(self, kind: ChildKind, scope: str, name: str) -> None:
        match kind:
            case ChildKind.GROUP:
                self.reader_groups.recover(scope, name)
            case ChildKind.TABLE:
                self.key_value_tables.recover(scope, name)
            case ChildKind.SCOPE:
                self._runner.finish_later(self._closed_scope(scope))
            case _:
                assert_never(kind)

    async def stop(self) -> None:
        """Stop timers and background work. What is unfinished is finished after the next start."""
        self.transactions.stop()
        await self._tasks.close()

    async def idle(self) -> None:
        """Wait until no background work is left."""
        await self._tasks.idle()

    # Scopes.

    async def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `InvalidNameError`, `ScopeExistsError`."""
        check_scope_name(scope)

        async def run() -> None:
            # Its deletion meanwhile would not find the tables that are still to be made.
            async with self._locks.hold(scope):
                await self._catalog.create_scope(scope, self._context.new_id())

        await self._runner.bounded(f"creation of scope {scope}", run)

    async def delete_scope(self, scope: str) -> None:
        """Delete a scope that holds no stream, reader group or table. Raises `NoSuchScopeError`, `ScopeNotEmptyError`.
        """

        async def run() -> None:
            async with self._locks.hold(scope):
                await self._catalog.delete_scope(scope)

        await self._runner.bounded(f"deletion of scope {scope}", run)

    async def delete_scope_recursive(self, scope: str) -> None:
        """Delete a scope with its reader groups, key-value tables and streams. Fine if there is none.

        From the first step on the scope takes nothing new, and the deletion is finished whoever dies. Raises
        `ScopeNotEmptyError` for the system's own scope.
        """
        if scope == SYSTEM_SCOPE:
            raise ScopeNotEmptyError(f"scope {scope} belongs to the system")

        async def run() -> None:
            try:
                async with self._locks.hold(scope):
                    scope_id = await self._catalog.scope_id(scope, cached=False)
                    work = self._context.child_work(ChildWorkKind.DELETE, scope_id)
                    if await self._context.index.add_child(ChildKind.SCOPE, scope, "", work) is None:
                        raise MetadataConflictError(f"scope {scope}: another deletion has just begun; try again")
                    await self._catalog.close_scope(scope)
            except NoSuchScopeError:
                return
            await self._delete_closed_scope(scope)

        # What is announced may be the deletion of an earlier scope of this name: it is finished first.
        await self._runner.alone(self._closed_scope(scope), run)

    def _closed_scope(self, scope: str) -> Subject:
        # Not the scope's own lock: that one is held while something is added to the scope.
        return Subject(
            f"/{scope}",
            lambda: self._delete_closed_scope(scope),
            lambda: self._context.index.is_unfinished_child(ChildKind.SCOPE, scope, ""),
        )

    async def _delete_closed_scope(self, scope: str) -> None:
        """Delete what a scope holds, and the scope; withdraw the announcement."""
        announced = await self._context.index.claim_child(ChildKind.SCOPE, scope, "")
        if announced is None:
            return
        try:
            if await self._catalog.scope_id(scope, cached=False) == announced.work.id:
                await self._catalog.close_scope(scope)
                await self._delete_with_contents(scope)
        except NoSuchScopeError:
            _logger.debug("scope %s is gone already", scope)
        await self._context.index.withdraw_child(announced)

    async def _delete_with_contents(self, scope: str) -> None:
        for attempt in range(self.settings.conflict_attempts_max):
            await self._delete_contents(scope)
            try:
                async with self._locks.hold(scope):
                    await self._catalog.delete_scope(scope)
            except ScopeNotEmptyError:
                # Something that had begun before the scope was closed has come in behind the last look.
                if attempt + 1 == self.settings.conflict_attempts_max:
                    raise
            else:
                return

    async def _delete_contents(self, scope: str) -> None:
        while names := (await self.reader_groups.list(scope, "")).names:
            for group in names:
                try:
                    await self.reader_groups.delete(scope, group)
                except NoSuchReaderGroupError:
                    continue
        while names := (await self.key_value_tables.list(scope, "")).names:
            for table in names:
                try:
                    await self.key_value_tables.delete(scope, table)
                except NoSuchTableError:
                    continue
        try:
            while names := (await self.list_streams(scope, "")).names:
                for stream in names:
                    await self._delete_whatever_state(scope, stream)
        except NoSuchScopeError:
            _logger.debug("scope %s has no table of streams any more: its deletion was cut off after that", scope)

    async def _delete_whatever_state(self, scope: str, stream: str) -> None:
        try:
            await self.seal_stream(scope, stream)
        except NoSuchStreamError:
            _logger.debug("stream %s/%s has nothing to seal", scope, stream)
        try:
            await self.delete_stream(scope, stream)
        except NoSuchStreamError:
            return

    async def scope_exists(self, scope: str) -> bool:
        """Say whether a scope exists."""
        return await self._catalog.scope_exists(scope)

    async def list_scopes(self, token: str, limit: int | None = None) -> NamePage:
        """Return a page of scopes after `token` ('' = from the start).

        Raises `InvalidArgumentError` for a token that makes no sense.
        """
        return await self._catalog.list_scopes(token, limit or self.settings.page_entries_max)

    # Streams.

    async def create_stream(self, scope: str, stream: str, configuration: StreamConfig) -> None:
        """Create a stream.

        Raises `InvalidNameError`, `InvalidArgumentError`, `NoSuchScopeError`, `StreamExistsError`.
        """
        check_stream_name(stream)
        if not scope:
            raise InvalidArgumentError("the scope's name is empty")
        wanted = self._checked(configuration)
        await self._catalog.open_scope_id(scope)
        await self._runner.on_stream(scope, stream, lambda: create_stream(self._context, scope, stream, wanted))
        _warn_of_policies(scope, stream, wanted)

    async def update_stream(self, scope: str, stream: str, configuration: StreamConfig) -> None:
        """Replace a stream's whole configuration. Raises `NoSuchStreamError`, `StreamSealedError`."""
        wanted = self._checked(configuration)
        await self._on_stream_alone(scope, stream, lambda tables: update_stream(self._context, tables, wanted))
        _warn_of_policies(scope, stream, wanted)

    def _checked(self, configuration: StreamConfig) -> StreamConfig:
        if configuration.scaling.min_segments > self.settings.segments_per_stream_max:
            raise InvalidArgumentError(
                f"{configuration.scaling.min_segments} segments: a stream has {self.settings.segments_per_stream_max} "
                "at most"
            )
        return configuration.checked()

    async def seal_stream(self, scope: str, stream: str) -> None:
        """Allow no more events; open transactions are aborted. Fine if sealed. Raises `NoSuchStreamError`."""
        await self._on_stream_alone(scope, stream, lambda tables: seal_stream(self._context, tables))

    async def truncate_stream(self, scope: str, stream: str, cut: Mapping[int, int]) -> None:
        """Forget what lies before a stream cut.

        Raises `NoSuchStreamError`, `StreamSealedError`; `InvalidArgumentError` for a cut that is not valid, or behind.
        """
        await self._on_stream_alone(scope, stream, lambda tables: truncate_stream(self._context, tables, cut))

    async def scale_stream(
        self, scope: str, stream: str, to_seal: Sequence[int], ranges: Sequence[tuple[float, float]]
    ) -> EpochTransition:
        """Begin to replace segments by new ones, one for each key range; return what will be done, once it is durable.

        The same request again gets the same answer until the scale is complete (`scale_status`). Raises
        `NoSuchStreamError`, `StreamSealedError`, `ScaleUnderWayError`, `ScalePreconditionError`;
        `InvalidArgumentError` for ranges that do not cover exactly what the segments cover.
        """

        async def look(tables: StreamTables) -> EpochTransition | None:
            epoch = (await tables.current_epoch()).epoch
            return await pending_scale(tables, ScaleOrder(epoch, tuple(to_seal), tuple(ranges)))

        pending = await self._on_stream(scope, stream, look)
        if pending is None:
            pending = await self._on_stream_alone(
                scope, stream, lambda tables: begin_scale(self._context, tables, to_seal, ranges)
            )
        self._runner.finish_what_is_left(self._runner.stream(scope, stream))
        return pending

    async def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleStatus:
        """Say how the scale that began in `epoch` is doing. Raises `NoSuchStreamError`."""
        return await self._on_stream(scope, stream, lambda tables: scale_status(tables, epoch))

    async def delete_stream(self, scope: str, stream: str) -> None:
        """Delete a sealed stream. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        _check_not_empty(scope, stream)

        async def run() -> None:
            await self.transactions.work.taken_over(scope, stream)
            if marked_stream(stream) is None:
                await self._mark_streams.delete(scope, stream)
            await delete_stream(self._context, scope, stream)

        await self._runner.on_stream(scope, stream, run)

    async def _on_stream_alone(
        self, scope: str, stream: str, action: Callable[[StreamTables], Awaitable[T]]
    ) -> T:
        _check_not_empty(scope, stream)
        return await self._runner.on_stream(scope, stream, lambda: self._catalog.on_stream(scope, stream, action))

    async def _on_stream(self, scope: str, stream: str, action: Callable[[StreamTables], Awaitable[T]]) -> T:
        _check_not_empty(scope, stream)
        return await self._catalog.on_stream(scope, stream, action)

    async def stream_exists(self, scope: str, stream: str) -> bool:
        """Say whether a stream has a configuration."""
        try:
            await self.stream_configuration(scope, stream)
        except NoSuchStreamError:
            return False
        return True

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfig:
        """Return a stream's configuration. Raises `NoSuchStreamError`."""

        async def read(tables: StreamTables) -> StreamConfig:
            return (await tables.configuration()).record.configuration

        return await self._on_stream(scope, stream, read)

    async def list_streams(self, scope: str, token: str, limit: int | None = None) -> NamePage:
        """Return a page of a scope's streams. Raises `NoSuchScopeError`, `InvalidArgumentError` for a bad token."""
        return await self._catalog.list_streams(scope, token, limit or self.settings.page_entries_max)

    async def list_streams_by_tag(self, scope: str, tag: str, token: str) -> NamePage:
        """Return a page of a scope's streams that carry `tag`. Errors as `list_streams`."""
        return await self._catalog.list_streams_by_tag(scope, tag, token)

    # Segments of a stream. All raise `NoSuchStreamError`.

    async def current_segments(self, scope: str, stream: str) -> tuple[SegmentRecord, ...]:
        """Return the segments that take events now, by key; none for a sealed stream.

        The mark stream of an existing stream is made when it is asked for.
        """

        try:
            return await self._active_segments(scope, stream)
        except (NoSuchStreamError, HalfCreatedStreamError):
            marked = marked_stream(stream)
            if marked is None:
                raise
        await self._mark_streams.create(scope, marked)
        return await self._active_segments(scope, stream)

    async def _active_segments(self, scope: str, stream: str) -> tuple[SegmentRecord, ...]:
        async def read(tables: StreamTables) -> tuple[SegmentRecord, ...]:
            state, epoch = await tables.state_and_current_epoch()
            if state is StreamState.CREATING:
                raise HalfCreatedStreamError(f"stream {scope}/{stream} is not completely created; try again")
            return () if state is StreamState.SEALED else epoch.segments

        return await self._on_stream(scope, stream, read)

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRecord, ...]:
        """Return the segments of an epoch, by key."""
        if epoch < 0:
            raise InvalidArgumentError(f"epoch {epoch}: use 0 or more")

        async def read(tables: StreamTables) -> tuple[SegmentRecord, ...]:
            found = await tables.epoch(epoch)
            if found is None:
                raise NoSuchStreamError(f"stream {scope}/{stream} has no epoch {epoch}")
            return found.segments

        return await self._on_stream(scope, stream, read)

    async def head(self, scope: str, stream: str) -> list[SegmentPosition]:
        """Return where the stream begins."""

        async def read(tables: StreamTables) -> list[SegmentPosition]:
            if (await tables.state()).record.state is StreamState.CREATING:
                # Its segments need not be there yet: whoever began to read them would take them for deleted.
                raise NoSuchStreamError(f"stream {scope}/{stream} is not completely created")
            cut = (await tables.truncation()).record.stream_cut
            if cut:
                return [SegmentPosition(segment, offset) for segment, offset in cut.items()]
            first = await tables.epoch(0)
            if first is None:
                raise NoSuchStreamError(f"stream {scope}/{stream} is not completely created")
            return [SegmentPosition(segment.id, 0) for segment in first.segments]

        return await self._on_stream(scope, stream, read)

    async def successors(self, scope: str, stream: str, segment: int) -> list[history.Successor]:
        """Return the segments that follow a sealed one; none for an active segment, and at the end of the stream."""

        async def read(tables: StreamTables) -> list[history.Successor]:
            sealed_epoch = await tables.sealed_epoch(segment)
            if sealed_epoch is None:
                await _need_segment(tables, segment)
                return []
            this, before = await tables.epoch_pair(sealed_epoch)
            origin = None if before is None else before.segment(segment)
            if this is None or before is None or origin is None:
                raise NoSuchStreamError(f"stream {scope}/{stream} has no records of the end of segment {segment}")
            return history.successors(origin, this, before)

        return await self._on_stream(scope, stream, read)

    async def segments_between(
        self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[SegmentRecord]:
        """Return the segments between two stream cuts, by id; an empty one stands for an end of the stream."""
        if not start and not end:
            raise InvalidArgumentError("both stream cuts are empty")

        async def read(tables: StreamTables) -> list[SegmentRecord]:
            current = await tables.current_epoch()
            oldest, _ = history.epoch_bounds(start) if start else (0, 0)
            newest = history.epoch_bounds(end)[1] if end else current.epoch
            if max(oldest, newest) > current.epoch or oldest > newest:
                raise InvalidArgumentError(
                    f"the stream cuts reach from epoch {oldest} to {newest}, {scope}/{stream} is in {current.epoch}"
                )
            records = await tables.epochs(oldest, newest)
            head: dict[int, int] = {segment.id: 0 for segment in records[0].segments}
            tail: dict[int, int] = {segment.id: newest for segment in current.segments}
            from_span = history.span_of(start, records) if start else head
            to_span = history.span_of(end, records) if end else tail
            if start and end and not history.is_equal_or_after(end, to_span, start, from_span, records):
                raise InvalidArgumentError("the end of the range lies before its start")
            deleted = set((await tables.truncation()).record.deleted_segments)
            return [s for s in history.segments_between(from_span, to_span, records) if s.id not in deleted]

        return await self._on_stream(scope, stream, read)

    async def is_segment_valid(self, scope: str, stream: str, segment: int) -> bool:
        """Say whether the segment takes events now; False for a stream that does not exist. Creates nothing."""
        _check_not_empty(scope, stream)
        try:
            return any(found.id == segment for found in await self._active_segments(scope, stream))
        except NoSuchStreamError:
            return False

    async def is_stream_cut_valid(self, scope: str, stream: str, cut: Mapping[int, int]) -> bool:
        """Say whether a cut covers the stream's keys exactly once. Raises `InvalidArgumentError` for an empty one."""
        oldest, newest = history.epoch_bounds(cut)

        async def read(tables: StreamTables) -> bool:
            current: EpochRecord = await tables.current_epoch()
            if newest > current.epoch:
                return False
            return history.is_valid_cut(cut, await tables.epochs(oldest, newest))

        return await self._on_stream(scope, stream, read)

    def endpoint_of(self, scope: str, stream: str, segment: int) -> tuple[str, int]:
        """Return host and port of the store that has, or would have, a segment. Nothing is asked whether it exists.

        Raises `ContainerNotFoundError` while no store runs its container.
        """
        found = endpoint_of_segment(self._locator, scope, stream, segment)
        if found is None:
            container = container_of(segment_name(scope, stream, segment), self._locator.container_count)
            raise ContainerNotFoundError(container, "no segment store runs this container now")
        return found


async def _need_segment(tables: StreamTables, segment: int) -> None:
    created = await tables.epoch(segment_epoch(segment)) if segment >= 0 else None
    if created is None or created.segment(segment) is None:
        raise NoSuchStreamError(f"stream {tables.name} has no segment {segment}")


def _check_not_empty(scope: str, stream: str) -> None:
    if not scope or not stream:
        raise InvalidArgumentError(f"scope {scope!r}, stream {stream!r}: neither may be empty")


def _warn_of_policies(scope: str, stream: str, configuration: StreamConfig) -> None:
    """Say in the log which policies are stored and returned, but change nothing yet."""
    if configuration.scaling.kind is not ScalingKind.FIXED:
        _logger.warning("stream %s/%s: its scaling policy is stored, but not enforced yet", scope, stream)
    if configuration.retention is not None:
        _logger.warning("stream %s/%s: its retention policy is stored, but not enforced yet", scope, stream)
