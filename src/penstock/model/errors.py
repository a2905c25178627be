"""The errors that Penstock raises, in one tree:

    PenstockError
    ├── InvalidArgumentError            the caller's mistake; also a ValueError
    │   ├── InvalidNameError
    │   ├── EventTooLargeError          fields `length_bytes`, `length_bytes_max`
    │   ├── TableReadTooLongError       one reply cannot have so many entries, or entries so long: ask for fewer
    │   └── SerializationError          a value is not one of the serializer's, or an event's bytes are not
    │       └── UndecodableEventError   ... of an event that was read: says which, and what to do
    ├── SegmentError                    about one segment (field `segment`)
    │   ├── NoSuchSegmentError
    │   ├── SegmentExistsError
    │   ├── SegmentInactiveError        not in its container's memory (inside a segment store only)
    │   ├── AttributesNotLoadedError    likewise, of attribute values
    │   ├── TooManyActiveSegmentsError  no room in the container's memory; a retry is safe
    │   ├── SegmentBackloggedError      long-term storage does not take it; a retry is safe
    │   ├── SegmentSealedError
    │   ├── SegmentTruncatedError       fields `start_offset`, `offset`
    │   ├── BadOffsetError              fields `expected`, `actual`
    │   ├── SegmentMergedError
    │   ├── BadEventNumberError         another connection has written with this writer id
    │   ├── BadAttributeError           a conditional attribute update did not match
    │   ├── TableNotEmptyError
    │   └── TableConditionError      a condition of a table's change did not hold; nothing was changed; field `key`
    │       ├── TableKeyMissingError    also a KeyError
    │       └── TableKeyVersionError
    ├── ContainerNotFoundError          the container is not here (wire: WrongHost)
    ├── ContainerOfflineError           the container has stopped or is recovering; a retry is safe
    │   └── OwnershipUnconfirmedError   it may have been shut out, and does not answer until it knows
    ├── UnsupportedOperationError       not built yet, or not possible for this kind of segment
    ├── ProtocolError                   bytes on a connection that are not the protocol
    ├── OutcomeUnknownError             the reply was lost: neither success nor failure
    │   └── ConnectionLostError
    ├── StorageError                    a tier, or the local disk
    │   ├── CorruptionError             fields `path`, `offset`: stop, keep the evidence
    │   │   ├── MissingChunkError       a chunk that a segment's records lead to is not there
    │   │   └── InconsistentStateError  a container's memory contradicts itself: it starts anew from its log
    │   ├── StorageUnavailableError     long-term storage is not there, or not the one that it was; a retry is safe
    │   │   ├── StorageIdentityError    ... because it is another cluster's, or its identity is damaged
    │   │   └── StorageRefusedError     ... because it refuses every request; not before somebody has done something
    │   │       ├── StorageCredentialsError     ... with these credentials, or without any
    │   │       ├── StorageBucketMissingError   ... for this bucket at this endpoint
    │   │       └── StorageClockError           ... by this machine's clock
    │   ├── LogFencedError              another incarnation owns the log now
    │   ├── LogDisabledError            the log was switched off after corruption
    │   ├── LogClosedError
    │   ├── StorageFullError
    │   ├── StorageUnreachableError     no connection, or it broke: what was asked for may have happened
    │   ├── StorageThrottledError       too many requests; a retry later is safe
    │   ├── StorageNotRespondingError   it hangs; what was asked of it may still happen
    │   ├── StorageNotPrimaryError      a later epoch owns the stored segment
    │   ├── StorageConflictError        the records of a stored segment were changed meanwhile
    │   ├── ChunkError                  NoSuchChunkError, ChunkExistsError, BadChunkOffsetError
    │   └── ObjectError                 NoSuchObjectError, ObjectExistsError, ObjectRangeError (inside a segment store)
    ├── DataDirectoryInUseError         a second process on one data directory
    └── StreamError                     control plane: NoSuchScopeError, ScopeExistsError, ScopeNotEmptyError,
        │                               NoSuchStreamError, StreamExistsError, StreamNotSealedError,
        │                               StreamSealedError, TransactionError, MetadataConflictError,
        │                               NoSuchTableError, TableExistsError, ...
        ├── TransactionError            about one transaction (fields `stream`, `transaction`)
        │   ├── NoSuchTransactionError  the id is none of the stream, or it ended more than a day ago
        │   ├── TransactionCommittedError
        │   ├── TransactionAbortedError
        │   │   ├── TransactionExpiredError       ... because nobody renewed its lease, or it was open for too long
        │   │   └── TransactionStreamSealedError  ... because its stream was; also a StreamSealedError
        │   ├── TransactionStreamDeletedError     also a NoSuchStreamError
        │   └── TransactionPreparedError          it waits for its decision: it takes no more events, its stream no seal
        ├── WriteTimeoutError           no room for an event in time; also a TimeoutError; field `taken_count`
        └── ClosedError                 a client, writer, reader, ... takes no more work; also a ValueError
            └── ForkedError             ... because it is the parent process's

Whether a retry is safe is said by `PenstockError.is_retriable`.
"""

