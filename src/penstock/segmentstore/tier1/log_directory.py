"""`LogDirectory`: a local log's operations on its directory. Every method blocks and is run through `Runtime.work`.

Rules that keep a fenced owner (one that still runs and has not noticed yet) harmless:

- Names contain the epoch, so two incarnations never create the same file, and none ever writes to another's file. For
  the same reason files of earlier incarnations are removed, never recycled: their owner may still write to them.
- Metadata are replaced and foreign files removed only under `log.lock`, after a check that this incarnation still owns
  the log. A claim takes the same lock, so none of this can happen after a later claim.
- Files in reserve have no owner: an incarnation closes a filled file before it renames it to its `reserve-` name, and
  takes one by renaming it to a spare of its own. Both happen under `log.lock` and as the owner.
- A file gets its `log-` name when its header is durable. So a damaged header is corruption, never a torn write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LogDisabledError,
    LogFencedError,
    LogIdentityError,
    LogMissingError,
    PenstockError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import Disk, DiskFile, DiskSpace, SharedByte, is_full_error
from penstock.segmentstore.tier1.disabled_reason import DisabledReason, read_reason, remove_reason, write_reason
from penstock.segmentstore.tier1.durable_log import InspectFrame
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    LINK_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    encode_file_header,
    encode_frame,
    encode_link,
)
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.log_records import (
    EPOCH_FILE,
    LOCK_FILE,
    RESERVE_RECORD_PREFIX,
    TEMPORARY_SUFFIX,
    EpochRecord,
    TruncationRecord,
    add_to_epoch,
    encode_cluster_id,
    read_epoch,
    read_truncation,
    share_mark,
    write_epoch,
    write_truncation,
)
from penstock.segmentstore.tier1.log_recovery import (
    RecoveredLog,
    check_end,
    check_file_versions,
    check_log,
    log_file_name,
    recover,
)
from penstock.segmentstore.tier1.made_logs import MadeLogs
from penstock.segmentstore.tier1.older_frames import inspect_older_files

_log = logging.getLogger(__name__)

_SPARE_PREFIX = "spare-"
_LOG_PREFIX = "log-"
_RESERVE_FILE_PREFIX = "reserve-file-"
#: Zeros written to all files. Zeros allocated for each write may be pages that the kernel must provide first, during
#: the copy, which costs more than the write itself.
_ZEROS = memoryview(bytes(64 * 1024))


def _accept(frame: bytes) -> None:
    """Accept the content of any frame."""


class LogDirectory:
    """One incarnation's view of a log's directory."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        container_id: int,
        owner: LogOwner | None = None,
        *,
        cluster_id: str = "",
        made_logs: MadeLogs | None = None,
    ) -> None:
        """`owner` is required to claim the log. `cluster_id`: the log must belong to it; empty: any.

        `made_logs`: records the creation of logs outside of tier 1; None: not recorded.
        """
        self._cluster_id = cluster_id
        self._made_logs = made_logs
        #: Valid after `claim`: whether an earlier incarnation may still answer reads.
        self.may_predecessor_answer: bool = False
        self._owner = owner
        self._record: EpochRecord | None = None
        self.path = path
        self.epoch: int = 0
        self.container_id = container_id
        #: Start of the log, as recovered or as last truncated.
        self.truncation_address: int = 0
        self._disk = disk
        self._epoch_file: DiskFile | None = None
        self._mark: SharedByte | None = None
        self._has_truncation_record = False

    @property
    def encoded_cluster_id(self) -> bytes:
        """The id of the cluster that the claimed log belongs to, encoded as in file headers."""
        return b"" if self._record is None else encode_cluster_id(self._record.cluster_id)

    @property
    def is_claimed(self) -> bool:
        """Whether `claim` succeeded and `release` was not called yet. Does not detect later claims by others."""
        return self._epoch_file is not None

    def check_versions(self, inspect: InspectFrame | None) -> None:
        """Raise `LaterVersionError` if a later version has written any part of the log. Changes nothing.

        Called before `claim`. It does not take the lock, so an active owner may change files meanwhile. Other errors in
        the files are reported by `claim` and `recover`. `inspect`: see `DurableLog.open`.
        """
        try:
            if self._made_logs is not None:
                self._made_logs.contains(self.container_id)
            if not self._disk.exists(self.path):
                return
            # First: damage elsewhere must not lead to the claim of a log that a later version has written.
            check_file_versions(self._disk, self.path)
            read_epoch(self._disk, self.path)
            record = read_truncation(self._disk, self.path)
            address = 0 if record is None else record.address
            found = recover(self._disk, self.path, self.container_id, address, must_exist=False, inspect=inspect)
            inspect_older_files(self._disk, self.path, found.files[:-1], inspect or _accept)
        except (CorruptionError, LogIdentityError, FileNotFoundError):
            return

    def claim(self, check_wanted: Callable[[], None]) -> None:
        """Raise the epoch durably: from now on every earlier owner is fenced.

        `check_wanted` raises if the caller has given up meanwhile: a claim that hung for a long time must not fence an
        owner that has opened the log since.

        Raises, and changes nothing: `LogMissingError`, `LogIdentityError`, `LogDisabledError`, `LaterVersionError`,
        `CorruptionError`, `DataDirectoryInUseError` (the lock is taken: retry), and what `check_wanted` and
        `LogOwner.check_held` raise.
        """
        assert self._owner is not None
        # First, because a directory created now could be in another data directory, or under a missing mount.
        self._owner.check_held()
        self._check_not_missing()
        self._disk.make_directory(self.path)
        with self._locked():
            record = read_epoch(self._disk, self.path)
            if record is None:
                self._check_no_log_files()
                record = EpochRecord(self.container_id, 0, True)
            self._check_container(record)
            check_log(self._disk, self.path, record, self._cluster_id)
            if not record.is_enabled:
                raise LogDisabledError(
                    f"the log of container {self.container_id} in {self.path} is disabled: "
                    + describe_disabled(read_reason(self._disk, self.path, record.epoch), self.container_id)
                )
            self.may_predecessor_answer = not record.is_settled or not (
                record.is_released
                or not record.epoch
                or not self._owner.may_answer(self.container_id, record.epoch, record.owner)
            )
            claimed = EpochRecord(
                self.container_id,
                record.epoch + 1,
                True,
                self._owner.token,
                is_settled=not self.may_predecessor_answer,
                closed_address=record.closed_address,
                cluster_id=self._cluster_id or record.cluster_id,
            )
            check_wanted()
            # Under the lock: after a claim by the process that now holds the data directory no other one happens here.
            self._owner.check_held()
            self._epoch_file = write_epoch(self._disk, self.path, claimed)
            self._mark = share_mark(self._epoch_file)
            self.epoch = claimed.epoch
            self._record = claimed

    def settle(self) -> None:
        """Record that no earlier incarnation can answer any more. Raises `LogFencedError`, `OSError`."""
        self.check_owned()
        assert self._epoch_file is not None
        assert self._record is not None
        self._record = replace(self._record, is_settled=True)
        add_to_epoch(self._epoch_file, self._record)
        self.may_predecessor_answer = False

    def note_closed(self, address: int) -> None:
        """Note the end of the log: nothing follows. `give_up` records it."""
        if self._record is not None:
            self._record = replace(self._record, closed_address=max(address, self._record.closed_address))

    def give_up(self) -> None:
        """Record durably that this incarnation has stopped answering, and where it closed the log.

        Raises `OSError`: then the next owner must wait for the lease.
        """
        if self._record is None or self._epoch_file is None:
            return
        # Not released while an earlier incarnation may still answer: the next owner must wait for that one.
        is_released = not self.may_predecessor_answer
        assert self._owner is not None
        if is_released:
            self._owner.give_up(self.container_id, self.epoch)
        add_to_epoch(self._epoch_file, replace(self._record, is_released=is_released))

    def check_owned(self) -> None:
        """Raise `LogFencedError` if another incarnation has claimed the log. Costs one `fstat`."""
        self.check_unclaimed()
        if self._epoch_file is None or not self._epoch_file.is_linked():
            raise self._fenced()

    @property
    def shows_claims_in_memory(self) -> bool:
        """Whether `check_unclaimed` costs no system call."""
        return self._mark is not None

    def check_unclaimed(self) -> None:
        """Raise `LogFencedError` if another incarnation has claimed the log, from memory where that shows it.

        Called after each sync. Only `check_owned` detects that the epoch file was removed by hand.
        """
        if self._mark is None:
            if self._epoch_file is None or not self._epoch_file.is_linked():
                raise self._fenced()
        elif self._mark.value():
            raise self._fenced()

    def _fenced(self) -> LogFencedError:
        return LogFencedError(
            f"the log of container {self.container_id} in {self.path} has been opened by another incarnation after "
            f"epoch {self.epoch}: this one must stop"
        )

    def recover(self) -> RecoveredLog:
        """Find the log's files and make their contents durable. Raises `CorruptionError`."""
        record = read_truncation(self._disk, self.path)
        if record is not None:
            self._check_container(record)
            self.truncation_address = record.address
        self._has_truncation_record = record is not None
        recovered = recover(
            self._disk,
            self.path,
            self.container_id,
            self.truncation_address,
            must_exist=record is not None,
            cluster_id=self._cluster_id,
        )
        assert self._record is not None
        check_end(self.path, recovered, self._record.closed_address)
        if recovered.files:
            tail = recovered.files[-1]
            self._rewrite(f"{self.path}/{tail.name}", recovered.unsynced_offset, tail.end)
        return recovered

    def create_spare(self, name: str) -> DiskFile:
        """Create an empty file that is not part of the log yet."""
        return self._disk.open(f"{self.path}/{name}", create=True, exclusive=True)

    def open_spare(self, name: str) -> DiskFile:
        """Open a recycled file that is not part of the log any more."""
        return self._disk.open(f"{self.path}/{name}")

    def discard_spare(self, name: str) -> None:
        """Remove a file of this incarnation that did not become part of the log; no error if it is missing."""
        self._remove(name)

    def space(self) -> DiskSpace:
        """Return the free space of the log's file system."""
        return self._disk.space(self.path)

    def reserve_counts(self) -> tuple[int, int]:
        """Return the number of files and of records in reserve."""
        names = self._disk.list_directory(self.path)
        return (
            sum(name.startswith(_RESERVE_FILE_PREFIX) for name in names),
            sum(name.startswith(RESERVE_RECORD_PREFIX) for name in names),
        )

    def fill_record(self, spare_name: str) -> None:
        """Make a spare of one block."""
        file = self.create_spare(spare_name)
        try:
            fill(file, 0, BLOCK_LENGTH)
        finally:
            file.close()

    def put_in_reserve(self, spare_names: Sequence[str], *, are_records: bool) -> None:
        """Move filled, synced and closed spares to the reserve. Raises as `truncate`."""
        prefix = RESERVE_RECORD_PREFIX if are_records else _RESERVE_FILE_PREFIX
        with self._locked():
            self.check_owned()
            for name in spare_names:
                self._disk.rename(f"{self.path}/{name}", f"{self.path}/{prefix}{name[len(_SPARE_PREFIX) :]}")
            self._disk.sync_directory(self.path)

    def take_reserve(self, spare_name: str) -> DiskFile | None:
        """Rename a reserve file to the spare of that name and open it; None if there is none. Raises as `truncate`."""
        with self._locked():
            self.check_owned()
            for name in self._disk.list_directory(self.path):
                if name.startswith(_RESERVE_FILE_PREFIX):
                    self._disk.rename(f"{self.path}/{name}", f"{self.path}/{spare_name}")
                    return self._disk.open(f"{self.path}/{spare_name}")
        return None

    def publish(self, file: DiskFile, spare_name: str, header: FileHeader, link: Link | None, sequence: int) -> str:
        """Make a spare the log file with this `header`, durably; return its name. Raises `LogFencedError`.

        With `link` (by `open`) the file joins the log at once, as the successor of the file that `link` names.
        """
        buffers: list[Buffer] = [encode_file_header(header)]
        if link is not None:
            encode_link_frame(header, link, sequence, is_last_of_batch=True, out=buffers)
            end = 2 * BLOCK_LENGTH
            encode_trailer(header, sequence + 1, end, is_clean_close=False, out=buffers)
        file.write(0, buffers)
        file.sync()
        self.check_owned()
        name = log_file_name(header.epoch, header.number)
        self._disk.rename(f"{self.path}/{spare_name}", f"{self.path}/{name}")
        self._disk.sync_directory(self.path)
        return name

    def finish_open(self, residue: Sequence[str]) -> None:
        """Record that the log was created, and remove leftovers of earlier incarnations.

        Raises `LogFencedError`, `DataDirectoryInUseError`.
        """
        with self._locked():
            self.check_owned()
            if not self._has_truncation_record:
                write_truncation(self._disk, self.path, TruncationRecord(self.container_id, 0))
            # After the log is durable, since a crash between the two would leave a record of a log that never existed;
            # before anything is acknowledged.
            if self._made_logs is not None and not self._made_logs.contains(self.container_id):
                self._made_logs.add(self.container_id)
            own = f"{_SPARE_PREFIX}{self.epoch:016x}-"
            for name in self._disk.list_directory(self.path):
                is_foreign_spare = name.startswith(_SPARE_PREFIX) and not name.startswith(own)
                if name in residue or is_foreign_spare or name.endswith(TEMPORARY_SUFFIX):
                    self._remove(name)

    def truncate(self, address: int, removed: Sequence[str], recycled: Sequence[tuple[str, str]]) -> None:
        """Record the truncation durably, then remove files and rename others to spares.

        Raises `LogFencedError`, `DataDirectoryInUseError`.
        """
        with self._locked():
            self.check_owned()
            write_truncation(self._disk, self.path, TruncationRecord(self.container_id, address))
            self.truncation_address = address
            # A cancelled or failed call may have removed some already.
            for name in removed:
                self._remove(name)
            for name, spare in recycled:
                if self._disk.exists(f"{self.path}/{name}"):
                    self._disk.rename(f"{self.path}/{name}", f"{self.path}/{spare}")

    def disable(self, cause: PenstockError | None = None) -> None:
        """Make every later claim fail, and this incarnation too. `cause` is recorded durably before.

        Raises `LogFencedError`, `DataDirectoryInUseError`.
        """
        with self._locked():
            self.check_owned()
            assert self._record is not None
            self._record_reason(self._record.epoch, cause)
            write_epoch(self._disk, self.path, replace(self._record, is_enabled=False)).close()

    def _record_reason(self, epoch: int, cause: PenstockError | None) -> None:
        text = "disabled by an administrator" if cause is None else str(cause)
        reason = DisabledReason(self.container_id, epoch, isinstance(cause, CorruptionError), text)
        try:
            write_reason(self._disk, self.path, reason)
        except (StorageFullError, OSError) as error:
            if not is_full_error(error):
                raise
            # The log is disabled nevertheless: `write_epoch` has blocks in reserve.
            _log.warning("cannot record why the log in %s is disabled, the disk is full: %s", self.path, text)

    def enable(self) -> None:
        """Undo `disable`. Raises `InvalidArgumentError` if the log is not disabled or does not exist."""
        self._set_enabled(True)

    def disable_from_outside(self) -> None:
        """Make every later claim fail, and fence the current owner. For administrators.

        Raises `InvalidArgumentError` if the log is disabled or does not exist, `DataDirectoryInUseError`.
        """
        self._set_enabled(False)

    def _set_enabled(self, is_enabled: bool) -> None:
        wanted = "disabled" if is_enabled else "enabled"
        refusal = f"the log of container {self.container_id} in {self.path} is not {wanted}"
        if not self._disk.exists(f"{self.path}/{EPOCH_FILE}"):
            raise InvalidArgumentError(f"{refusal}: it does not exist")
        with self._locked():
            record = read_epoch(self._disk, self.path)
            if record is None or record.is_enabled is is_enabled:
                raise InvalidArgumentError(refusal)
            self._check_container(record)
            if not is_enabled:
                self._record_reason(record.epoch, None)
            write_epoch(self._disk, self.path, replace(record, is_enabled=is_enabled)).close()
            if is_enabled:
                remove_reason(self._disk, self.path)

    def release(self) -> None:
        """Close the epoch file. The log stays claimed on disk until the next claim."""
        if self._mark is not None:
            self._mark.close()
            self._mark = None
        if self._epoch_file is not None:
            self._epoch_file.close()
            self._epoch_file = None

    def _remove(self, name: str) -> None:
        """Remove a file; no error if it is missing. A fenced owner that notices removes its spares without the lock."""
        try:
            self._disk.remove(f"{self.path}/{name}")
        except FileNotFoundError:
            pass

    def _rewrite(self, path: str, start: int, end: int) -> None:
        # Bytes that the last owner never saw synced may exist only in the page cache, even marked clean after a failed
        # sync. They were read now, so they must persist: write the same bytes again and sync those.
        if start >= end:
            return
        file = self._disk.open(path)
        try:
            file.write(start, [file.read(start, end - start)])
            file.sync()
        finally:
            file.close()

    def _check_container(self, record: EpochRecord | TruncationRecord) -> None:
        if record.container_id != self.container_id:
            raise CorruptionError(
                f"{self.path}/{EPOCH_FILE}",
                12,
                f"it belongs to container {record.container_id}, but is in the log of container {self.container_id}",
            )

    def _check_not_missing(self) -> None:
        if self._made_logs is None or self._disk.exists(f"{self.path}/{EPOCH_FILE}"):
            return
        has_files = self._disk.exists(self.path) and has_log(self._disk, self.path)
        if not has_files and self._made_logs.contains(self.container_id):
            record = self._made_logs.path(self.container_id)
            raise LogMissingError(self.container_id, self.path, record=record)

    def _check_no_log_files(self) -> None:
        for name in self._disk.list_directory(self.path):
            if name.startswith(_LOG_PREFIX):
                raise CorruptionError(f"{self.path}/{EPOCH_FILE}", 0, f"the file is missing, although {name} exists")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._disk.lock(f"{self.path}/{LOCK_FILE}")
        try:
            yield
        finally:
            lock.release()


