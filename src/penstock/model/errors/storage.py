"""Errors of a tier of storage, or of the disk under it."""

from __future__ import annotations

from penstock.model.errors.root import OutcomeUnknownError, PenstockError


class StorageError(PenstockError):
    """A storage tier or the disk under it failed."""


class UnreadableDataError(StorageError):
    """Stored data (`path`, from byte `offset`) cannot be used: they are damaged, or only a later version reads them.

    Operations that need them stop, all others continue. Nothing in them is changed.
    """

    path: str
    offset: int


class CorruptionError(UnreadableDataError):
    """Stored bytes are not what was written. `path` and `offset` (bytes) say where."""

    def __init__(self, path: str, offset: int, message: str) -> None:
        super().__init__(f"corrupt data in {path} at byte {offset}: {message}; nothing was changed, keep the file")
        self.path = path
        self.offset = offset


class MissingChunkError(CorruptionError):
    """A chunk that a segment's records lead to is not in long-term storage. `path` is the chunk's name.

    It stops reads of those bytes, and the flush of that segment; everything else continues.
    """

    def __init__(self, chunk: str, message: str) -> None:
        super().__init__(chunk, 0, message)


class InconsistentStateError(CorruptionError):
    """A container's memory contradicts itself or its storage: the container must restart from its log."""


class DataDirectoryLostError(StorageError):
    """A server's data directory (`path`) is not locked by it any more, or is not there: it claims no log and ends."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"this server no longer holds its data directory {path}: {message}")
        self.path = path


class TooManyLeasesError(StorageError):
    """So many layouts of chunks are leased already that no more can be. Nothing was done; try again when one ended."""

    is_retriable = True


class StorageUnavailableError(StorageError):
    """Long-term storage as a whole is not there, or is not the place that it was. Nothing was changed; try again."""

    is_retriable = True


class StorageIdentityError(StorageUnavailableError):
    """The configured long-term storage (`place`) belongs to another cluster, or its identity is damaged."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place} is not this cluster's long-term storage: {message}")
        self.place = place
        self.reason = message


class StorageRefusedError(StorageUnavailableError):
    """Long-term storage refuses every request and did nothing, until its configuration is corrected."""


class StorageCredentialsError(StorageRefusedError):
    """Long-term storage refuses the credentials, they permit too little, or there are none."""


class StorageBucketMissingError(StorageRefusedError):
    """The bucket configured as long-term storage does not exist at the endpoint and in the region that are set."""


class StorageUnsuitableError(StorageError):
    """The place (`place`) works, but does not keep what it would have to keep: data would be lost there."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place} cannot hold a log: {message}")
        self.place = place


class StorageClockError(StorageRefusedError):
    """Long-term storage refuses requests whose time differs too much from its own."""


class LogFencedError(StorageError):
    """Another incarnation has opened the log. This one must stop and may not acknowledge anything."""


class LogTakenOverError(LogFencedError):
    """A later server has started on the log in a bucket (`place`). This server has ended its containers, and exits."""

    def __init__(self, place: str, server: str) -> None:
        super().__init__(
            f"another server has taken over the log in {place} ({server}). This one has acknowledged nothing that the "
            "other one does not have"
        )
        self.place = place


class LogRefusedError(StorageError):
    """The log is not opened, and nothing in it was changed. An administrator must act first."""


class LogDisabledError(LogRefusedError):
    """The log was disabled, usually after corruption; an administrator must enable it."""


class LogDamagedError(LogRefusedError):
    """The log of a container (`container_id`) is damaged, so it was not enabled or not backed up."""

    def __init__(self, container_id: int, damage: CorruptionError, *, advice: str = "") -> None:
        """`advice`: the next step, for a log that `penstock log salvage` does not work on."""
        advice = advice or (
            f"Stop the server and run `penstock log salvage {container_id}`, which copies the intact part and reports "
            "the losses"
        )
        super().__init__(f"the log of container {container_id} is damaged and was not changed: {damage}. {advice}")
        self.container_id = container_id
        self.damage = damage


class LogMissingError(LogRefusedError):
    """The container's log (`path`) was created once and is not there. Tier 1 may not be mounted."""

    def __init__(self, container_id: int, path: str, *, record: str) -> None:
        super().__init__(
            f"the log of container {container_id} is missing: {path} is empty, although {record} records that the log "
            "was created. Mount tier 1 or put the log back; no new log was created"
        )
        self.container_id = container_id
        self.path = path


class LogIdentityError(LogRefusedError):
    """A file of tier 1 (`path`) belongs to another cluster. `found`, `expected`: ids of clusters."""

    def __init__(self, path: str, *, found: str, expected: str) -> None:
        super().__init__(
            f"{path} belongs to cluster {found}, this server belongs to cluster {expected}: the directory of another "
            "cluster was mounted or copied here. Nothing in it was changed"
        )
        self.path = path
        self.found = found
        self.expected = expected