from __future__ import annotations

from collections.abc import Sequence

#: As `penstock.model.segments` has them, which builds on this module.
_VERSION_ABSENT = -1
_VERSION_UNKNOWN = -(1 << 63)


class PenstockError(Exception):
    """Root of every error that Penstock raises on purpose."""

    #: True when the same request may be sent again without risk of being applied twice.
    is_retriable = False


class InvalidArgumentError(PenstockError, ValueError):
    """The caller passed something that can never work."""


class InvalidNameError(InvalidArgumentError):
    """A scope, stream, reader group, reader or writer name breaks the naming rules."""


class SerializationError(InvalidArgumentError):
    """A value is not one that the serializer can write, or the bytes of an event are not what it reads."""


class UndecodableEventError(SerializationError):
    """An event was read whose bytes are not what the serializer reads. It does not count as read, and comes again.

    Attributes:
        stream: ``scope/stream``.
        segment_id: 64-bit segment id.
        offset, position: bytes in the segment where the event begins, and where the next one does.
        data: the payload.
    """

    def __init__(self, *, stream: str, segment_id: int, offset: int, position: int, data: bytes, reason: str) -> None:
        super().__init__(
            f"the event of {stream} in segment {segment_id} at byte {offset} ({len(data)} bytes) cannot be decoded: "
            f"{reason}; it is still unread: take it as bytes with events.read() of the reader, and go on"
        )
        self.stream = stream
        self.segment_id = segment_id
        self.offset = offset
        self.position = position
        self.data = data


class EventTooLargeError(InvalidArgumentError):
    """An event is longer (`length_bytes`) than the writer's settings allow (`length_bytes_max`)."""

    def __init__(self, *, length_bytes: int, length_bytes_max: int) -> None:
        super().__init__(f"an event of {length_bytes} bytes is above large_event_bytes_max ({length_bytes_max})")
        self.length_bytes = length_bytes
        self.length_bytes_max = length_bytes_max


class TableReadTooLongError(InvalidArgumentError):
    """A read of a table asks for more keys, or for more bytes of entries, than one reply may have. Ask for fewer.

    Up to `TABLE_READ_KEY_COUNT_SURE` keys fit, whatever they and their values are.
    """


class SegmentError(PenstockError):
    """A request about one segment could not be done. `segment` is its full name."""

    def __init__(self, segment: str, message: str) -> None:
        super().__init__(f"{segment}: {message}")
        self.segment = segment


class NoSuchSegmentError(SegmentError):
    """The segment does not exist (never created, deleted, or merged away)."""

    def __init__(self, segment: str, message: str = "no such segment") -> None:
        super().__init__(segment, message)


class SegmentExistsError(SegmentError):
    """A segment of that name exists already."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment exists already")


class SegmentInactiveError(SegmentError):
    """The segment is not in its container's memory. It may exist: activate it, or learn that it does not."""

    is_retriable = True

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment is not in memory")


class AttributesNotLoadedError(SegmentError):
    """Attribute values that a request depends on (`attribute_ids`) are not in memory: load them and try again."""

    is_retriable = True

    def __init__(self, segment: str, attribute_ids: Sequence[bytes]) -> None:
        super().__init__(segment, f"{len(attribute_ids)} attributes are not in memory")
        self.attribute_ids = attribute_ids


class SegmentBackloggedError(SegmentError):
    """Too much of the segment waits for long-term storage, which does not take it. Nothing was done."""

    is_retriable = True

    def __init__(self, segment: str, *, byte_count: int, bytes_max: int, held_s: float) -> None:
        super().__init__(
            segment,
            f"{byte_count} bytes of it wait for long-term storage, at most {bytes_max} may, and none were taken "
            f"within {held_s:g} s; the log of the segment store says why its flush fails; try again later",
        )
        self.byte_count = byte_count
        self.bytes_max = bytes_max


