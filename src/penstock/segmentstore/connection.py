"""`Connection`: one client of a segment store: receives frames, sends replies.

Appends and reads of cached bytes are answered without a task; everything else runs in one task per request. Replies of
one turn of the loop are sent in one write: acknowledgements, and reads that waited for the acknowledged bytes.

A connection is not read while it holds too much of the process's budget for incoming data (`IngestBudget`), has too
many requests in progress, or its peer does not read its replies. Reads or group state may then wait unread behind
appends: after a bounded time the writers of those appends get WrongHost, and reading continues.

Source: wire-protocol 1 and 3.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol, cast

from penstock.model.errors import PenstockError, ProtocolError
from penstock.model.segments import Buffer
from penstock.runtime.failure_levels import level_of
from penstock.runtime.log_context import log_context
from penstock.security.client_certificates import user_of_peer
from penstock.segmentstore.append_processor import AppendProcessor
from penstock.segmentstore.connection_access import ConnectionAccess, UnprovenConnections
from penstock.segmentstore.host_transients import HostTransients
from penstock.segmentstore.ingest_budget import IngestBudget
from penstock.segmentstore.ingest_control import IngestControl
from penstock.segmentstore.long_replies import LONG_REPLY_REQUESTS, LongReplies
from penstock.segmentstore.mark_guard import MarkGuard
from penstock.segmentstore.read_processor import ReadProcessor
from penstock.segmentstore.request_memory import memory_of
from penstock.segmentstore.request_processor import RequestProcessor
from penstock.segmentstore.settings import ConnectionSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.writer_budget import WriterBudget, WriterSlots
from penstock.wire.append_runs import may_be_kept
from penstock.wire.codec import decode_request, encode
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    Hello,
    KeepAlive,
    ReadSegment,
    SetupAppend,
    WireCommand,
)
from penstock.wire.connection import WIRE_VERSION, WIRE_VERSION_OLDEST, send_parts
from penstock.wire.framing import FrameReceiver
from penstock.wire.request_ids import text_of

if TYPE_CHECKING:
    from penstock.segmentstore.token_access import TokenAccess

logger: logging.Logger = logging.getLogger(__name__)


class ConnectionHost(Protocol):
    """State shared by connections; see `SegmentStoreServer`."""

    store: SegmentStore
    settings: ConnectionSettings
    loop: asyncio.AbstractEventLoop
    connections: dict[Connection, None]
    budget: IngestBudget
    writers: WriterBudget
    mark_guard: MarkGuard
    transients: HostTransients
    #: Checks the tokens of requests; None: every client may do everything.
    access: TokenAccess | None
    unproven: UnprovenConnections
    #: Bytes of replies that wait for slow readers, over all connections.
    slow_reply_bytes: int
    is_stopping: bool

    @property
    def has_too_many_slow_replies(self) -> bool:
        """Whether slow readers hold the maximum memory."""
        ...

    @property
    def sync_s(self) -> float:
        """Recent duration of a sync of the log."""
        ...

    @property
    def receive_length(self) -> int:
        """Maximum length of the receive buffer of a further connection."""
        ...

    @property
    def window_bytes_min(self) -> int:
        """Minimum bytes in flight that each connection may have."""
        ...

    def flush_later(self, connection: Connection) -> None:
        """Call `Connection.flush` at the end of the loop's turn, or earlier if a sync of a log ends."""

    def refuse(self, transport: asyncio.Transport) -> None:
        """Close a connection beyond the limit."""

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a job that outlives its connection."""


class Connection(asyncio.BufferedProtocol):
    """One client connection."""

    def __init__(self, server: ConnectionHost) -> None:
        self._server = server
        self._settings = server.settings
        self._loop = server.loop
        self._receiver = FrameReceiver(buffer_length=server.receive_length)
        self._appends = AppendProcessor(server.store, self, WriterSlots(server.writers))
        self._requests = RequestProcessor(
            server.store,
            transient_segments_max=server.settings.transient_segments_max,
            hosts=server.transients,
            host=lambda: self._peer_host,
        )
        self._reads = ReadProcessor(server.store, self, server.loop, server.settings.reads_max)
        self._long_replies = LongReplies(
            self,
            self._requests.answer,
            container_count=server.store.settings.container_count,
            under_way_max=server.settings.table_reads_max,
        )
        #: Bytes of long replies that are queued and not handed to the transport yet.
        self._long_reply_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport
        #: The client's address, ``host:port``, and its host.
        self._peer = self._peer_host = ""
        self._out: list[Buffer] = []
        self._flush_is_due = False
        self._acknowledgement_is_due = False
        self._reads_are_due = False
        self._ingest = IngestControl(
            server.settings,
            server.loop,
            server.budget,
            window_bytes_min=lambda: server.window_bytes_min,
            sync_s=lambda: server.sync_s,
            appends=self._appends,
            may_read=self._may_read,
            resumed=self._reading_resumed,
        )
        #: See `Replies.note_outstanding`.
        self.note_outstanding: Callable[[int], None] = self._ingest.note_outstanding
        self._is_greeted = False
        self.is_write_blocked: bool = False
        #: Bytes of replies that wait for a slow peer; they may keep evicted cache memory alive. 0: it is not slow.
        self._slow_reply_bytes = 0
        #: Made for a connection that is served; None: every client may do everything.
        self._access: ConnectionAccess | None = None
        self._is_closed = False
        self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None
        #: Deadline of the frame that has begun, or of the end of an AppendBlock; 0: none.
        self._frame_deadline_s = 0.0
        self._open_block_number = 0

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        is_pair = isinstance(address, tuple) and len(address) > 1
        self._peer = f"{address[0]}:{address[1]}" if is_pair else str(address)
        self._peer_host = str(address[0]) if is_pair else str(address)
        self._ingest.open(self._transport)
        if self._server.is_stopping:
            # Accepted just before the listening socket was closed: it would never be served.
            self._is_closed = self._ingest.is_closed = True
            self._transport.abort()
            return
        if len(self._server.connections) >= self._settings.connections_max:
            self._is_closed = self._ingest.is_closed = True
            self._server.refuse(self._transport)
            return
        self._server.connections[self] = None
        if (access := self._server.access) is not None:
            user = user_of_peer(transport.get_extra_info("peercert"))
            self._access = ConnectionAccess(
                access, self._server.unproven, self._loop, self, self._receiver, self._peer, user
            )
        self._transport.set_write_buffer_limits(
            high=min(self._settings.slow_reply_bytes, self._settings.write_buffer_bytes_max)
        )
        self._timer = self._loop.call_later(self._settings.handshake_timeout_s, self._handshake_is_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`.

        Limited by the room in the window, with a minimum: all bytes read are in flight. With few connections that is
        the full length: long reads are cheapest.
        """
        return self._receiver.get_buffer(self._ingest.room_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        receiver, appends = self._receiver, self._appends
        has_frames = False
        try:
            receiver.received(nbytes)
            self._ingest.note_received(nbytes, is_buffer_full=receiver.was_filled)
            while not self._is_closed:
                if self._is_greeted:
                    buffer, start, end = receiver.unread
                    if (position := appends.scan(buffer, start, end)) != start:
                        receiver.skip_to(position)
                        has_frames = True
                if (frame := receiver.next_frame()) is None:
                    break
                has_frames = True
                self._handle(*frame)
            appends.submit_gathered()
            self._ingest.note_frames(receiver.long_frame_bytes + appends.open_block_bytes)
        except ProtocolError as error:
            appends.submit_gathered()  # Everything received before it takes effect first.
            self.abort(str(error))
            return
        if not self._is_greeted or self._is_closed:
            return
        # Other frames may arrive between an AppendBlock and its end; they do not extend its deadline.
        block_number, is_same_block = appends.open_block_number, False
        if block_number or self._open_block_number:
            is_same_block = block_number == self._open_block_number
            self._open_block_number = block_number
        if not (receiver.incomplete_length or block_number):
            self._frame_deadline_s = 0.0
        elif (has_frames and not is_same_block) or not self._frame_deadline_s:
            # Another frame has begun. Nearly every read of a busy connection ends inside one: the timer is left
            # unchanged and checks the deadline when it fires.
            self._frame_deadline_s = self._loop.time() + self._settings.frame_timeout_s
            if self._timer is None:
                self._timer = self._loop.call_at(self._frame_deadline_s, self._frame_is_late)

    def eof_received(self) -> bool:
        """See `asyncio.BaseProtocol`: the peer is gone and reads no more replies."""
        return False

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the peer reads its replies too slowly."""
        self._note_slow_replies()

    def _note_slow_replies(self) -> None:
        """Count the bytes that wait for a slow peer, and stop reading its requests if there are too many."""
        server, settings = self._server, self._settings
        waiting = self._transport.get_write_buffer_size()
        server.slow_reply_bytes += waiting - self._slow_reply_bytes
        self._slow_reply_bytes = waiting
        if waiting > settings.write_buffer_bytes_max or server.has_too_many_slow_replies:
            self.is_write_blocked = True
            self._ingest.review()

    def _forget_slow_replies(self) -> None:
        self._server.slow_reply_bytes -= self._slow_reply_bytes
        self._slow_reply_bytes = 0

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._forget_slow_replies()
        self.is_write_blocked = False
        self._reads.resume()
        self._long_replies.resume()
        self._ingest.review()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        if isinstance(exc, TimeoutError):
            timeout_s = self._settings.dead_peers.timeout_s
            logger.info("dropped the connection of %s: nothing received for %g s", self._peer, timeout_s)
        self._is_closed = self._ingest.is_closed = True
        self._forget_slow_replies()
        self._cancel_timer()
        self._ingest.close()
        if self._access is not None:
            self._access.close()
        self._server.forget(self)
        self._appends.close()
        self._ingest.release()
        self._out.clear()
        self._reads.close()
        for task in self._tasks:
            task.cancel()
        if self._requests.has_transients:
            self._server.spawn(self._requests.close())
        self._requests.release()
        # These refer to this connection. Long-lived objects are rarely collected, so that cycles would keep buffers,
        # and the state of TLS, of connections that were lost. What is in progress has references of its own.
        del self._transport, self._appends, self._requests, self._reads, self._long_replies, self._access

    @property
    def has_unanswered(self) -> bool:
        """Whether there are requests without an answer, other than reads."""
        return self._ingest.outstanding_bytes > 0

    # Requests.

    def _handle(self, type_code: int, payload: memoryview, is_owned: bool) -> None:
        command = decode_request(type_code, payload)
        if not self._is_greeted:
            self._greet(command)
            return
        if self._access is not None and not self._is_permitted(command, self._access):
            return
        if isinstance(command, AppendBlockEnd):
            self._appends.end_block(command, owned_bytes=len(payload) if is_owned else 0)
        elif isinstance(command, ReadSegment):
            self._reads.read(command)
        elif isinstance(command, AppendBlock):
            self._appends.begin_block(command, command.data if is_owned else bytes(command.data))
        elif isinstance(command, ConditionalBlockEnd):
            self._appends.append_conditionally(command, _kept(command.data, payload, is_owned))
        elif isinstance(command, ConditionalAppend):
            self._appends.append_conditionally(
                command, b"\0\0\0\0" + len(command.data).to_bytes(4, "big") + command.data
            )
        elif (refusal := self._server.mark_guard.refusal(command)) is not None:
            self.send(encode(refusal))
        elif isinstance(command, SetupAppend):
            self._appends.set_up(command)
        elif isinstance(command, KeepAlive):
            self.send(encode(command))
        elif isinstance(command, Hello):
            raise ProtocolError("a second Hello")
        else:
            self._appends.submit_gathered()
            byte_count = memory_of(command, len(payload))
            self.note_outstanding(byte_count)
            self.spawn(self._answer(command, byte_count))

    def _is_permitted(self, command: WireCommand, access: ConnectionAccess) -> bool:
        """Check the token of a request; send the refusal if there is one."""
        refusal = access.check(command)
        if refusal is not None:
            self._appends.submit_gathered()
            self.send(encode(refusal))
        return refusal is None

    def _greet(self, command: WireCommand) -> None:
        if not isinstance(command, Hello):
            raise ProtocolError(f"{type(command).__name__} before Hello")
        self._is_greeted = True
        logger.info("client %s connects, wire versions %d to %d", self._peer, command.low, command.high)
        self._cancel_timer()
        self.send(encode(Hello(WIRE_VERSION, WIRE_VERSION_OLDEST)))
        if command.low > WIRE_VERSION or command.high < WIRE_VERSION_OLDEST:
            self.abort(f"peer speaks versions {command.low} to {command.high}")

    async def _answer(self, command: WireCommand, byte_count: int) -> None:
        """Answer a request counted as `byte_count`. Cancelled before its start only if the connection is lost."""
        # Lines about this request tell which client's call it belongs to, also if a controller has sent it.
        name, request_id = type(command).__name__, text_of(getattr(command, "request_id", -1))
        log_context.set({"call": name, "peer": self._peer, "request_id": request_id})
        try:
            if isinstance(command, LONG_REPLY_REQUESTS):
                await self._long_replies.reply(command)
            else:
                reply = await self._requests.answer(command)
                if logger.isEnabledFor(logging.DEBUG):
                    segment = getattr(command, "segment", "") or getattr(command, "target", "")
                    logger.debug("request %s: %s %s: %s", request_id, name, segment, type(reply).__name__)
                self.send(encode(reply))
        finally:
            self.note_outstanding(-byte_count)

    # The Replies and ReadReplies interfaces.

    def send(self, frame: bytes) -> None:
        """See `Replies.send`."""
        self._out.append(frame)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._server.flush_later(self)

    def send_parts(self, parts: list[Buffer]) -> None:
        """See `ReadReplies.send_parts`."""
        self._out += parts
        if not self._flush_is_due:
            self._flush_is_due = True
            self._server.flush_later(self)

    @property
    def takes_replies(self) -> bool:
        """See `LongReplyHost.takes_replies`."""
        return not self.is_write_blocked and self._long_reply_bytes <= self._settings.write_buffer_bytes_max

    def send_long(self, frame: bytes) -> None:
        """See `LongReplyHost.send_long`."""
        self._long_reply_bytes += len(frame)
        self.send(frame)

    def acknowledge_later(self) -> None:
        """See `Replies.acknowledge_later`."""
        self._acknowledgement_is_due = True
        if not self._flush_is_due:
            self._flush_is_due = True
            self._server.flush_later(self)

    def serve_reads_later(self) -> None:
        """See `ReadReplies.serve_reads_later`."""
        self._reads_are_due = True
        if not self._flush_is_due:
            self._flush_is_due = True
            self._server.flush_later(self)

    @property
    def has_too_many_slow_replies(self) -> bool:
        """See `ReadReplies.has_too_many_slow_replies`."""
        return self._server.has_too_many_slow_replies

    def abort(self, reason: str) -> None:
        """See `Replies.abort`: queued replies are still sent."""
        if self._is_closed:
            return
        logger.info("closing connection of %s: %s", self._transport.get_extra_info("peername"), reason)
        self._appends.send_acknowledgements()
        self._write_out()
        self._is_closed = self._ingest.is_closed = True
        self._transport.close()
        # A peer that reads nothing must not keep the connection alive.
        self._timer = self._loop.call_later(self._settings.drain_timeout_s, self._transport.abort)

    def flush(self) -> None:
        """Send what is due; see `ConnectionHost.flush_later`."""
        if self._is_closed:
            self._flush_is_due = False
            self._out.clear()
            return
        # While it is due, sending schedules nothing further.
        if self._acknowledgement_is_due:
            self._acknowledgement_is_due = False
            self._appends.send_acknowledgements()
        if self._reads_are_due:
            self._reads_are_due = False
            self._reads.serve()
        self._flush_is_due = False
        self._write_out()
        self._reads.flushed()

    def _write_out(self) -> None:
        out, self._out = self._out, []
        if not out or self._is_closed:
            return
        send_parts(self._transport, out)
        if self._slow_reply_bytes:
            self._note_slow_replies()
        if self._long_reply_bytes:
            self._long_reply_bytes = 0
            if not self.is_write_blocked:
                self._long_replies.resume()

    def _may_read(self) -> bool:
        return not (self.is_write_blocked or self._reads.is_full or len(self._tasks) >= self._settings.requests_max)

    def _reading_resumed(self) -> None:
        if self._frame_deadline_s:
            # Its rest may be in the receive queue: the time without reading does not count against the peer.
            self._frame_deadline_s = self._loop.time() + self._settings.frame_timeout_s

    def review(self) -> None:
        """See `ReadReplies.review`."""
        self._ingest.review()

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """See `Replies.spawn`."""
        context = copy_context()
        task = self._loop.create_task(coroutine, context=context)
        self._tasks.add(task)
        # In the context of the task: the line about an error then tells which request failed.
        task.add_done_callback(self._request_done, context=context)
        if len(self._tasks) >= self._settings.requests_max:
            self._ingest.review()

    def _request_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.task_ended(task)

    def task_ended(self, task: asyncio.Task[None]) -> None:
        """See `ReadReplies.task_ended`."""
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, PenstockError):
                logger.log(level_of(error), "a request of %s failed: %s", self._peer, error)
            else:
                logger.error("request failed", exc_info=error)
            self.abort(f"request failed: {error!r}")
        elif not self._ingest.is_reading:
            self._ingest.review()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handshake_is_late(self) -> None:
        self.abort(f"no Hello within {self._settings.handshake_timeout_s} s")

    def _frame_is_late(self) -> None:
        self._timer = None
        if not self._frame_deadline_s:
            return
        if not self._ingest.is_reading:
            # The server itself is not reading.
            self._frame_deadline_s = self._loop.time() + self._settings.frame_timeout_s
        if self._frame_deadline_s > self._loop.time():
            self._timer = self._loop.call_at(self._frame_deadline_s, self._frame_is_late)
            return
        self.abort(f"a frame, or the end of an append block, took longer than {self._settings.frame_timeout_s} s")


def _kept(data: Buffer, payload: memoryview, is_owned: bool) -> Buffer:
    """Return data that may be kept: copied out of the receive buffer, unless the frame owns its memory."""
    return data if is_owned and may_be_kept(len(data), len(payload)) else bytes(data)