def describe_disabled(reason: DisabledReason | None, container_id: int) -> str:
    """Return why a log is disabled and the next step, for messages."""
    if reason is not None:
        return f"{reason.text}. {reason.advice}"
    return (
        "the cause was not recorded; usually it is corruption. Find the cause in the server's log, then stop the "
        "server and run `penstock log enable {container_id}`"
    )


def spare_name(epoch: int, ordinal: int) -> str:
    """Return the name of an incarnation's spare file."""
    return f"{_SPARE_PREFIX}{epoch:016x}-{ordinal:08x}"


def fill(file: DiskFile, offset: int, length: int) -> None:
    """Write zeros durably, so that later syncs of this range change no file-system metadata."""
    whole_count, rest = divmod(length, len(_ZEROS))
    pieces = [_ZEROS] * whole_count
    if rest:
        pieces.append(_ZEROS[:rest])
    file.write(offset, pieces)
    file.sync()


def encode_link_frame(
    header: FileHeader, link: Link, sequence: int, *, is_last_of_batch: bool, out: list[Buffer]
) -> None:
    """Append the buffers of a file's first frame to `out`."""
    frame = FrameHeader(
        kind=FrameKind.LINK,
        is_last_of_batch=is_last_of_batch,
        is_clean_close=False,
        length=LINK_LENGTH,
        offset=BLOCK_LENGTH,
        epoch=header.epoch,
        sequence=sequence,
        synced_offset=BLOCK_LENGTH,
    )
    encode_frame(header.salt, frame, [encode_link(link)], out)


def encode_trailer(header: FileHeader, sequence: int, offset: int, *, is_clean_close: bool, out: list[Buffer]) -> None:
    """Append to `out` the buffers of a trailer at `offset`, which records that the file is synced up to there."""
    frame = FrameHeader(
        kind=FrameKind.TRAILER,
        is_last_of_batch=True,
        is_clean_close=is_clean_close,
        length=0,
        offset=offset,
        epoch=header.epoch,
        sequence=sequence,
        synced_offset=offset,
    )
    encode_frame(header.salt, frame, [], out)


def log_container_ids(disk: Disk, directory: str) -> list[int]:
    """Return the ids of the containers whose logs are in `directory`, ascending. Blocks.

    A directory without any log file does not count: an interrupted first start leaves one.
    """
    try:
        names = disk.list_directory(directory)
    except FileNotFoundError:
        return []
    ids = [int(name) for name in names if name.isascii() and name.isdecimal()]
    return sorted(one for one in ids if has_log(disk, f"{directory}/{one}"))


def has_log(disk: Disk, path: str) -> bool:
    """Return whether a directory has any file of a log. Blocks."""
    return any(name == EPOCH_FILE or name.startswith(_LOG_PREFIX) for name in disk.list_directory(path))
