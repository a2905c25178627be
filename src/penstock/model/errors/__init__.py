"""The errors that Penstock raises, in one tree:

    PenstockError
    ├── InvalidArgumentError            the caller's mistake; also a ValueError
    │   ├── InvalidNameError
    │   ├── NotPicklableError           a client, or an object made by one, was pickled
    │   ├── EventTooLargeError          fields `length_bytes`, `length_bytes_max`
    │   ├── ReplyTooLongError           of a controller, about very many segments with long names
    │   ├── TableReadTooLongError       one reply cannot have so many entries, or entries so long: ask for fewer
    │   └── SerializationError          a value is not one of the serializer's, or an event's bytes are not
    │       └── UndecodableEventError   ... of an event that was read: says which, and what to do
    ├── SegmentError                    about one segment (field `segment`)
    │   ├── NoSuchSegmentError
    │   ├── SegmentExistsError
    │   ├── SegmentInactiveError        not in its container's memory (inside a segment store only)
    │   ├── AttributesNotLoadedError    likewise, of attribute values
    │   ├── SegmentStoreBusyError       no room for this at the moment; nothing was done, a retry is safe
    │   │   ├── TooManyActiveSegmentsError      ... in the container's memory
    │   │   └── TooManyTransientSegmentsError   ... for another large event of a connection, segment or container
    │   ├── SegmentBackloggedError      long-term storage does not take it; a retry is safe
    │   ├── SegmentSealedError
    │   ├── SegmentTruncatedError       fields `start_offset`, `offset`
    │   ├── PositionBeyondEndError      fields `position`, `end`; also an InvalidArgumentError
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
    ├── AccessError                     refused because of who sent it; nothing was done
    │   ├── AuthenticationError         no valid credentials
    │   │   └── AuthenticationBusyError     not verified; a retry is safe
    │   ├── AccessDeniedError           the credentials do not permit it
    │   └── TokenRefusedError           of a segment store
    │       └── TokenExpiredError       a new token permits it
    ├── UnsupportedOperationError       not built yet, or not possible for this kind of segment
    ├── ProtocolError                   bytes on a connection that are not the protocol
    ├── OutcomeUnknownError             the reply was lost: neither success nor failure
    │   └── ConnectionLostError
    ├── StorageError                    a tier, or the local disk
    │   ├── UnreadableDataError         stored data that cannot be used; fields `path`, `offset`
    │   │   ├── CorruptionError         ... they are damaged: stop, keep the evidence
    │   │   │   ├── MissingChunkError       a chunk that a segment's records lead to is not there
    │   │   │   └── InconsistentStateError  a container's memory contradicts itself: it restarts from its log
    │   │   └── LaterVersionError       ... only a later version reads them: start that
    │   ├── StorageUnavailableError     long-term storage is not there, or not the one that it was; a retry is safe
    │   │   ├── StorageIdentityError    ... because it is another cluster's, or its identity is damaged
    │   │   └── StorageRefusedError     ... because it refuses every request until an operator acts
    │   │       ├── StorageCredentialsError     ... with these credentials, or without any
    │   │       ├── StorageBucketMissingError   ... for this bucket at this endpoint
    │   │       └── StorageClockError           ... by this machine's clock
    │   ├── DataDirectoryLostError      the server's data directory is another process's now, or is gone: it ends
    │   ├── LogFencedError              another incarnation owns the log now
    │   │   └── LogTakenOverError       ... because a later server has started on the log in a bucket: this one exits
    │   ├── LogRefusedError             the log is not opened until an administrator acts
    │   │   ├── LogDisabledError        ... it was disabled, usually after corruption
    │   │   ├── LogDamagedError         ... it is damaged, so it is not enabled or backed up: salvage it
    │   │   ├── LogMissingError         ... it was created once and is not there: is tier 1 mounted?
    │   │   ├── LogIdentityError        ... it is another cluster's
    │   │   └── StaleLogError           ... it is older than what long-term storage holds of its container
    │   ├── LogClosedError
    │   ├── StorageFullError            no space on the server; nothing was done
    │   │   └── UnacknowledgedStorageFullError  ... but what was sent may be done; also an OutcomeUnknownError
    │   ├── StorageUnreachableError     no connection, or it broke: what was asked for may have happened
    │   ├── TooManyLeasesError          of layouts of chunks; a retry when one ended
    │   ├── StorageUnsuitableError      a bucket that cannot hold a log: it would lose data
    │   ├── StorageThrottledError       too many requests; a retry later is safe
    │   ├── StorageSafeModeError        a file system that is read-only at present; a retry later is safe
    │   ├── StorageNotRespondingError   it hangs; what was asked of it may still happen
    │   ├── StorageNotPrimaryError      a later epoch owns the stored segment
    │   ├── StorageConflictError        the records of a stored segment were changed meanwhile
    │   ├── StorageLayoutError          the setting for the layout of long-term storage goes back, or is not possible
    │   ├── AdoptionError               a segment of older layout cannot be taken over as it lies
    │   ├── ChunkError                  NoSuchChunkError, ChunkExistsError, BadChunkOffsetError, ChunkNotSettledError
    │   ├── LedgerError                 of a ledger of BookKeeper (`model.errors.ledgers`, inside a segment store):
    │   │                               LedgerFencedError, LedgerLostError, LedgerSilentError, NoSuchLedgerError,
    │   │                               NoSuchEntryError, LedgerMetadataError, LedgerUnavailableError, LedgerDigestError
    │   ├── ObjectError                 NoSuchObjectError, ObjectExistsError, ObjectChangedError, ObjectRangeError
    │   │                               (inside a segment store)
    │   └── RemoteFileError             NoSuchRemoteFileError, RemoteFileExistsError, RemoteFileLeasedError,
    │                                   RemoteFileLengthError, RemoteFileNotClosedError, RemoteFileCopiesError
    │                                   (inside a segment store)
    ├── DataDirectoryInUseError         a second process on one data directory
    ├── CoordinationError               the coordination service of a cluster (`model.errors.coordination`)
    │   ├── CoordinationUnavailableError    no server is reached; nothing was done, a retry is safe
    │   ├── CoordinationOutcomeUnknownError also an OutcomeUnknownError: read before repeating
    │   ├── CoordinationRefusedError        not permitted, or the settings do not fit
    │   ├── SessionExpiredError             the session has ended: open another one
    │   ├── NodeFormatError                 a node cannot be decoded, or a later version wrote it; field `path`
    │   └── NodeError                       of one node (field `path`): NoSuchNodeError, NodeExistsError,
    │                                       NodeVersionError, NodeNotEmptyError, EphemeralParentError
    └── StreamError                     control plane: NoSuchScopeError, ScopeExistsError, ScopeNotEmptyError,
        │                               NoSuchStreamError, StreamExistsError, StreamNotSealedError,
        │                               StreamSealedError, TransactionError, MetadataConflictError,
        │                               NoSuchTableError, TableExistsError, ...
        ├── TransactionError            about one transaction (fields `stream`, `transaction`)
        │   ├── NoSuchTransactionError  the id is none of the stream, or it ended more than a day ago
        │   ├── TransactionCommittedError
        │   ├── TransactionAbortedError
        │   │   ├── TransactionExpiredError       ... because its lease was not renewed, or it was open for too long
        │   │   └── TransactionStreamSealedError  ... because its stream was; also a StreamSealedError
        │   ├── TransactionStreamDeletedError     also a NoSuchStreamError
        │   └── TransactionPreparedError          it waits for its decision: it takes no more events, its stream no seal
        ├── WriteTimeoutError           no room for an event in time; also a TimeoutError; field `taken_count`
        └── ClosedError                 a client, writer, reader, ... takes no more work; also a ValueError
            └── ForkedError             ... because it is the parent process's

`PenstockError.is_retriable` is whether a retry is safe.
"""

