"""`ControllerService`: the controller, independent of the protocol.

Calls take and return domain values and raise the errors of `penstock.model.errors`; gRPC and REST translate them.
All state is in the metadata store: a controller that starts finishes the work of its predecessors.

Source: controller-api 9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller.epochs import Successor
from penstock.controller.errors import WorkTakenOverError
from penstock.controller.group_overviews import GroupOverviews
from penstock.controller.key_value_tables import KeyValueTables
from penstock.controller.locator import ContainerLocator, endpoint_of_segment
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.catalog import Catalog, NamePage
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.given_up import GivenUpRecord, GivenUpWork
from penstock.controller.metadata.listed_streams import ListedStreams
from penstock.controller.metadata.marked_streams import MarkedStreams
from penstock.controller.metadata.pending_work import (
    CONFIGURATION_ANY,
    CreateGroup,
    CreateTable,
    DeleteGroup,
    DeleteScope,
    DeleteTable,
    Subject,
    SubjectKind,
    UpdateGroup,
)
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import EpochTransition, ScaleOrder, SegmentRecord
from penstock.controller.metadata.scope_records import KeyValueTableRecord, ReaderGroupRecord
from penstock.controller.metadata.scoped_records import ScopedRecords
from penstock.controller.metadata.store import MetadataStore
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_index import TransactionIndex
from penstock.controller.metadata.transaction_numbers import TransactionNumbers
from penstock.controller.metadata.work_claims import WorkClaims
from penstock.controller.ownership.buckets import Buckets
from penstock.controller.ownership.coordinator import Coordinator
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator
from penstock.controller.ownership.peers import Peers
from penstock.controller.queries import SegmentPosition, StreamQueries, check_not_empty
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.retention.explanation import RetentionExplanations
from penstock.controller.retention.retention import Retention
from penstock.controller.scaling.auto_scaler import AutoScaler
from penstock.controller.scope_deletion import ScopeDeletion
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.transaction_state.commit_order import CommitOrder
from penstock.controller.transaction_state.committed import CommittedTransactions
from penstock.controller.transaction_state.creations import Creations
from penstock.controller.transactional_tails import TransactionalTails
from penstock.controller.transactions.service import Transactions
from penstock.controller.watermarks.mark_streams import mark_stream_of, marked_stream
from penstock.controller.watermarks.watermarks import Watermarks
from penstock.controller.watermarks.writer_marks import WriterMarks
from penstock.controller.work.background_work import BackgroundWork
from penstock.controller.work.deferred_removals import DeferredRemovals
from penstock.controller.work.sweeper import Sweeper
from penstock.controller.work.work_registry import WorkRegistry
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import create_stream
from penstock.controller.workflows.delete_stream import delete_stream
from penstock.controller.workflows.key_value_table import resume_table
from penstock.controller.workflows.pending import register_stream_work
from penstock.controller.workflows.reader_group import resume_group
from penstock.controller.workflows.scale_stream import ScaleStatus, begin_scale, pending_scale
from penstock.controller.workflows.seal_stream import seal_stream
from penstock.controller.workflows.truncate_stream import truncate_stream
from penstock.controller.workflows.update_stream import update_stream
from penstock.model.errors import (
    ContainerNotFoundError,
    InvalidArgumentError,
    NoSuchSegmentError,
    NoSuchStreamError,
    ScopeExistsError,
)
from penstock.model.names import SYSTEM_SCOPE, check_new_scope_name, check_new_stream_name, segment_name
from penstock.model.policies import ScalingKind, StreamConfig
from penstock.model.routing import container_of
from penstock.model.scale_advice import ScaleAdvisor
from penstock.model.segments import Segments
from penstock.runtime.runtime import Runtime

T = TypeVar("T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """Counts of a controller since its start.

    Attributes:
        failed_attempt_count: attempts of background work that have failed, and are repeated.
        given_up_count: pieces of work that were given up after a permanent error; see `given_up_work`.
        taken_over_count: pieces of work that were taken over from another controller.
        open_transaction_count: transactions with a running lease.
    """

    failed_attempt_count: int
    given_up_count: int
    taken_over_count: int
    open_transaction_count: int


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
        advisor: ScaleAdvisor | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        """`coordinator`: of all controllers on `metadata`; None if this is the only controller."""
        self.settings: ControllerSettings = settings or ControllerSettings()
        self._records = RecordStore(metadata, self.settings.shared_writes_max)
        self._locator = locator
        self._locks = StreamLocks()
        self._tasks = BackgroundTasks()
        self._catalog = Catalog(self._records, self.settings)
        self._given_up = GivenUpWork(
            self._records, self.settings, runtime.wall_clock_ms, lambda: self._context.claims.owner
        )
        self._background = background = BackgroundWork(self._tasks, self.settings, self._locks, self._given_up)
        removals = DeferredRemovals(self._records, background, self.settings)
        peers = Peers()
        index = TransactionIndex(self._records)
        completed = CompletedTransactions(self._records, runtime, self.settings)
        self._context = WorkflowContext(
            catalog=self._catalog,
            groups=ScopedRecords(self._records, self._catalog, ReaderGroupRecord, layout.reader_groups_in_scope),
            key_value_tables=ScopedRecords(
                self._records, self._catalog, KeyValueTableRecord, layout.key_value_tables_in_scope
            ),
            completed=completed,
            claims=WorkClaims(self._records, self.settings, peers),
            index=index,
            marked=MarkedStreams(self._records, self.settings),
            retained=ListedStreams(self._records, layout.RETAINED_STREAMS),
            segments=SegmentRequests(segments, self.settings, locator.container_count),
            locks=self._locks,
            runtime=runtime,
            settings=self.settings,
            creations=Creations(self.settings.id_cache_entries_max),
            removals=removals,
            commit_order=CommitOrder(self._tasks, removals, self.settings),
            committed=CommittedTransactions(completed, index, background, self.settings),
        )
        self._registry = WorkRegistry(self._context.claims, self._given_up)
        self._runner = WorkflowRunner(self._context, background, self._registry)
        #: Tasks that run until the controller stops; `idle` does not wait for them.
        self._watches = BackgroundTasks()
        self.retention_buckets: Buckets = Buckets("retention", self.settings.retention_bucket_count, peers)
        self.watermarking_buckets: Buckets = Buckets("watermarking", self.settings.watermarking_bucket_count, peers)
        self._auto_scaler: AutoScaler | None = None
        if advisor is not None and self.settings.auto_scaling.is_enabled:
            buckets = Buckets("scaling by load", self.settings.auto_scaling.bucket_count, peers)
            self._auto_scaler = AutoScaler(advisor, self._context, self._runner, locator.container_count, buckets)
        self.reader_groups: ReaderGroups = ReaderGroups(self._context, self._runner)
        self.group_overviews: GroupOverviews = GroupOverviews(self._context, self.reader_groups)
        self.writer_marks: WriterMarks = WriterMarks(
            self._context.catalog, self._context.locks, self._context.mark_writes
        )
        self._watermarks = Watermarks(
            self._context.catalog,
            self._context.marked,
            self._context.segments,
            self.watermarking_buckets,
            self._context.settings.watermarks,
        )
        self.transactional_tails: TransactionalTails = TransactionalTails(self._context, self._runner)
        self._retention = Retention(
            self._context, self.retention_buckets, self.truncate_stream, self.transactional_tails.of
        )
        self.retention_explanations: RetentionExplanations = RetentionExplanations(
            self._context, self._retention.next_scan_s
        )
        self.key_value_tables: KeyValueTables = KeyValueTables(self._context, self._runner)
        self.queries: StreamQueries = StreamQueries(self._catalog)
        self._scope_deletion = ScopeDeletion(
            self._context, self._runner, self.reader_groups, self.key_value_tables, self._drop_stream
        )
        numbers = TransactionNumbers(self._records, self.settings)
        self.transactions: Transactions = Transactions(self._context, numbers, self._runner, background, self._registry)
        self._register_work()
        self._starts = TransactionNumbers(self._records, self.settings, counter=layout.CONTROLLERS, range_count=1)
        self._sweeper = Sweeper(
            coordinator or InProcessCoordinator(),
            self._context.claims,
            background,
            self._watches,
            self.settings,
            peers,
            new_name=self._new_name,
            finish_later=self._runner.finish_later,
            take_over=self.transactions.work.take_over,
        )

    def _register_work(self) -> None:
        """Register how each kind of work is finished. Announced work of a kind not named here could never be."""
        context, registry = self._context, self._registry
        register_stream_work(registry, context)
        for group_kind in (CreateGroup, UpdateGroup, DeleteGroup):
            registry.register(group_kind, lambda announced, order: resume_group(context, announced))
        for table_kind in (CreateTable, DeleteTable):
            registry.register(table_kind, lambda announced, order: resume_table(context, announced))
        registry.register(DeleteScope, lambda announced, order: self._scope_deletion.resume(announced))

    # Life.

    async def start(self) -> None:
        """Create the system tables if they are missing, then begin to finish the work of earlier controllers.

        Returns when calls can be served. Unfinished work continues in the background (`idle` waits for it).
        """
        for table in layout.SYSTEM_TABLES:
            await self._records.store.create_table(table)
        await self._sweeper.join()
        if await self._catalog.scope_exists(SYSTEM_SCOPE):
            # Only its own tables may be missing, after a crash in the first start: no call needs to wait for them.
            self._tasks.start(f"repair of scope {SYSTEM_SCOPE}", self._complete_system_scope())
        else:
            await self._complete_system_scope()
        await self._sweeper.start()
        if self._auto_scaler is not None:
            self._watches.start("scaling by load", self._auto_scaler.run())
        if self.settings.watermarks.is_enabled:
            self._watches.start("watermarks", self._watermarks.run())
        if self.settings.retention.is_enabled:
            self._watches.start("retention", self._retention.run())

    async def _new_name(self) -> str:
        """Return a unique name for this controller; names sort by the order in which they were assigned."""
        return f"{await self._starts.next():016x}-{self._context.runtime.random_id().hex()}"

    async def _complete_system_scope(self) -> None:
        try:
            await self._catalog.create_scope(SYSTEM_SCOPE, self._context.new_id)
        except ScopeExistsError:
            pass

    async def stop(self) -> None:
        """Stop timers and background work. Unfinished work is finished after the next start."""
        self.transactions.stop()
        await self._watches.close()
        await self._tasks.close()
        # Only after all work has stopped: the other members take over the rest.
        await self._sweeper.leave()

    @property
    def container_count(self) -> int:
        """Number of containers of the cluster."""
        return self._locator.container_count

    def statistics(self) -> ControllerStatistics:
        """Return the counts of this controller since its start; makes no request."""
        return ControllerStatistics(
            failed_attempt_count=self._background.failed_attempt_count,
            given_up_count=self._given_up.count,
            taken_over_count=self._context.claims.taken_over_count,
            open_transaction_count=self.transactions.open_count,
        )

    async def given_up_work(self) -> list[GivenUpRecord]:
        """Return work that any controller has given up, newest first; at most `given_up_records_max` records."""
        return await self._given_up.newest()

    async def idle(self) -> None:
        """Wait until no background work is left."""
        await self._tasks.idle()

    # Scopes.

    async def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `InvalidNameError`, `ScopeExistsError`."""
        check_new_scope_name(scope)
        # Checked before the task, which continues without its caller: if this controller is considered dead, the caller
        # may have timed out and called another one, and this request is stale.
        await self._context.claims.check_is_member()

        async def run() -> None:
            # Serializes the callers of one controller; between controllers the record of the scope does it.
            async with self._locks.hold(scope):
                await self._catalog.create_scope(scope, self._context.new_id)

        await self._runner.bounded(f"creation of scope {scope}", run)

    async def delete_scope(self, scope: str) -> None:
        """Delete a scope without streams, reader groups and tables. Raises `NoSuchScopeError`, `ScopeNotEmptyError`."""

        await self._context.claims.check_is_member()

        async def run() -> None:
            async with self._locks.hold(scope):
                await self._catalog.delete_scope(scope)

        await self._runner.bounded(f"deletion of scope {scope}", run)

    async def delete_scope_recursive(self, scope: str) -> None:
        """Delete a scope with its reader groups, key-value tables and streams. Does nothing if it does not exist.

        From the first step on the scope accepts nothing new, and other controllers finish the deletion if this one
        dies. Raises `ScopeNotEmptyError` for the system's own scope.
        """
        await self._scope_deletion.delete(scope)

    async def scope_exists(self, scope: str) -> bool:
        """Say whether a scope exists."""
        return await self._catalog.scope_exists(scope)

    async def list_scopes(self, token: str, limit: int | None = None) -> NamePage:
        """Return a page of scopes after `token` ('' = from the start).

        Raises `InvalidArgumentError` for an invalid token.
        """
        return await self._catalog.list_scopes(token, limit or self.settings.page_entries_max)

    # Streams.

    async def create_stream(self, scope: str, stream: str, configuration: StreamConfig) -> None:
        """Create a stream.

        Raises `InvalidNameError`, `InvalidArgumentError`, `NoSuchScopeError`, `StreamExistsError`.
        """
        check_new_stream_name(stream)
        if not scope:
            raise InvalidArgumentError("the scope's name is empty")
        wanted = self._checked(configuration)
        await self._catalog.open_scope_id(scope)
        await self._runner.alone(_stream(scope, stream), lambda: create_stream(self._context, scope, stream, wanted))
        self._warn_of_policies(scope, stream, wanted)

    async def update_stream(self, scope: str, stream: str, configuration: StreamConfig) -> None:
        """Replace a stream's whole configuration. Raises `NoSuchStreamError`, `StreamSealedError`."""
        wanted = self._checked(configuration)
        await self._on_stream_alone(scope, stream, lambda tables: update_stream(self._context, tables, wanted))
        self._warn_of_policies(scope, stream, wanted)

    def _warn_of_policies(self, scope: str, stream: str, configuration: StreamConfig) -> None:
        """Log a warning for policies that are stored and returned, but not enforced."""
        ignored = []
        if configuration.scaling.kind is not ScalingKind.FIXED and self._auto_scaler is None:
            ignored.append("scaling")
        if configuration.retention is not None and not self.settings.retention.is_enabled:
            ignored.append("retention")
        for kind in ignored:
            name = f"{scope}/{stream}"
            _logger.warning("stream %s: its %s policy is stored, but not enforced by this server", name, kind)

    def _checked(self, configuration: StreamConfig) -> StreamConfig:
        if configuration.scaling.min_segments > self.settings.segments_per_stream_max:
            raise InvalidArgumentError(
                f"{configuration.scaling.min_segments} segments: a stream has {self.settings.segments_per_stream_max} "
                "at most"
            )
        return configuration.checked()

    async def seal_stream(self, scope: str, stream: str) -> None:
        """Seal a stream: it accepts no more events, and open transactions are aborted. Does nothing if it is sealed.

        Raises `NoSuchStreamError`; `TransactionPreparedError` if a prepared transaction waits for its decision.
        """
        await self._on_stream_alone(scope, stream, lambda tables: seal_stream(self._context, tables))

    async def truncate_stream(
        self, scope: str, stream: str, cut: Mapping[int, int], configuration_version: int = CONFIGURATION_ANY
    ) -> None:
        """Delete the data before a stream cut.

        `configuration_version`: see `TruncateStream`. Raises `NoSuchStreamError`, `StreamSealedError`;
        `PolicyReplacedError`; `InvalidArgumentError` for an invalid cut, or one before the present head.
        """
        await self._on_stream_alone(
            scope, stream, lambda tables: truncate_stream(self._context, tables, cut, configuration_version)
        )

    async def scale_stream(
        self, scope: str, stream: str, to_seal: Sequence[int], ranges: Sequence[tuple[float, float]]
    ) -> EpochTransition:
        """Begin to replace segments by new ones, one per key range; return the planned transition once it is durable.

        The same request gets the same answer until the scale is complete (`scale_status`). Raises
        `NoSuchStreamError`, `StreamSealedError`, `ScaleUnderWayError`, `ScalePreconditionError`;
        `InvalidArgumentError` for ranges that do not cover exactly the keys of the segments.
        """

        async def read(tables: StreamTables) -> EpochTransition | None:
            epoch = (await tables.current_epoch()).epoch
            return await pending_scale(tables, ScaleOrder(epoch, tuple(to_seal), tuple(ranges)))

        pending = await self.queries.on_stream(scope, stream, read)
        if pending is None:
            pending = await self._on_stream_alone(
                scope, stream, lambda tables: begin_scale(self._context, tables, to_seal, ranges)
            )
        self._runner.finish_what_is_left(_stream(scope, stream))
        return pending

    async def delete_stream(self, scope: str, stream: str) -> None:
        """Delete a sealed stream. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        check_not_empty(scope, stream)

        async def run() -> None:
            await self.transactions.work.taken_over(scope, stream)
            await delete_stream(self._context, scope, stream)

        await self._runner.alone(_stream(scope, stream), run)

    async def _drop_stream(self, scope: str, stream: str) -> None:
        """Seal and delete a stream, including its prepared transactions. Does nothing if it does not exist."""
        try:
            await self._on_stream_alone(
                scope, stream, lambda tables: seal_stream(self._context, tables, spares_prepared=False)
            )
        except NoSuchStreamError:
            _logger.debug("stream %s/%s has nothing to seal", scope, stream)
        try:
            await self.delete_stream(scope, stream)
        except NoSuchStreamError:
            return

    async def _on_stream_alone(self, scope: str, stream: str, action: Callable[[StreamTables], Awaitable[T]]) -> T:
        check_not_empty(scope, stream)
        subject = _stream(scope, stream)

        async def on_one_life(tables: StreamTables) -> T:
            try:
                return await action(tables)
            except (NoSuchSegmentError, NoSuchStreamError) as error:
                is_of_data = isinstance(error, NoSuchSegmentError) and not layout.is_metadata_table(error.segment)
                if is_of_data or not self._context.claims.is_unfinished(subject):
                    raise
                # Another controller has deleted the stream during this work: do not apply it to the next stream of
                # this name.
                raise WorkTakenOverError(f"{subject}: another controller has ended this work: {error}") from error

        return await self._runner.alone(subject, lambda: self._catalog.on_stream(scope, stream, on_one_life))

    async def list_streams(self, scope: str, token: str, limit: int | None = None) -> NamePage:
        """Return a page of a scope's streams. Raises `NoSuchScopeError`, `InvalidArgumentError` for a bad token."""
        return await self._catalog.list_streams(scope, token, limit or self.settings.page_entries_max)

    async def list_streams_and_marks(self, scope: str, token: str, limit: int | None = None) -> NamePage:
        """Return a page of a scope's streams and of their mark streams, as Pravega's controller lists them.

        A page has at most `limit` names, or 2 if `limit` is 1. Errors as `list_streams`.
        """
        limit = max(1, (limit or self.settings.page_entries_max) // 2)
        while True:
            page = await self.list_streams(scope, token, limit)
            names: list[str] = []
            for name in page.names:
                # Earlier releases let clients create a stream with such a name. It is listed with its stream.
                marked = marked_stream(name)
                if marked is None or not await self.queries.exists(scope, marked):
                    names.append(name)
                mark = mark_stream_of(name)
                if mark is not None:
                    names.append(mark)
            # Clients take an empty page for the end of the listing.
            if names or not page.names:
                return NamePage(tuple(names), page.token)
            token = page.token

    async def list_streams_by_tag(self, scope: str, tag: str, token: str) -> NamePage:
        """Return a page of a scope's streams that carry `tag`. Errors as `list_streams`."""
        return await self._catalog.list_streams_by_tag(scope, tag, token)

    async def stream_exists(self, scope: str, stream: str) -> bool:
        """See `StreamQueries.exists`."""
        return await self.queries.exists(scope, stream)

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfig:
        """See `StreamQueries.configuration`."""
        return await self.queries.configuration(scope, stream)

    async def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleStatus:
        """See `StreamQueries.scale_status`."""
        return await self.queries.scale_status(scope, stream, epoch)

    # Segments of a stream.

    async def current_segments(self, scope: str, stream: str) -> tuple[SegmentRecord, ...]:
        """See `StreamQueries.current_segments`."""
        return await self.queries.current_segments(scope, stream)

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRecord, ...]:
        """See `StreamQueries.epoch_segments`."""
        return await self.queries.epoch_segments(scope, stream, epoch)

    async def head(self, scope: str, stream: str) -> list[SegmentPosition]:
        """See `StreamQueries.head`."""
        return await self.queries.head(scope, stream)

    async def successors(self, scope: str, stream: str, segment: int) -> list[Successor]:
        """See `StreamQueries.successors`."""
        return await self.queries.successors(scope, stream, segment)

    async def segments_between(
        self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[SegmentRecord]:
        """See `StreamQueries.segments_between`."""
        return await self.queries.segments_between(scope, stream, start, end)

    async def is_segment_valid(self, scope: str, stream: str, segment: int) -> bool:
        """See `StreamQueries.is_segment_valid`."""
        return await self.queries.is_segment_valid(scope, stream, segment)

    async def is_stream_cut_valid(self, scope: str, stream: str, cut: Mapping[int, int]) -> bool:
        """See `StreamQueries.is_stream_cut_valid`."""
        return await self.queries.is_stream_cut_valid(scope, stream, cut)

    def endpoint_of(
        self, scope: str, stream: str, segment: int, locator: ContainerLocator | None = None
    ) -> tuple[str, int]:
        """Return host and port of the store that has, or would have, a segment. Does not check that it exists.

        `locator`: for clients that reach the stores elsewhere than this controller does.

        Raises `ContainerNotFoundError` while no store runs its container.
        """
        found = endpoint_of_segment(locator or self._locator, scope, stream, segment)
        if found is None:
            container = container_of(segment_name(scope, stream, segment), self._locator.container_count)
            raise ContainerNotFoundError(container, "no segment store runs this container now")
        return found


def _stream(scope: str, stream: str) -> Subject:
    return Subject(SubjectKind.STREAM, scope, stream)
