"""`SingleAppender`: sequential appends to one segment, each exactly once, conditional or not.

Lost replies are resolved. The segment stores the number of the last append of each writer: a new set-up returns it, and
thus whether the last append is stored. So the outcome is unknown only if the time limit expires first.
"""

from __future__ import annotations

import asyncio
from random import Random

from penstock.client.common.deadline import Deadline, in_turn, within
from penstock.client.common.retry import Backoff
from penstock.client.common.waits import DISK_FULL, Wait
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.exchanges import in_time
from penstock.client.transport.replies import error_of, expect, unexpected
from penstock.model.errors import (
    ConnectionLostError,
    ControllerUnavailableError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    StorageFullError,
    TokenExpiredError,
    UnacknowledgedStorageFullError,
)
from penstock.model.events import EVENT_LENGTH_MAX, frame_event
from penstock.model.names import is_written_for_readers
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
    SetupAppend,
    WireCommand,
    WrongHost,
)
from penstock.wire.connection import WireConnection


class SingleAppender:
    """See the module. Concurrent calls are serialized. The writer id belongs to this object for its lifetime."""

    def __init__(self, pool: ConnectionPool, segment: str, settings: ClientSettings, rng: Random) -> None:
        self._pool = pool
        self._segment = segment
        self._settings = settings
        self._rng = rng
        self._writer_id = rng.randbytes(16)
        self._number = 0
        #: The connection with the writer's set-up, while no append is unanswered.
        self._connection: WireConnection | None = None
        self._turn = asyncio.Lock()
        #: Why the store held writes at the last inspection of a long wait; None: it did not.
        self._last_full: str | None = None

    async def append_event(self, event: bytes, expected_offset: int | None = None) -> bool:
        """Append an event with its header; return True, or False if the segment is not `expected_offset` bytes long.

        If cancelled, it may be stored or not, now or a little later, but never after the next one.

        Raises `SegmentSealedError`, `NoSuchSegmentError`, `OutcomeUnknownError` when the time limit expires.
        """
        if len(event) > EVENT_LENGTH_MAX:
            raise InvalidArgumentError(
                f"{self._segment}: {len(event)} bytes in one append, the limit is {EVENT_LENGTH_MAX}"
            )
        return await self.append_bytes(frame_event(event), expected_offset)

    async def append_bytes(self, data: bytes, expected_offset: int | None = None) -> bool:
        """Append raw bytes, at most as many as fit into one frame; otherwise as `append_event`."""
        limit_s = self._settings.retry_time_max_s
        with within(f"append to {self._segment}", limit_s, "retry_time_max_s") as deadline:
            async with in_turn(self._turn):
                self._number += 1
                try:
                    return await self._append_reported(data, self._number, expected_offset, deadline)
                except BaseException:
                    # Later replies on that connection are ignored.
                    self._connection = None
                    raise

    async def _append_reported(self, data: bytes, number: int, expected_offset: int | None, deadline: Deadline) -> bool:
        """Append, and report a long wait. Raises `StorageFullError` if a full disk uses up the time limit."""
        waits = self._pool.waits
        if waits is None:
            return await self._append(data, number, expected_offset)
        with waits.during(f"write to {self._segment.rpartition('/')[0]}", deadline.at_s) as wait:
            self._begin(wait)
            try:
                return await self._append(data, number, expected_offset)
            except OutcomeUnknownError as error:
                full = self._last_full
                if full is None:
                    raise
                text = f"{self._segment}: disk full on the server for {deadline.limit_s:g} s ({deadline.limit_name}): "
                if isinstance(error, ConnectionLostError):
                    raise StorageFullError(f"{text}{full}; nothing was sent") from error
                raise UnacknowledgedStorageFullError(
                    f"{text}{full}; events that were sent may or may not be stored"
                ) from error

    def _full_disk(self, endpoint: tuple[str, int]) -> str | None:
        """Return why this segment's store holds writes because of a full disk, as far as it reported that recently."""
        if is_written_for_readers(self._segment):
            return None
        state = self._pool.store_states.state(endpoint, self._segment)
        return None if state is None else state.full

    def _begin(self, wait: Wait) -> None:
        wait.on_long = self._inspect_store
        self._last_full = None

    def _inspect_store(self, wait: Wait) -> None:
        endpoint = self._pool.known_endpoint(self._segment)
        if endpoint is None:
            return  # The last attempt has failed, and the next one locates the store again.
        self._last_full = self._full_disk(endpoint)
        if self._last_full is not None:
            wait.why, wait.detail = DISK_FULL, self._last_full

    async def _append(self, data: bytes, number: int, expected_offset: int | None) -> bool:
        backoff = Backoff(self._settings, self._rng)
        # Sent, and neither acknowledged nor rejected.
        unanswered: OutcomeUnknownError | None = None
        while True:
            try:
                connection, stored = await self._set_up(backoff)
                if unanswered is not None and stored >= number:
                    return True
            except (ConnectionLostError, ControllerUnavailableError) as error:
                await self._pause(backoff, error, unanswered)
                continue
            except PenstockError as error:
                raise _unknown(error, unanswered) from error
            try:
                reply = await self._exchange(connection, data, number, expected_offset)
            except OutcomeUnknownError as error:
                unanswered = error
                self._connection = None
                self._pool.forget(self._segment)
                await self._pause(backoff, error, unanswered)
                continue
            match reply:
                case DataAppended():
                    return True
                case ConditionalCheckFailed():
                    if unanswered is None:
                        return False
                    # Possibly because of the first attempt. If it is not stored now, it never will be: the offset is in
                    # the past.
                    return await self._is_stored(number, backoff, unanswered)
                case InvalidEventNumber():
                    # Another connection has stored an append of this writer: the set-up shows which.
                    unanswered = unanswered or OutcomeUnknownError(f"{self._segment}: append {number} is refused")
                    self._connection = None
                    await self._pause(backoff, unanswered, unanswered)
                case WrongHost():
                    self._connection = None
                    self._pool.forget(self._segment)
                    await self._pause(backoff, _error_of(reply, self._segment), unanswered)
                case _:
                    refusal = _error_of(reply, self._segment)
                    raise _unknown(refusal, unanswered) from refusal

    async def _is_stored(self, number: int, backoff: Backoff, unanswered: OutcomeUnknownError) -> bool:
        while True:
            self._connection = None
            try:
                _, stored = await self._set_up(backoff)
                return stored >= number
            except (ConnectionLostError, ControllerUnavailableError) as error:
                await self._pause(backoff, error, unanswered)
            except PenstockError as error:
                raise _unknown(error, unanswered) from error

    async def _set_up(self, backoff: Backoff) -> tuple[WireConnection, int]:
        """Return a connection with the writer set up on it, and the number of its last stored append."""
        segment = self._segment
        with backoff.attempt(f"set up a writer of {segment}"):
            connection = await self._pool.connection(segment, Purpose.APPEND)
            if connection is self._connection:
                # No append is unanswered there, so no number is needed.
                return connection, -1
            self._connection = None
            request_id = connection.next_request_id()
            setup = SetupAppend(request_id, self._writer_id, segment, self._pool.tokens.of(segment))
            try:
                reply = await in_time(segment, connection.request(request_id, setup))
            except OutcomeUnknownError as error:
                self._pool.forget(segment)
                raise ConnectionLostError(f"{segment}: a writer's set-up got no answer: {error}") from error
        if isinstance(reply, WrongHost):
            self._pool.forget(segment)
            raise ConnectionLostError(f"{segment}: a writer's set-up: {_error_of(reply, segment)}")
        if isinstance(reply, AuthTokenCheckFailed):
            refusal = _error_of(reply, segment)
            self._pool.tokens.forget(segment)
            if isinstance(refusal, TokenExpiredError):
                raise ConnectionLostError(f"{segment}: a writer's set-up: {refusal}")
        stored = expect(reply, AppendSetup, segment).last_event_number
        self._connection = connection
        return connection, stored

    async def _exchange(
        self, connection: WireConnection, data: bytes, number: int, expected_offset: int | None
    ) -> WireCommand:
        request_id = connection.next_request_id()
        command: WireCommand
        if expected_offset is None:
            command = AppendBlockEnd(self._writer_id, len(data), data, 1, number, request_id)
        else:
            command = ConditionalBlockEnd(self._writer_id, number, expected_offset, data, request_id)
        return await in_time(self._segment, connection.request(request_id, command))

    async def _pause(self, backoff: Backoff, error: PenstockError, unanswered: OutcomeUnknownError | None) -> None:
        try:
            await backoff.pause(error)
        except PenstockError as last:
            raise _unknown(last, unanswered) from error


def _unknown(error: PenstockError, unanswered: OutcomeUnknownError | None) -> PenstockError:
    """Return the error to raise: an error after an unanswered attempt leaves that attempt's outcome unknown."""
    if unanswered is None or error is unanswered:
        return error
    return OutcomeUnknownError(
        f"an attempt got no answer ({unanswered}), and its outcome could not be determined: {error}"
    )


def _error_of(reply: WireCommand, segment: str) -> PenstockError:
    return error_of(reply, segment) or unexpected(reply, segment)