from __future__ import annotations

from penstock.model.errors.access import (
    AccessDeniedError,
    AccessError,
    AuthenticationBusyError,
    AuthenticationError,
    TokenExpiredError,
    TokenRefusedError,
)
from penstock.model.errors.root import (
    ConnectionLostError,
    DataDirectoryInUseError,
    EventTooLargeError,
    InvalidArgumentError,
    InvalidNameError,
    NotPicklableError,
    OutcomeUnknownError,
    PenstockError,
    PicklableError,
    ProtocolError,
    ReplyTooLongError,
    SerializationError,
    TableReadTooLongError,
    UndecodableEventError,
    UnsupportedOperationError,
)
from penstock.model.errors.segments import (
    AttributesNotLoadedError,
    BadAttributeError,
    BadEventNumberError,
    BadOffsetError,
    ContainerNotFoundError,
    ContainerOfflineError,
    NoSuchSegmentError,
    OwnershipUnconfirmedError,
    PositionBeyondEndError,
    SegmentBackloggedError,
    SegmentError,
    SegmentExistsError,
    SegmentInactiveError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentStoreBusyError,
    SegmentTruncatedError,
    TableConditionError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    TooManyActiveSegmentsError,
    TooManyTransientSegmentsError,
)
from penstock.model.errors.storage import (
    STORAGE_AWAY,
    AdoptionError,
    BadChunkOffsetError,
    ChunkError,
    ChunkExistsError,
    ChunkNotSettledError,
    CorruptionError,
    DataDirectoryLostError,
    InconsistentStateError,
    LaterVersionError,
    LogClosedError,
    LogDamagedError,
    LogDisabledError,
    LogFencedError,
    LogIdentityError,
    LogMissingError,
    LogRefusedError,
    LogTakenOverError,
    MissingChunkError,
    NoSuchChunkError,
    NoSuchObjectError,
    NoSuchRemoteFileError,
    ObjectChangedError,
    ObjectError,
    ObjectExistsError,
    ObjectRangeError,
    RemoteFileCopiesError,
    RemoteFileError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    RemoteFileLengthError,
    RemoteFileNotClosedError,
    StaleLogError,
    StorageBucketMissingError,
    StorageClockError,
    StorageConflictError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
    StorageIdentityError,
    StorageLayoutError,
    StorageNotPrimaryError,
    StorageNotRespondingError,
    StorageRefusedError,
    StorageSafeModeError,
    StorageThrottledError,
    StorageUnavailableError,
    StorageUnreachableError,
    StorageUnsuitableError,
    TooManyLeasesError,
    UnacknowledgedStorageFullError,
    UnreadableDataError,
)
from penstock.model.errors.streams import (
    ClosedError,
    CommitNeededError,
    ControllerUnavailableError,
    ForkedError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    NoSuchTransactionError,
    ScopeExistsError,
    ScopeNotEmptyError,
    StreamError,
    StreamExistsError,
    StreamNotSealedError,
    StreamSealedError,
    TableExistsError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionError,
    TransactionExpiredError,
    TransactionPreparedError,
    TransactionStreamDeletedError,
    TransactionStreamSealedError,
    WriteTimeoutError,
)