class StaleLogError(LogRefusedError):
    """The log is older than what long-term storage holds of its container: it was restored from an old copy."""

    def __init__(self, container_id: int, *, epoch: int, found: str, found_epoch: int) -> None:
        super().__init__(
            f"the log of container {container_id} is an old copy: it is at epoch {epoch}, but {found} in long-term "
            f"storage was written by epoch {found_epoch}. The log is disabled and nothing in long-term storage was "
            "changed. Put the newest log back, or build a data directory from long-term storage with 'penstock storage "
            "recover'"
        )
        self.container_id = container_id
        self.epoch = epoch
        self.found_epoch = found_epoch


class LaterVersionError(UnreadableDataError):
    """Stored data (`path`) has a format that only a later version of Penstock reads. It was not changed.

    `what` has number `found`, of a format version or a kind of record; this version reads `oldest` to `known`. Where
    there are names in place of numbers, both are all that this version reads.
    """

    def __init__(
        self, path: str, *, found: int | str, known: int | str, what: str = "format version", oldest: int | str = 1
    ) -> None:
        reads = str(known) if oldest == known else f"{oldest} to {known}"
        super().__init__(
            f"{path} was written by a later version of Penstock: {what} {found}, this version reads {reads}. "
            "Nothing in it was changed: use the version that wrote it, or a later one"
        )
        self.path = path
        self.offset = 0
        self.what = what
        self.found = found
        self.known = known
        self.oldest = oldest


class LogClosedError(StorageError):
    """The log is closed, or closed itself after a failed write."""


class StorageNotRespondingError(StorageError):
    """A tier did not answer in time, or so many calls of it hang already that it is asked nothing more.

    What was asked of it may still happen, at any later time.
    """


class StorageFullError(StorageError):
    """No space is left on the server. Nothing was done. Retry after space was freed."""

    is_retriable = True


class UnacknowledgedStorageFullError(StorageFullError, OutcomeUnknownError):
    """No space is left on the server, and what was sent before that was known may still be done, or be done already.

    A writer raises it for events that were sent and not acknowledged, a call that changes a stream when the controller
    has begun the change and completes it once there is space.
    """

    is_retriable = False


class StorageUnreachableError(StorageError):
    """There is no connection to long-term storage, or it broke: then what was asked for may have happened.

    This concerns one request. A check of the storage decides whether all of it is away (`StorageUnavailableError`).
    """


class StorageThrottledError(StorageError):
    """Long-term storage was asked too often and did nothing. Retry later."""

    is_retriable = True


class StorageSafeModeError(StorageError):
    """The file system of long-term storage is read-only at present, as HDFS is after its start. It did nothing."""

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


class StorageLayoutError(StorageError):
    """The setting for the layout of long-term storage is one that this store cannot have, or cannot go back to."""


class AdoptionError(StorageError):
    """A segment of RollingStorage, the older layout, cannot be taken over as it lies. `segment` is its name."""

    def __init__(self, segment: str, message: str) -> None:
        super().__init__(f"segment {segment} of the older layout: {message}")
        self.segment = segment


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


class ChunkNotSettledError(ChunkError):
    """The chunk cannot be appended to at present, because its bytes are not safe beside an append. Nothing was done.

    Another chunk takes what follows.
    """


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
        super().__init__(key, f"it exists, or conflicts with other objects ({message})")


class ObjectChangedError(ObjectError):
    """The object was not replaced: it is not in the version that was named, it was deleted, or the store cannot tell.

    It cannot while another change is in progress. A request whose reply was lost may have replaced the object earlier,
    before another caller replaced it again.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, f"it does not have the expected version ({message})")


class ObjectRangeError(ObjectError):
    """A read began at or after the end of the object."""


class RemoteFileError(StorageError):
    """A request about one file of a remote file system failed. `path` is its path."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"file {path}: {message}")
        self.path = path


class NoSuchRemoteFileError(RemoteFileError):
    """The file does not exist, or the name belongs to a folder."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "no such file")


class RemoteFileExistsError(RemoteFileError):
    """The file was not created because there is one.

    `is_own`: it is open, and this client has its lease: an earlier request of this client has created it.
    """

    def __init__(self, path: str, message: str, *, is_own: bool = False) -> None:
        super().__init__(path, f"it exists already ({message})")
        self.is_own = is_own


class RemoteFileLeasedError(RemoteFileError):
    """The file is open for writing, or its writer crashed. Nothing was done."""


class RemoteFileLengthError(RemoteFileError):
    """The file's length differs from the offset of the append. Nothing was done."""

    def __init__(self, path: str, *, length_bytes: int, offset: int) -> None:
        super().__init__(path, f"it has {length_bytes} bytes, but the append expects {offset}")
        self.length_bytes = length_bytes


class RemoteFileCopiesError(RemoteFileError):
    """Not all copies of the file's end are known to the file system: an append could cost some. Nothing was done."""

    def __init__(self, path: str, *, known: int, wanted: int) -> None:
        super().__init__(
            path, f"{known} of {wanted} copies of its last block are available; nothing was appended to it"
        )
        self.known = known
        self.wanted = wanted


class RemoteFileNotClosedError(RemoteFileError):
    """All written data is durable and readable, but the file is, or may be, still open."""


#: Errors about long-term storage as a whole, not about a single chunk.
STORAGE_AWAY = (StorageUnavailableError, StorageNotRespondingError, StorageUnreachableError, StorageThrottledError)
