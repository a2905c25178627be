"""What a `SimulatedDisk` may do to its user: the fault model as values. The contract in words: docs/fault-model.md."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum, StrEnum

from penstock.model.errors import InvalidArgumentError, PicklableError


class DiskCall(StrEnum):
    """A call to the disk, as hooks see it."""

    OPEN = "open"
    WRITE = "write"
    READ = "read"
    SYNC = "sync"
    TRUNCATE = "truncate"
    MAKE_DIRECTORY = "make directory"
    LIST_DIRECTORY = "list directory"
    REMOVE_DIRECTORY = "remove directory"
    RENAME = "rename"
    LINK = "link"
    REMOVE = "remove"
    SYNC_DIRECTORY = "sync directory"
    LOCK = "lock"
    SPACE = "space"


class CrashKind(Enum):
    """What a power failure leaves of unsynced work.

    Attributes:
        DROP: nothing of it.
        KEEP: all of it.
        TEAR: all up to some moment, with the write of that moment cut between two sectors.
        REORDER: any sectors of any unsynced writes, any legal lengths, any legal names, each drawn for itself.
    """

    DROP = "drop"
    KEEP = "keep"
    TEAR = "tear"
    REORDER = "reorder"


class NameOrder(Enum):
    """Which unsynced creations, renames and removals a power failure may keep.

    Attributes:
        PREFIX: the oldest ones: a journalling file system (ext4, XFS).
        SUBSET: any, but those on one file or one name keep their order: a file system that promises no more than the
            `Disk` contract.
    """

    PREFIX = "prefix"
    SUBSET = "subset"


class FailedSync(Enum):
    """What a sync that raises does. All three are met in the field.

    Attributes:
        LOSE: the unsynced bytes stay readable and count as clean, but never get to the medium; a later sync of the
            file succeeds without them.
        TEAR: the same, but some of their sectors did get there.
        KEEP: they stay unsynced; a later sync writes them.
    """

    LOSE = "lose"
    TEAR = "tear"
    KEEP = "keep"


class SyncFailedError(PicklableError, OSError):
    """A failed sync. A hook raises it to say what becomes of the bytes."""

    def __init__(self, outcome: FailedSync) -> None:
        super().__init__(errno.EIO, f"simulated: sync failed ({outcome.value} unsynced bytes)")
        self.outcome = outcome


class ProcessGoneError(PicklableError, OSError):
    """A file handle of a process that was killed, or of a machine that lost power, was used."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EBADF, "simulated: the process that opened this file is gone", path)


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Faults of one disk; rates are probabilities per call, drawn from the disk's generator.

    Attributes:
        sector_bytes: what the medium writes whole or not at all.
        capacity_bytes: bytes that all files together may hold (their lengths count), None for no limit. The write
            that goes beyond is cut short and raises `StorageFullError`; so does making a file when none is left.
        crash_kinds: what `SimulatedDisk.crash` draws from.
        name_order: which unsynced names survive.
        read_error_rate: a read raises EIO.
        write_error_rate: a write stops somewhere and raises EIO.
        sync_error_rate: a sync of a file or a directory raises EIO.
        failed_syncs: what a failed sync of a file does, drawn.
        has_descriptors: False: nothing can be opened, listed or locked (EMFILE).
    """

    sector_bytes: int = 512
    capacity_bytes: int | None = None
    crash_kinds: tuple[CrashKind, ...] = tuple(CrashKind)
    name_order: NameOrder = NameOrder.PREFIX
    read_error_rate: float = 0.0
    write_error_rate: float = 0.0
    sync_error_rate: float = 0.0
    failed_syncs: tuple[FailedSync, ...] = tuple(FailedSync)
    has_descriptors: bool = True

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        if self.sector_bytes < 1:
            raise InvalidArgumentError(f"sector_bytes must be at least 1, not {self.sector_bytes}")
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise InvalidArgumentError(f"capacity_bytes must not be negative, not {self.capacity_bytes}")
        if not self.crash_kinds or not self.failed_syncs:
            raise InvalidArgumentError("crash_kinds and failed_syncs must each name at least one kind")
        for name in ("read_error_rate", "write_error_rate", "sync_error_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgumentError(f"{name} must be from 0 to 1, not {getattr(self, name)}")


#: A disk that fails only by losing power.
NO_FAULTS = DiskFaults()
