"""The blocking client: the async one, run in a background event loop through a `Portal`.

Same names, same rules as in `penstock.client.client`; what is said there holds here. Two paths do not cross into the
loop per event: a writer adds events to their block in the calling thread, and a reader hands out a whole chunk before
it asks for the next.

Safe to use from many threads, except one reader, byte reader, byte writer or transaction at a time.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, cast, overload

from penstock.client import client as aio
from penstock.client.ack import AckState
from penstock.client.byte_stream import ByteReader as AsyncByteReader
from penstock.client.byte_stream import ByteWriter as AsyncByteWriter
from penstock.client.event import Event, EventBatch
from penstock.client.event_writer import Events, OnDelivery, RoutingKeys
from penstock.client.event_writer import EventWriter as AsyncEventWriter
from penstock.client.handle import Handle
from penstock.client.membership import OnChange
from penstock.client.opening import awaiting
from penstock.client.reader import Positions
from penstock.client.reader import Reader as AsyncReader
from penstock.client.reader_group import GroupDescription
from penstock.client.reader_group import ReaderGroup as AsyncReaderGroup
from penstock.client.segment_reader import SegmentReader as AsyncSegmentReader
from penstock.client.serializers import Serializer
from penstock.client.settings import ClientSettings
from penstock.client.starts import Start
from penstock.client.transaction import Transaction as AsyncTransaction
from penstock.model.errors import ClosedError, PenstockError
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.portal import Portal
from penstock.runtime.program import ProgramPart, watch_program

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import ReadableBuffer, WriteableBuffer

Value = TypeVar("Value")

_log = logging.getLogger(__name__)

_BATCH_BYTES_MAX = 1024 * 1024


class Ack(AckState):
    """The promise that an event becomes durable; `wait` for it."""

    __slots__ = ("_portal",)

    def __init__(self, portal: Portal) -> None:
        super().__init__()
        self._portal = portal

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the event is durable.

        Raises `TimeoutError` when it is not within `timeout_s`, or the error that kept it from being written.
        """
        if not self.is_done:
            try:
                self._portal.call(self.settled(), timeout_s)
            except ClosedError:
                # Closing settles every ack, perhaps since the look above.
                if not self.is_done:
                    raise
        if self.error is not None:
            raise self.error