class TooManyActiveSegmentsError(SegmentError):
    """The container has no room for another active segment, and none could be put away. Nothing was done."""

    is_retriable = True

    def __init__(self, segment: str, *, active_count: int, active_max: int, reason: str) -> None:
        super().__init__(
            segment,
            f"{active_count} segments are active in its container, {active_max} are allowed, and none can be put away: "
            f"{reason}; try again once long-term storage has caught up",
        )
        self.active_count = active_count
        self.active_max = active_max


class SegmentSealedError(SegmentError):
    """The segment is sealed; ask the controller for its successors."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment is sealed; ask for its successors")


class SegmentMergedError(SegmentError):
    """The segment was merged into another one and holds nothing of its own any more."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment was merged into another one")


class SegmentTruncatedError(SegmentError):
    """`offset` lies before `start_offset`, the first byte that still exists."""

    def __init__(self, segment: str, *, start_offset: int, offset: int) -> None:
        super().__init__(segment, f"offset {offset} is not available, the segment starts at {start_offset}")
        self.start_offset = start_offset
        self.offset = offset


class BadOffsetError(SegmentError):
    """A conditional request named an offset (`expected`) that is not the current one (`actual`)."""

    def __init__(self, segment: str, *, expected: int, actual: int) -> None:
        super().__init__(segment, f"expected offset {expected}, found {actual}")
        self.expected = expected
        self.actual = actual


class BadEventNumberError(SegmentError):
    """The writer's stored event number is not the one this connection remembers: another connection wrote."""

    def __init__(self, segment: str, *, writer_id: bytes, event_number: int, stored: int) -> None:
        super().__init__(
            segment, f"event number {event_number} of writer {writer_id.hex()} does not follow the stored {stored}"
        )
        self.writer_id = writer_id
        self.event_number = event_number
        self.stored = stored


class BadAttributeError(SegmentError):
    """A conditional attribute update found another value (`actual`) than it demanded (`expected`)."""

    def __init__(self, segment: str, *, attribute_id: bytes, expected: int, actual: int) -> None:
        super().__init__(segment, f"attribute {attribute_id.hex()} is {actual}, expected {expected}")
        self.attribute_id = attribute_id
        self.expected = expected
        self.actual = actual


class TableNotEmptyError(SegmentError):
    """A table segment that must be empty to be deleted still holds keys."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "table segment is not empty")


class TableConditionError(SegmentError):
    """What a change of a table was conditional on did not hold. Nothing was changed.

    `key`: of several, the first with a condition; a server does not say which did not hold.
    """

    def __init__(self, segment: str, message: str, *, key: bytes) -> None:
        super().__init__(segment, message)
        self.key = key


class TableKeyMissingError(TableConditionError, KeyError):
    """A key that had to exist does not: a change demanded a version of it, or it was asked for as ``table[key]``.

    Also a `KeyError`.
    """

    def __init__(self, segment: str, *, key: bytes) -> None:
        super().__init__(segment, f"key {key!r} does not exist", key=key)

    def __str__(self) -> str:
        # A `KeyError` would show its message in quotes.
        return Exception.__str__(self)


class TableKeyVersionError(TableConditionError):
    """A conditional table update found another version (`actual`) than it demanded (`expected`).

    -1 stands for "no such key". `actual` is -2**63 where it is not known: a server does not say it.
    """

    def __init__(self, segment: str, *, key: bytes, expected: int, actual: int) -> None:
        wanted = "not to exist" if expected == _VERSION_ABSENT else f"to have version {expected}"
        found = "another one" if actual == _VERSION_UNKNOWN else f"version {actual}"
        super().__init__(segment, f"key {key!r} was expected {wanted}, and has {found}", key=key)
        self.expected = expected
        self.actual = actual


class ContainerNotFoundError(PenstockError):
    """The segment's container is not run by this segment store; ask the controller for its host."""

    is_retriable = True

    def __init__(self, container_id: int, message: str = "container is not hosted here") -> None:
        super().__init__(f"container {container_id}: {message}")
        self.container_id = container_id


class ContainerOfflineError(PenstockError):
    """The container has stopped, or has not finished its recovery. Nothing was applied; try again."""

    is_retriable = True

    def __init__(self, container_id: int, message: str = "container is offline") -> None:
        super().__init__(f"container {container_id}: {message}")
        self.container_id = container_id


class OwnershipUnconfirmedError(ContainerOfflineError):
    """The container has not heard of its log for too long that it still owns it: what it knows may be out of date."""

    def __init__(self, container_id: int, *, confirmed_before_s: float, lease_s: float) -> None:
        super().__init__(
            container_id,
            f"its log has not said for {confirmed_before_s:.1f} s that it is still the owner, and {lease_s:g} s are "
            "allowed (ownership_lease_s): what it knows may be out of date",
        )