__all__ = [
    "STORAGE_AWAY",
    "AccessDeniedError",
    "AccessError",
    "AdoptionError",
    "AttributesNotLoadedError",
    "AuthenticationBusyError",
    "AuthenticationError",
    "BadAttributeError",
    "BadChunkOffsetError",
    "BadEventNumberError",
    "BadOffsetError",
    "ChunkError",
    "ChunkExistsError",
    "ChunkNotSettledError",
    "ClosedError",
    "CommitNeededError",
    "ConnectionLostError",
    "ContainerNotFoundError",
    "ContainerOfflineError",
    "ControllerUnavailableError",
    "CorruptionError",
    "DataDirectoryInUseError",
    "DataDirectoryLostError",
    "EventTooLargeError",
    "ForkedError",
    "InconsistentStateError",
    "InvalidArgumentError",
    "InvalidNameError",
    "LaterVersionError",
    "LogClosedError",
    "LogDamagedError",
    "LogDisabledError",
    "LogFencedError",
    "LogIdentityError",
    "LogMissingError",
    "LogRefusedError",
    "LogTakenOverError",
    "MetadataConflictError",
    "MissingChunkError",
    "NoSuchChunkError",
    "NoSuchObjectError",
    "NoSuchReaderGroupError",
    "NoSuchRemoteFileError",
    "NoSuchScopeError",
    "NoSuchSegmentError",
    "NoSuchStreamError",
    "NoSuchTableError",
    "NoSuchTransactionError",
    "NotPicklableError",
    "ObjectChangedError",
    "ObjectError",
    "ObjectExistsError",
    "ObjectRangeError",
    "OutcomeUnknownError",
    "OwnershipUnconfirmedError",
    "PenstockError",
    "PicklableError",
    "PositionBeyondEndError",
    "ProtocolError",
    "RemoteFileCopiesError",
    "RemoteFileError",
    "RemoteFileExistsError",
    "RemoteFileLeasedError",
    "RemoteFileLengthError",
    "RemoteFileNotClosedError",
    "ReplyTooLongError",
    "ScopeExistsError",
    "ScopeNotEmptyError",
    "SegmentBackloggedError",
    "SegmentError",
    "SegmentExistsError",
    "SegmentInactiveError",
    "SegmentMergedError",
    "SegmentSealedError",
    "SegmentStoreBusyError",
    "SegmentTruncatedError",
    "SerializationError",
    "StaleLogError",
    "StorageBucketMissingError",
    "StorageClockError",
    "StorageConflictError",
    "StorageCredentialsError",
    "StorageError",
    "StorageFullError",
    "StorageIdentityError",
    "StorageLayoutError",
    "StorageNotPrimaryError",
    "StorageNotRespondingError",
    "StorageRefusedError",
    "StorageSafeModeError",
    "StorageThrottledError",
    "StorageUnavailableError",
    "StorageUnreachableError",
    "StorageUnsuitableError",
    "StreamError",
    "StreamExistsError",
    "StreamNotSealedError",
    "StreamSealedError",
    "TableConditionError",
    "TableExistsError",
    "TableKeyMissingError",
    "TableKeyVersionError",
    "TableNotEmptyError",
    "TableReadTooLongError",
    "TokenExpiredError",
    "TokenRefusedError",
    "TooManyActiveSegmentsError",
    "TooManyLeasesError",
    "TooManyTransientSegmentsError",
    "TransactionAbortedError",
    "TransactionCommittedError",
    "TransactionError",
    "TransactionExpiredError",
    "TransactionPreparedError",
    "TransactionStreamDeletedError",
    "TransactionStreamSealedError",
    "UnacknowledgedStorageFullError",
    "UndecodableEventError",
    "UnreadableDataError",
    "UnsupportedOperationError",
    "WriteTimeoutError",
]