class EventWriter(Handle[AsyncEventWriter]):
    """See `penstock.client.event_writer.EventWriter`. Threads may share one; each thread's events keep their order."""

    def __init__(self, client: object, portal: Portal, writer: AsyncEventWriter) -> None:
        super().__init__(client, portal, writer)
        self._writer = writer
        self._put = writer.put

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes written, headers included, that are not durable yet."""
        return self._writer.unacknowledged_bytes

    @property
    def unacknowledged_event_count(self) -> int:
        """Events written that are not durable yet. Counted when asked for."""
        return self._writer.unacknowledged_event_count

    def write(
        self,
        event: bytes,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Take an event and return its `Ack`; blocks only while `max_unacknowledged_bytes` are used up.

        `on_delivery` is called in the client's own thread, which it must not block. See the async method for the rest.
        """
        if self._writer.is_full:
            self._portal.call(self._writer.has_space(timeout_s))
        return cast(Ack, self._put(event, routing_key, on_delivery))

    def write_many(self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None) -> None:
        """Write `events` in order; durable after `flush`. See the async method for what is accepted."""
        self._portal.call(self._writer.write_many(events, routing_keys, timeout_s=timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything written so far is durable. Raises the error of the first event that is not."""
        self._portal.call(self._writer.flush(timeout_s))


class ValueWriter(Generic[Value]):
    """See `penstock.client.value_writer.ValueWriter`."""

    def __init__(self, events: EventWriter, serializer: Serializer[Value]) -> None:
        self.events = events
        self._serializer = serializer

    def write(
        self,
        value: Value,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write a value; see `EventWriter.write`. Raises `SerializationError`."""
        event = self._serializer.serialize(value)
        return self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)

    def write_many(self, values: Sequence[Value], routing_keys: str | Sequence[str] | None = None) -> None:
        """Write many values; see `EventWriter.write_many`. None is written if one cannot be serialized."""
        self.events.write_many(list(map(self._serializer.serialize, values)), routing_keys)

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything written so far is durable."""
        self.events.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop; see `EventWriter.close`."""
        self.events.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.events.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<ValueWriter: {self.events!r}>"


class Transaction(Handle[AsyncTransaction]):
    """See `penstock.client.transaction.Transaction`."""

    def __init__(self, client: object, portal: Portal, transaction: AsyncTransaction) -> None:
        super().__init__(client, portal, transaction)
        self._transaction = transaction

    @property
    def id(self) -> str:
        """The transaction's id, 32 hexadecimal digits."""
        return self._transaction.id

    def write(
        self,
        event: bytes,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write an event into the transaction; see `EventWriter.write`."""
        writer = self._transaction.writer
        if writer.is_full:
            self._portal.call(writer.has_space(timeout_s))
        return cast(Ack, writer.put(event, routing_key, on_delivery))

    def write_many(self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None) -> None:
        """Write many events into the transaction."""
        self._portal.call(self._transaction.write_many(events, routing_keys, timeout_s=timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything written so far is durable (not readable before the commit)."""
        self._portal.call(self._transaction.flush(timeout_s))

    def commit(self) -> None:
        """Flush and decide that the transaction commits."""
        self._portal.call(self._transaction.commit())

    def abort(self) -> None:
        """Decide that none of the transaction's events are ever read."""
        self._portal.call(self._transaction.abort())

    def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return self._portal.call(self._transaction.state())


class Reader(Handle[AsyncReader]):
    """See `penstock.client.reader.Reader`."""

    def __init__(self, client: object, portal: Portal, reader: AsyncReader) -> None:
        super().__init__(client, portal, reader)
        self._reader = reader

    @property
    def name(self) -> str:
        """The reader's name in its group."""
        return self._reader.name

    @property
    def skip_truncated(self) -> bool:
        """True: go on silently after events that were truncated unread. False: raise once first."""
        return self._reader.skip_truncated

    @skip_truncated.setter
    def skip_truncated(self, value: bool) -> None:
        self._reader.skip_truncated = value

    @property
    def is_finished(self) -> bool:
        """True when every stream of the group is sealed and was read to its end."""
        return self._reader.is_finished

    @property
    def segments(self) -> list[str]:
        """Full names of the segments being read here."""
        return self._reader.segments

    def __iter__(self) -> Iterator[Event]:
        reader = self._reader
        while True:
            chunk = self._portal.call(reader.next_chunk())
            if chunk is None:
                return
            while not chunk.is_used_up and not reader.needs_attention:
                yield chunk.hand_out()

    def read(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, blocking up to `timeout_s` (None: without limit); None if there is none."""
        chunk = self._reader.chunk_in_hand() or self._portal.call(self._reader.next_chunk(timeout_s))
        return None if chunk is None else chunk.hand_out()

    def read_batch(self, max_bytes: int = _BATCH_BYTES_MAX, timeout_s: float | None = None) -> EventBatch | None:
        """Return the next events of one segment, up to `max_bytes` framed bytes but at least one; None as `read`."""
        chunk = self._reader.chunk_in_hand() or self._portal.call(self._reader.next_chunk(timeout_s))
        return None if chunk is None else chunk.hand_out_many(max_bytes)

    def store_positions(self) -> None:
        """Store how far this reader is, now. Events handed out last count as unread. Not by `Positions.AT_EXIT`."""
        self._portal.call(self._reader.store_positions())

    def position(self) -> dict[str, int]:
        """Return where the events end that were handed out so far (segment -> offset), for `commit` and `seek`."""
        return self._portal.call_soon(self._reader.position)

    def commit(self, at: Event | EventBatch | Mapping[str, int] | None = None) -> None:
        """Say that events are done, by default all that were handed out; returns once that is stored."""
        self._portal.call(self._reader.commit(at))

    def seek(self, at: Event | Mapping[str, int]) -> None:
        """Go on with `at` once more: an event, or what `position` returned earlier."""
        self._portal.call(self._reader.seek(at))

    def pause(self, *streams: str) -> None:
        """Hand out nothing of these streams (none given: of any) until `resume`."""
        self._portal.call_soon(lambda: self._reader.pause(*streams))

    def resume(self, *streams: str) -> None:
        """Hand out events of these streams (none given: of all) again."""
        self._portal.call_soon(lambda: self._reader.resume(*streams))

    def close(self, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        """Store positions, leave the group and stop; within `reader_close_timeout_s`, or `timeout_s`.

        `is_done`: whether what was handed out last counts as read. None: yes, unless an exception is being handled.
        """
        if is_done is None:
            is_done = sys.exception() is None
        self._portal.call(self._reader.close(timeout_s, is_done=is_done))


class ReaderGroup(Handle[AsyncReaderGroup]):
    """See `penstock.client.reader_group.ReaderGroup`."""

    def __init__(self, client: object, portal: Portal, group: AsyncReaderGroup) -> None:
        super().__init__(client, portal, group)
        self._group = group

    def reader(
        self,
        name: str | None = None,
        *,
        positions: Positions | str = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
    ) -> Reader:
        """Start a reader. One that ran before under the same name goes on where that one stored its positions.

        Without a name it gets one of its own; give names to readers that should resume at once after a crash.
        `on_change` is called in the client's own thread.
        """
        reader = self._group.reader(name, positions=positions, on_change=on_change)
        # It keeps its group alive, too.
        return Reader(self, self._portal, self._portal.call(awaiting(reader)))

    def stream_cuts(self) -> dict[str, StreamCut]:
        """Return how far the group is in each stream, as last stored by its readers."""
        return self._portal.call(self._group.stream_cuts())

    def checkpoint(self) -> dict[str, StreamCut]:
        """Let the readers started here store their positions now, then return `stream_cuts`."""
        return self._portal.call(self._group.checkpoint())

    def reset(self, start: Start) -> None:
        """Let the group go on somewhere else: "earliest", "latest" or at a stream cut for each stream."""
        self._portal.call(self._group.reset(start))

    def unread_bytes(self) -> int:
        """Return how many bytes the group has still to read, as of the stored positions."""
        return self._portal.call(self._group.unread_bytes())

    def describe(self) -> GroupDescription:
        """Return who reads what, how far the group is, and how much it has still to read."""
        return self._portal.call(self._group.describe())



class ByteWriter(io.RawIOBase):
    """A byte stream as a file to append to. See `penstock.client.byte_stream.ByteWriter`."""

    def __init__(self, client: object, portal: Portal, writer: AsyncByteWriter) -> None:
        super().__init__()
        # Kept alive as long as this is used: a client that is dropped is closed.
        self._client = client
        self._portal = portal
        self._writer = writer
        #: Python's files flush once more when they are closed.
        self._is_closing = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Take bytes; durable after `flush`."""
        view = memoryview(data).cast("B")
        return self._portal.call(self._writer.write(view))

    def flush(self) -> None:
        """Make everything written so far durable."""
        if not self._is_closing:
            self._portal.call(self._writer.flush())

    def close(self) -> None:
        """Flush and close. An error that `write` or `flush` has raised before is not raised again."""
        self._is_closing = True
        try:
            if not self._writer.is_closed:
                self._portal.call(self._writer.close())
        finally:
            super().close()

    def __repr__(self) -> str:
        return repr(self._writer)

    def __del__(self) -> None:
        # Not `close`, as of Python's files: this may run in any thread, also in the loop's.
        writer: AsyncByteWriter | None = getattr(self, "_writer", None)
        if writer is not None and writer.is_open:
            warnings.warn(f"unclosed {writer!r}", ResourceWarning, source=self, stacklevel=1)
            self._portal.run_behind(writer.close)

    def tell(self) -> int:
        """Return the offset of the next byte to write."""
        return self._writer.tell()

    def truncate_before(self, offset: int) -> None:
        """Forget the bytes before `offset`."""
        self._portal.call(self._writer.truncate_before(offset))


class ByteReader(io.RawIOBase):
    """A byte stream as a file to read. See `penstock.client.byte_stream.ByteReader`."""

    def __init__(self, client: object, portal: Portal, reader: AsyncByteReader) -> None:
        super().__init__()
        # Kept alive as long as this is used: a client that is dropped is closed.
        self._client = client
        self._portal = portal
        self._reader = reader

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into `buffer`: what is there, else what comes next. 0 once the stream is sealed and read."""
        view = memoryview(buffer).cast("B")
        return self._portal.call(self._reader.readinto(view))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset from the first byte ever written, from here, or from the current end."""
        if whence == io.SEEK_CUR:
            offset += self._reader.tell()
        elif whence == io.SEEK_END:
            offset += self._portal.call(self._reader.current_end())
        return self._portal.call(self._reader.seek(offset))

    def tell(self) -> int:
        """Return the offset of the next byte to read."""
        return self._reader.tell()

    def close(self) -> None:
        """Stop reading ahead."""
        if not self._reader.is_closed:
            self._portal.call(self._reader.close())
        super().close()

    def __repr__(self) -> str:
        return repr(self._reader)

    def __del__(self) -> None:
        reader: AsyncByteReader | None = getattr(self, "_reader", None)
        if reader is not None and reader.is_open:
            warnings.warn(f"unclosed {reader!r}", ResourceWarning, source=self, stacklevel=1)
            self._portal.run_behind(reader.close)


class SegmentReader:
    """Blocks of bytes of one segment. See `penstock.client.segment_reader.SegmentReader`."""

    def __init__(self, client: object, portal: Portal, reader: AsyncSegmentReader) -> None:
        # Kept alive as long as this is used: a client that is dropped is closed.
        self._client = client
        self._portal = portal
        self._reader = reader

    def read(self, timeout_s: float | None = None) -> bytes:
        """Return the next block, waiting for it; empty at the end. Raises `TimeoutError` after `timeout_s`."""
        return self._portal.call(self._reader.read(), timeout_s)

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read():
            yield block

    def close(self) -> None:
        """Stop reading ahead."""
        self._portal.call(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Client(Handle[aio.Client]):
    """See `penstock.client.client.Client`. Make one with `penstock.connect`; use it as a context manager.

    It owns a thread with an event loop, until it is closed or dropped. At the end of the program it flushes what its
    writers have taken, for `exit_timeout_s`, and says on the log what it could not. It does not survive a fork.
    """

    def __init__(self, client: aio.Client) -> None:
        portal = Portal()
        try:
            # The program is watched here, where the thread is known that has to be waited for.
            portal.call_soon(partial(client.open, watch_program=_watched_by_the_handle))
        except BaseException:
            portal.close()
            raise
        super().__init__(None, portal, client)
        self._client: aio.Client = client
        watch_program(self)

    @property
    def uri(self) -> str:
        """The address of the controller."""
        return self._client.uri

    @property
    def settings(self) -> ClientSettings:
        """The settings in force."""
        return self._client.settings

    def close(self, timeout_s: float | None = None) -> None:
        """Close what was opened from here, which flushes; then all connections; then end the background thread.

        All within `timeout_s` (None: `close_timeout_s`). Calling again is fine. Raises what could not be finished.
        """
        try:
            super().close(timeout_s)
        finally:
            self._portal.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            # Interrupted: nobody waits here. The end of the program does, for a while.
            self._client.note_exception()
            self._portal.close_behind(self._client.close)
            return
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._portal.close()

    def on_forked(self) -> None:
        """See `ProgramPart`."""
        self._client.on_forked()

    def on_exit(self) -> None:
        """See `ProgramPart`."""
        # Whether what readers have in hand is done, nobody can tell any more.
        self._client.note_exception()
        if self._client.is_closed:
            return
        timeout_s = self.settings.exit_timeout_s
        try:
            # A little more than the closing has, which says better what is missing; one that began before has more.
            self._portal.call(self._client.close(timeout_s), timeout_s + 1.0)
        except ClosedError:
            pass  # It was being closed, and is now.
        except (PenstockError, TimeoutError) as error:
            why = str(error) or f"not within {timeout_s:g} s (exit_timeout_s)"
            _log.error("the program ended before everything was stored: %s", why)
        finally:
            self._portal.close()

    def __del__(self) -> None:
        client: aio.Client | None = getattr(self, "_client", None)
        if client is not None and client.is_open:
            warnings.warn(f"unclosed {client!r}", ResourceWarning, source=self, stacklevel=1)
            client.note_exception()
            self._portal.close_behind(client.close)

    # -- scopes and streams -------------------------------------------------------------------------------------

    def create_scope(self, scope: str) -> None:
        """Create a scope. Raises `ScopeExistsError`, `InvalidNameError`."""
        self._portal.call(self._client.create_scope(scope))

    def delete_scope(self, scope: str) -> None:
        """Delete an empty scope. Raises `NoSuchScopeError`, `ScopeNotEmptyError`."""
        self._portal.call(self._client.delete_scope(scope))

    def scopes(self) -> Iterator[str]:
        """Iterate over the names of all scopes."""
        return self._portal.iterate(self._client.scopes())

    def create_stream(
        self,
        stream: str,
        *,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] = (),
        rollover_bytes: int = 0,
        exist_ok: bool = False,
    ) -> None:
        """Create a stream, and its scope if that is missing. The default is one segment that keeps everything.

        Raises `StreamExistsError` unless `exist_ok`; the policies of an existing stream are not compared.
        """
        self._portal.call(
            self._client.create_stream(
                stream,
                scaling=scaling,
                retention=retention,
                tags=tags,
                rollover_bytes=rollover_bytes,
                exist_ok=exist_ok,
            )
        )

    def update_stream(
        self,
        stream: str,
        *,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] | None = None,
    ) -> None:
        """Change a stream's policies or tags; what is None stays. Raises `NoSuchStreamError`, `StreamSealedError`."""
        self._portal.call(self._client.update_stream(stream, scaling=scaling, retention=retention, tags=tags))

    def seal_stream(self, stream: str) -> None:
        """Let a stream take no more events. Raises `NoSuchStreamError`."""
        self._portal.call(self._client.seal_stream(stream))

    def delete_stream(self, stream: str) -> None:
        """Delete a sealed stream and its data. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        self._portal.call(self._client.delete_stream(stream))

    def truncate_stream(self, cut: StreamCut) -> None:
        """Forget the events of a stream before `cut`. Raises `NoSuchStreamError`, `MetadataConflictError`."""
        self._portal.call(self._client.truncate_stream(cut))

    def streams(self, scope: str, *, tag: str | None = None) -> Iterator[str]:
        """Iterate over the names of the streams of `scope`, all or those with `tag`. Raises `NoSuchScopeError`."""
        return self._portal.iterate(self._client.streams(scope, tag=tag))

    def stream_exists(self, stream: str) -> bool:
        """Say whether a stream exists."""
        return self._portal.call(self._client.stream_exists(stream))

    def stream_config(self, stream: str) -> StreamConfig:
        """Return a stream's policies and tags. Raises `NoSuchStreamError`."""
        return self._portal.call(self._client.stream_config(stream))

    def head(self, stream: str) -> StreamCut:
        """Return the cut of the oldest events that still exist. Raises `NoSuchStreamError`."""
        return self._portal.call(self._client.head(stream))

    def tail(self, stream: str) -> StreamCut:
        """Return a cut after everything acknowledged so far. Raises `NoSuchStreamError`."""
        return self._portal.call(self._client.tail(stream))

    def segment_info(self, segment: str) -> SegmentInfo:
        """Return start, length and state of a segment, given by its full name. Raises `NoSuchSegmentError`."""
        return self._portal.call(self._client.segment_info(segment))

    def successors(self, stream: str, segment: int) -> dict[int, Sequence[int]]:
        """Return the segments that follow a sealed one (by its id), each with all that it replaces."""
        return self._portal.call(self._client.successors(stream, segment))

    # -- events and bytes ---------------------------------------------------------------------------------------

    @overload
    def event_writer(self, stream: str) -> EventWriter: ...

    @overload
    def event_writer(self, stream: str, *, serializer: Serializer[Value]) -> ValueWriter[Value]: ...

    def event_writer(
        self, stream: str, *, serializer: Serializer[Value] | None = None
    ) -> EventWriter | ValueWriter[Value]:
        """Return a writer of events, or with a serializer of values; use it as a context manager.

        Raises `NoSuchStreamError`, `StreamSealedError`.
        """
        portal = self._portal
        opened = self._client.writer_for_front_end(stream, ack_factory=lambda: Ack(portal))
        writer = EventWriter(self, portal, portal.call(opened.start()))
        return writer if serializer is None else ValueWriter(writer, serializer)

    def begin_transaction(self, stream: str, *, lease_s: float | None = None) -> Transaction:
        """Begin a transaction; leaving it as a context manager commits, or aborts after an exception."""
        portal = self._portal
        transaction = self._client.begin_transaction(
            stream, lease_s=lease_s, ack_factory=lambda: Ack(portal), is_threaded=True
        )
        return Transaction(self, portal, portal.call(awaiting(transaction)))

    def segment_reader(self, segment: str, start_offset: int, end_offset: int | None = None) -> SegmentReader:
        """Read the bytes `[start_offset, end_offset)` of a segment, given by its full name, block by block.

        Without `end_offset` it follows the segment until it is sealed.
        """
        reader = self._portal.call_soon(lambda: self._client.segment_reader(segment, start_offset, end_offset))
        return SegmentReader(self, self._portal, reader)

    def reader_group(
        self,
        group: str,
        streams: Sequence[str],
        *,
        start: Start = None,
        scope: str | None = None,
        reader_timeout_s: float | None = None,
        processing_time_max_s: float | None = None,
        holds_data: bool = False,
    ) -> ReaderGroup:
        """Create a reader group, or join the one of that name, whose positions and times then count.

        `start`: "earliest" (the default), "latest", a stream cut, or one for each stream. The group lives in `scope`,
        by default that of the first stream. Raises `InvalidArgumentError` when the group reads other streams, or for a
        start that is none or lies beyond the end. With `holds_data` retention keeps what the group has not read.
        """
        joined = self._client.reader_group(
            group, streams, start=start, scope=scope,
            reader_timeout_s=reader_timeout_s, processing_time_max_s=processing_time_max_s, holds_data=holds_data,
        )  # fmt: skip
        return ReaderGroup(self, self._portal, self._portal.call(awaiting(joined)))

    def reader_groups(self, scope: str) -> Iterator[str]:
        """Iterate over the names of the reader groups of `scope`, other clients' too. Raises `NoSuchScopeError`."""
        return self._portal.iterate(self._client.reader_groups(scope))

    def delete_reader_group(self, group: str, *, scope: str | None = None) -> None:
        """Delete a reader group: ``scope/group``, or `group` and `scope`. Raises `NoSuchReaderGroupError`."""
        self._portal.call(self._client.delete_reader_group(group, scope=scope))

    def byte_writer(self, stream: str) -> ByteWriter:
        """Return a file that appends raw bytes to a stream of one segment."""
        return ByteWriter(self, self._portal, self._portal.call(awaiting(self._client.byte_writer(stream))))

    def byte_reader(self, stream: str) -> ByteReader:
        """Return a file that reads the raw bytes of a stream of one segment."""
        return ByteReader(self, self._portal, self._portal.call(awaiting(self._client.byte_reader(stream))))


def _watched_by_the_handle(part: ProgramPart) -> None:
    """Stand in for `watch_program`: the handle of the client is told, and tells the client."""