class UnsupportedOperationError(PenstockError):
    """The operation is not built yet, or makes no sense for this kind of segment."""


class ProtocolError(PenstockError):
    """The bytes received are not the protocol. The connection must be closed."""


class OutcomeUnknownError(PenstockError):
    """The request may or may not have been applied. Find out before repeating it."""


class ConnectionLostError(OutcomeUnknownError):
    """The connection ended before the reply came."""


class StorageError(PenstockError):
    """A storage tier or the disk under it failed."""


class CorruptionError(StorageError):
    """Stored bytes are not what was written. `path` and `offset` (bytes) say where."""

    def __init__(self, path: str, offset: int, message: str) -> None:
        super().__init__(f"corrupt data in {path} at byte {offset}: {message}; nothing was changed, keep the file")
        self.path = path
        self.offset = offset


class MissingChunkError(CorruptionError):
    """A chunk that a segment's records lead to is not in long-term storage. `path` is the chunk's name.

    It stops reads of those bytes, and the flush of that segment; everything else goes on.
    """

    def __init__(self, chunk: str, message: str) -> None:
        super().__init__(chunk, 0, message)


class InconsistentStateError(CorruptionError):
    """What a container has in memory contradicts itself or its storage: it must start anew from its log."""


class StorageUnavailableError(StorageError):
    """Long-term storage as a whole is not there, or is not the place that it was. Nothing was changed; try again."""

    is_retriable = True


class StorageIdentityError(StorageUnavailableError):
    """The place that is to be long-term storage (`place`) belongs to somebody else, or its identity is damaged."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place} is not this cluster's long-term storage: {message}")
        self.place = place


class StorageRefusedError(StorageUnavailableError):
    """Long-term storage refuses every request, and did nothing. It will until somebody changes what it is told."""


class StorageCredentialsError(StorageRefusedError):
    """Long-term storage refuses the credentials, they permit too little, or there are none."""


class StorageBucketMissingError(StorageRefusedError):
    """The bucket that is to be long-term storage does not exist at the endpoint and in the region that are set."""


class StorageClockError(StorageRefusedError):
    """Long-term storage refuses requests whose time differs too much from its own."""


class LogFencedError(StorageError):
    """Another incarnation has opened the log. This one must stop and may not acknowledge anything."""


class LogDisabledError(StorageError):
    """The log was disabled, usually after corruption; an administrator must enable it."""


class LogClosedError(StorageError):
    """The log is closed, or closed itself after a failed write."""


class StorageNotRespondingError(StorageError):
    """A tier did not answer in time, or so many calls of it hang already that it is asked nothing more.

    What was asked of it may still happen, at any later time.
    """


class StorageFullError(StorageError):
    """No space is left. Retry after space was freed."""

    is_retriable = True


class StorageUnreachableError(StorageError):
    """There is no connection to long-term storage, or it broke: then what was asked for may have happened.

    One request is meant. Whether all of the storage is away is found out by looking at it (`StorageUnavailableError`).
    """


class StorageThrottledError(StorageError):
    """Long-term storage was asked too often and did nothing. Retry later."""

    is_retriable = True


class StorageNotPrimaryError(StorageError):
    """A container incarnation of a later epoch (`owner_epoch`) owns the stored segment. This one must stop."""

    def __init__(self, segment: str, *, owner_epoch: int, epoch: int) -> None:
        super().__init__(
            f"{segment}: epoch {owner_epoch} owns it in long-term storage, this is epoch {epoch}; stop the container"
        )
        self.segment = segment
        self.owner_epoch = owner_epoch
        self.epoch = epoch


class StorageConflictError(StorageError):
    """A conditional change of long-term storage's records met newer ones (`key`). Nothing was applied; read again."""

    is_retriable = True

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"record {key}: {message}")
        self.key = key


class ChunkError(StorageError):
    """A request about one chunk of long-term storage failed. `chunk` is its name."""

    def __init__(self, chunk: str, message: str) -> None:
        super().__init__(f"chunk {chunk}: {message}")
        self.chunk = chunk


class NoSuchChunkError(ChunkError):
    """The chunk does not exist."""

    def __init__(self, chunk: str) -> None:
        super().__init__(chunk, "no such chunk")


class ChunkExistsError(ChunkError):
    """A chunk of that name exists already."""

    def __init__(self, chunk: str) -> None:
        super().__init__(chunk, "chunk exists already")


