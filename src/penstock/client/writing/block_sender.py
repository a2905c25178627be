"""`BlockSender`: sends the blocks of one `AppendWindow` to one segment, through reconnects, exactly once.

It has its own writer id. On every new connection, the reply to SetupAppend contains the last stored number, and later
blocks are sent again with their original numbers. Acknowledgements are handled where they are received, without a task
switch.

Source: wire-protocol 3.2, 3.7, 3.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from penstock.client.common.deadline import Deadline
from penstock.client.common.retry import Backoff
from penstock.client.common.tasks import start_watched
from penstock.client.common.waits import DISK_FULL, NO_ACKNOWLEDGEMENT, UNREACHABLE, Wait
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.replies import error_of, expect, unexpected
from penstock.client.transport.store_states import StoreState
from penstock.client.writing.append_window import AppendWindow, Block
from penstock.model.errors import (
    BadEventNumberError,
    ConnectionLostError,
    ContainerNotFoundError,
    ControllerUnavailableError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    ProtocolError,
    SegmentSealedError,
    SegmentStoreBusyError,
    StorageFullError,
    TokenExpiredError,
    UnacknowledgedStorageFullError,
)
from penstock.model.events import EVENT_LENGTH_MAX
from penstock.model.names import is_written_for_readers
from penstock.model.segments import NO_VALUE, Buffer
from penstock.model.times import seconds_text
from penstock.runtime.portal import Lock
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    AttributeUpdate,
    ConditionalBlockEnd,
    CreateTransientSegment,
    DataAppended,
    MergeSegments,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentsMerged,
    SetupAppend,
    WireCommand,
)
from penstock.wire.connection import WireConnection

_REPLACE_IF_EQUALS = 4

#: After these, the same blocks are retried on a new connection.
_PASSING_ERRORS = (
    OutcomeUnknownError,
    ContainerNotFoundError,
    BadEventNumberError,
    ControllerUnavailableError,
    SegmentStoreBusyError,
    StorageFullError,
    TokenExpiredError,
)


class BlockSender:
    """Appends to one segment. All calls but `mark_dirty` belong to the event loop; `lock` guards the window.

    Args:
        segment: full segment name.
        on_settled: called with blocks that are durable, in order, and with blocks that failed (with their error).
        on_sealed: called when the segment takes no more events; the appender has stopped, its blocks are in the window.
    """

    def __init__(
        self,
        segment: str,
        window: AppendWindow,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        lock: Lock,
        *,
        on_settled: Callable[[list[Block], PenstockError | None], None],
        on_sealed: Callable[[BlockSender, PenstockError], None],
    ) -> None:
        self.segment = segment
        self.window = window
        #: True while the writer's list of appenders with new events contains this one. Guarded by the lock.
        self.is_dirty = False
        #: End of the last acknowledged event; 0 before the first one, None if the server has not reported it.
        self.end_offset: int | None = 0
        self._pool = pool
        self._settings = settings
        self._lock = lock
        self._on_settled = on_settled
        self._on_sealed = on_sealed
        self._writer_id = rng.randbytes(16)
        self._rng = rng
        self._backoff = Backoff(settings, rng)
        self._connection: WireConnection | None = None
        self._request_id = -1
        self._setup: asyncio.Future[WireCommand] | None = None
        self._session_end: asyncio.Future[None] | None = None
        self._has_work = asyncio.Event()
        self._large_task: asyncio.Task[None] | None = None
        self._has_failed = False
        # The segment is sealed: what the window still gets is for its successors.
        self._is_sealed = False
        #: From the first event that is not acknowledged to the last acknowledgement; see `Waits`.
        self._wait: Wait | None = None
        self._task = start_watched(self._run(), f"append to {segment}", self._fail)

    @property
    def _token(self) -> str:
        """The token for requests about the segment."""
        return self._pool.tokens.of(self.segment)

    # -- called by the writer -----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send the blocks that the window permits. Called in the loop after events were added."""
        if self._is_sealed:
            return
        connection = self._connection
        if connection is None:
            self._has_work.set()
            self._begin_wait()
            return
        while connection.is_writable:
            with self._lock:
                block = self.window.next_to_send(asyncio.get_running_loop().time())
            if block is None:
                return
            self._begin_wait()
            if block.is_large:
                self._large_task = start_watched(
                    self._append_large(connection, block), f"large event to {self.segment}", self._end_session
                )
                return
            data = block.framed()
            try:
                connection.send(
                    AppendBlockEnd(
                        self._writer_id, block.size_bytes, data, block.event_count, block.last_number, self._request_id
                    )
                )
            except ConnectionLostError:
                # The session ends by `on_connection_lost`; the block is in flight and will be sent again.
                return

    async def close(self) -> None:
        """Stop. Unacknowledged blocks remain in the window."""
        for task in (self._large_task, self._task):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.wait([task])
        self._end_wait(is_failed=True)

    # -- replies, called by the connection ----------------------------------------------------------------------

    def on_reply(self, reply: WireCommand) -> None:
        """See `ReplyHandler`."""
        if isinstance(reply, DataAppended):
            try:
                with self._lock:
                    done = self.window.acknowledge(reply.event_number, asyncio.get_running_loop().time())
                    is_empty = self.window.is_empty
            except ProtocolError as error:
                self._end_session(error)
                return
            self._backoff.reset()
            self._progress(is_empty=is_empty)
            offset = reply.current_segment_write_offset
            self.end_offset = offset if offset >= 0 else None
            self._on_settled(done, None)
            self.pump()
        elif self._setup is not None and not self._setup.done():
            self._setup.set_result(reply)
        else:
            self._end_session(error_of(reply, self.segment) or unexpected(reply, self.segment))

    def on_connection_lost(self, error: ConnectionLostError) -> None:
        """See `ReplyHandler`."""
        if self._setup is not None and not self._setup.done():
            self._setup.set_exception(error)
        self._end_session(error)

    def on_writable(self) -> None:
        """See `ReplyHandler`."""
        self.pump()

    # -- the life of an appender --------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Hold a session whenever there is something to send, until the segment is sealed or retrying is useless."""
        while True:
            await self._has_work.wait()
            try:
                await self._hold_session()
            except (SegmentSealedError, NoSuchSegmentError) as error:
                self._is_sealed = True
                self._end_wait()
                self._on_sealed(self, error)
                return
            except _PASSING_ERRORS as error:
                if self._has_failed:
                    return
                self._pool.forget(self.segment)
                if isinstance(error, TokenExpiredError):
                    self._pool.tokens.forget(self.segment)
                with self._lock:
                    is_idle = self.window.is_empty
                if is_idle:
                    self._has_work.clear()
                    self._end_wait()
                    continue
                if self._wait is not None:
                    self._wait.note(error)
                if isinstance(error, ConnectionLostError) and error.silent_s:
                    self._backoff.count_from(asyncio.get_running_loop().time() - error.silent_s)
                try:
                    await self._backoff.pause(error)
                except StorageFullError as final:
                    self._fail(self._full_error(str(final)))
                    return
                except PenstockError as final:
                    self._fail(_as_unknown(final, self.segment))
                    return
            except PenstockError as error:
                self._fail(error)
                return

    async def _hold_session(self) -> None:
        """Connect, set up, and let replies drive the window until the session ends with an error."""
        loop = asyncio.get_running_loop()
        with self._backoff.attempt(f"append to {self.segment}") as deadline:
            if self._wait is not None and self._wait.why == NO_ACKNOWLEDGEMENT:
                self._wait.why, self._wait.until_s = UNREACHABLE, deadline.at_s
            connection = await self._pool.connection(self.segment, Purpose.APPEND)
        if self._wait is not None and self._wait.why == UNREACHABLE:
            self._wait.why, self._wait.detail = NO_ACKNOWLEDGEMENT, connection.address
        request_id = connection.next_request_id()
        self._request_id = request_id
        self._setup = loop.create_future()
        self._session_end = end = loop.create_future()
        connection.subscribe(request_id, self)
        try:
            connection.send(SetupAppend(request_id, self._writer_id, self.segment, self._token))
            with self._backoff.attempt(f"set up a writer of {self.segment}") as deadline:
                setup = expect(await self._set_up(self._setup, deadline), AppendSetup, self.segment)
            with self._lock:
                stored = self.window.reconnect(setup.last_event_number)
                is_empty = self.window.is_empty
            if stored:
                self.end_offset = None
                self._backoff.reset()
                self._progress(is_empty=is_empty)
                self._on_settled(stored, None)
            self._connection = connection
            self.pump()
            await end
        finally:
            self._connection = None
            self._setup = None
            self._session_end = None
            if not end.done():
                end.cancel()
            elif not end.cancelled():
                end.exception()  # Retrieved, even if the set-up failed first with the same error.
            connection.unsubscribe(request_id)
            if self._large_task is not None:
                self._large_task.cancel()
                self._large_task = None

    async def _set_up(self, setup: asyncio.Future[WireCommand], deadline: Deadline) -> WireCommand:
        """Wait for the reply to SetupAppend. Raises `StorageFullError`, or `OutcomeUnknownError` without a reason."""
        timeout_s = deadline.bounded_s(self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await setup
        except TimeoutError as error:
            state = self._store_state()
            if state is not None and state.full is not None:
                raise StorageFullError(state.full) from error
            waited = seconds_text(timeout_s)
            raise OutcomeUnknownError(f"{self.segment}: no answer to SetupAppend within {waited}") from error

    def _end_session(self, error: PenstockError) -> None:
        if self._session_end is not None and not self._session_end.done():
            self._session_end.set_exception(error)

    def _fail(self, error: PenstockError) -> None:
        with self._lock:
            blocks = self.window.take_all()
        self._end_wait(is_failed=True)
        self._on_settled(blocks, error)

    # -- waits --------------------------------------------------------------------------------------------------

    def _begin_wait(self) -> None:
        if self._wait is None and self._pool.waits is not None:
            self._wait = self._pool.waits.begin(
                f"write to {_stream_of(self.segment)}", why=NO_ACKNOWLEDGEMENT, on_long=self._inspect_store
            )

    def _end_wait(self, *, is_failed: bool = False) -> None:
        wait, self._wait = self._wait, None
        if wait is not None and self._pool.waits is not None:
            self._pool.waits.end(wait, is_failed=is_failed)

    def _progress(self, *, is_empty: bool) -> None:
        """Note an acknowledgement: the wait restarts, or ends if everything is acknowledged."""
        if is_empty:
            self._end_wait()
        elif self._wait is not None:
            self._wait.since_s = asyncio.get_running_loop().time()
            self._wait.why, self._wait.detail, self._wait.until_s = NO_ACKNOWLEDGEMENT, "", None

    def _store_state(self) -> StoreState | None:
        """Return the recent report of this segment's store; None also for segments that a full disk does not stop."""
        endpoint = self._pool.known_endpoint(self.segment)
        if endpoint is None or is_written_for_readers(self.segment):
            return None
        return self._pool.store_states.state(endpoint, self.segment)

    def _inspect_store(self, wait: Wait) -> None:
        """Determine the reason of a long wait; give up when a full disk has lasted for `retry_time_max_s`."""
        if self._session_end is None:
            # Between two sessions, the reason is that of the last attempt.
            wait.until_s = self._backoff.end_s or wait.until_s
            return
        state = self._store_state()
        if state is None or state.full is None:
            wait.why = NO_ACKNOWLEDGEMENT
            # An append that the server holds under pressure has no time limit; a set-up has one.
            wait.until_s = self._backoff.end_s if self._connection is None else None
            if state is not None and state.problem is not None:
                wait.detail = state.problem
            return
        wait.why, wait.detail = DISK_FULL, state.full
        wait.until_s = wait.since_s + self._settings.retry_time_max_s
        if asyncio.get_running_loop().time() < wait.until_s:
            return
        error = self._full_error(state.full)
        self._has_failed = True
        if self._setup is not None and not self._setup.done():
            self._setup.set_exception(error)
        self._end_session(error)
        self._fail(error)

    def _full_error(self, why: str) -> StorageFullError:
        """Return the error for all blocks of the window when a full disk has lasted for too long."""
        with self._lock:
            is_sent = any(block.last_number for block in self.window.pending())
        text = (
            f"{_stream_of(self.segment)}: disk full on the server for {self._settings.retry_time_max_s:g} s "
            f"(retry_time_max_s): {why}"
        )
        if not is_sent:
            return StorageFullError(f"{text}; nothing was sent")
        return UnacknowledgedStorageFullError(f"{text}; events not acknowledged may or may not be stored")

    # -- large events -------------------------------------------------------------------------------------------

    async def _append_large(self, connection: WireConnection, block: Block) -> None:
        """Write an event above 8 MiB into a transient segment and merge that into the target, atomically.

        The merge advances this writer's event number along with the data, on condition that the number is still the
        previous one. So if the reply is lost, the next SetupAppend shows whether the event is stored.

        A missing transient segment (its container has restarted, or deleted it as idle) implies nothing about the
        target: the event is written again.
        """
        try:
            name, request_id = await self._fill_transient(connection, block.framed())
            previous = block.last_number - block.event_count
            update = AttributeUpdate(self._writer_id, _REPLACE_IF_EQUALS, block.last_number, previous or NO_VALUE)
            reply = await connection.request(
                request_id, MergeSegments(request_id, self.segment, name, self._token, (update,))
            )
            if isinstance(reply, OperationUnsupported):
                await self._merge_plainly(connection, request_id, name, block)
                return
            if isinstance(reply, NoSuchSegment) and reply.segment == name:
                raise NoSuchSegmentError(name)
            if not isinstance(reply, SegmentAttributeUpdated):
                expect(reply, SegmentsMerged, self.segment)
        except NoSuchSegmentError as error:
            is_transient = error.segment != self.segment
            self._end_session(ConnectionLostError(f"{self.segment}: {error}") if is_transient else error)
            return
        except PenstockError as error:
            self._end_session(error)
            return
        # The server's state of this writer on this connection is now outdated: set up again, which also settles the
        # block.
        self._end_session(ConnectionLostError(f"{self.segment}: set up again after a large event"))

    async def _merge_plainly(self, connection: WireConnection, request_id: int, name: str, block: Block) -> None:
        """Merge on a server that does not update attributes with a merge. A lost reply stays unknown there."""
        try:
            reply = await connection.request(request_id, MergeSegments(request_id, self.segment, name, self._token))
        except OutcomeUnknownError as error:
            error.add_note(f"a large event may or may not be stored in {self.segment}; the writer stops here")
            self._has_failed = True
            self._fail(error)
            raise
        if isinstance(reply, NoSuchSegment) and reply.segment == name:
            raise NoSuchSegmentError(name)
        expect(reply, SegmentsMerged, self.segment)
        with self._lock:
            self.window.settle_unnumbered(block)
        self._large_task = None
        self.end_offset = None
        self._backoff.reset()
        self._on_settled([block], None)
        self.pump()

    async def _fill_transient(self, connection: WireConnection, data: Buffer) -> tuple[str, int]:
        writer_id = self._rng.randbytes(16)
        request_id = connection.next_request_id()
        created = expect(
            await connection.request(
                request_id, CreateTransientSegment(request_id, writer_id, self.segment, self._token)
            ),
            SegmentCreated,
            self.segment,
        )
        setup = expect(
            await connection.request(request_id, SetupAppend(request_id, writer_id, created.segment, self._token)),
            AppendSetup,
            created.segment,
        )
        if setup.last_event_number != NO_VALUE:
            raise ProtocolError(f"{created.segment}: a new transient segment already has events of the writer")
        view = memoryview(data)
        for number, start in enumerate(range(0, len(view), EVENT_LENGTH_MAX)):
            piece = view[start : start + EVENT_LENGTH_MAX]
            expect(
                await connection.request(request_id, ConditionalBlockEnd(writer_id, number, start, piece, request_id)),
                DataAppended,
                created.segment,
            )
        return created.segment, request_id


def _as_unknown(error: PenstockError, segment: str) -> PenstockError:
    """Return the error for blocks that may or may not have been stored when the retries ended."""
    if isinstance(error, OutcomeUnknownError):
        return error
    unknown = OutcomeUnknownError(
        f"{segment}: gave up writing; events not acknowledged may or may not be stored: {error}"
    )
    unknown.__cause__ = error
    return unknown


def _stream_of(segment: str) -> str:
    """Return ``scope/stream`` of a segment, for messages."""
    return segment.rpartition("/")[0]