class BadChunkOffsetError(ChunkError):
    """A write named an offset (`given`) that is not the chunk's length (`expected`)."""

    def __init__(self, chunk: str, *, expected: int, given: int) -> None:
        super().__init__(chunk, f"write at {given}, but the chunk's length is {expected}")
        self.expected = expected
        self.given = given


class ObjectError(StorageError):
    """A request about one object of an object store failed. `key` is its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"object {key}: {message}")
        self.key = key


class NoSuchObjectError(ObjectError):
    """The object does not exist."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "no such object")


class ObjectExistsError(ObjectError):
    """The object was not created because there is one of that key, or because the store cannot tell.

    It cannot while another creation is under way, and where a key lies above or below another one as folders do.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, f"there is one, or it cannot be created beside the others ({message})")


class ObjectRangeError(ObjectError):
    """A read began at or behind the end of the object."""


class DataDirectoryInUseError(PenstockError):
    """Another process holds the data directory."""


class StreamError(PenstockError):
    """A control-plane request about a scope, a stream or a transaction could not be done."""


class NoSuchScopeError(StreamError):
    """The scope does not exist."""


class ScopeExistsError(StreamError):
    """The scope exists already."""


class ScopeNotEmptyError(StreamError):
    """The scope still holds streams."""


class NoSuchStreamError(StreamError):
    """The stream does not exist."""


class StreamExistsError(StreamError):
    """The stream exists already."""


class StreamSealedError(StreamError):
    """The stream is sealed and takes no more changes."""


class StreamNotSealedError(StreamError):
    """The stream must be sealed first."""


class TransactionError(StreamError):
    """The transaction is past the state that the request needs. Its kinds say why, where that is known.

    `stream` is ``scope/stream``, `transaction` the id, 32 hexadecimal digits; "" where they are in the message alone.
    """

    def __init__(self, message: str, *, stream: str = "", transaction: str = "") -> None:
        super().__init__(message)
        self.stream = stream
        self.transaction = transaction


class NoSuchTransactionError(TransactionError):
    """The controller does not know the transaction: the id is none of the stream, or it ended more than a day ago."""


class TransactionCommittedError(TransactionError):
    """The transaction is committed, or certain to be: its events are read, and it takes no more."""


class TransactionAbortedError(TransactionError):
    """The transaction was aborted, by somebody or by the server: none of its events is ever read."""


class TransactionExpiredError(TransactionAbortedError):
    """The transaction was aborted because its lease ran out, or because it was open for longer than is allowed."""


class TransactionPreparedError(TransactionError):
    """A prepared transaction is in the way: it takes no more events, and its stream is not sealed before it is decided.

    Commit or abort it, by its id.
    """


class TransactionStreamSealedError(TransactionAbortedError, StreamSealedError):
    """The transaction was aborted because its stream was sealed, which takes no more events at all."""


class TransactionStreamDeletedError(TransactionError, NoSuchStreamError):
    """The stream of an open transaction does not exist any more, and with it the transaction is gone."""


class NoSuchReaderGroupError(StreamError):
    """The reader group does not exist."""


class NoSuchTableError(StreamError):
    """The key-value table does not exist."""


class TableExistsError(StreamError):
    """The name of the key-value table is taken."""


class CommitNeededError(StreamError):
    """Nothing can be read before `Reader.commit` says what is done of what was handed out."""


class WriteTimeoutError(StreamError, TimeoutError):
    """A writer had no room for another event within the time given. The event was not taken.

    Of several events `taken_count` were taken, from the front, and are on their way.
    """

    is_retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.taken_count = 0


class ClosedError(StreamError, ValueError):
    """What was asked for more work is closed, being closed, or not open yet. Nothing was done.

    A `ValueError` as well, as it is of Python's files.
    """


class ForkedError(ClosedError):
    """The client belongs to the parent of this process, or cannot work because the parent had one before the fork.

    Start processes by ``spawn`` or ``forkserver``, or connect in the child alone.
    """


class MetadataConflictError(StreamError):
    """A versioned write lost against another one. Read again and decide anew."""

    is_retriable = True


class ControllerUnavailableError(StreamError, ConnectionError):
    """The controller could not be reached, or answered with a passing fault. Also a `ConnectionError`.

    `was_reached`: whether this client ever had a connection to it. If not, the address may be wrong, and no retry is
    made inside the client.
    """

    is_retriable = True

    def __init__(self, message: str, *, was_reached: bool = True) -> None:
        super().__init__(message)
        self.was_reached = was_reached
