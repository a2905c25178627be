"""Faults of a `SimulatedDisk`: the fault model as values. The contract in words: docs/fault-model.md."""

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
    """What a power failure leaves of unsynced changes.

    Attributes:
            DROP: none of them.
            KEEP: all of them.
            TEAR: all up to some moment, with the write of that moment cut between two sectors.
            REORDER: any sectors of any unsynced writes, any legal lengths, any legal names, each drawn independently.
    """

    DROP = "drop"
    KEEP = "keep"
    TEAR = "tear"
    REORDER = "reorder"


class NameOrder(Enum):
    """Which unsynced creations, renames and removals a power failure may keep.

    Attributes:
            PREFIX: the oldest ones: a journaling file system (ext4, XFS).
        SUBSET: any, but those on one file or one name keep their order: a file system that promises no more than the
            `Disk` contract.
    """

    PREFIX = "prefix"
    SUBSET = "subset"


class FailedSync(Enum):
    """Effect of a sync that raises. All three occur in practice.

    Attributes:
            LOSE: the unsynced bytes stay readable and count as clean, but never reach the medium; a later sync of the
                file succeeds without them.
            TEAR: the same, but some of their sectors did reach it.
            KEEP: they stay unsynced; a later sync writes them.
    """

    LOSE = "lose"
    TEAR = "tear"
    KEEP = "keep"


class SyncFailedError(PicklableError, OSError):
    """A failed sync. A hook raises it to choose the fate of the bytes."""

    def __init__(self, outcome: FailedSync) -> None:
        super().__init__(errno.EIO, f"simulated: sync failed ({outcome.value} unsynced bytes)")
        self.outcome = outcome


class ProcessGoneError(PicklableError, OSError):
    """A file handle was used after its process was killed or its machine lost power."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EBADF, "simulated: the process that opened this file is gone", path)


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Faults of one disk; rates are probabilities per call, drawn from the disk's generator.

    Attributes:
            sector_bytes: unit of atomic writes.
            capacity_bytes: limit of the sum of all file lengths, None for no limit. A write beyond it is cut short and
                raises `StorageFullError`; so does creating a file when no byte is left.
            crash_kinds: the kinds that `SimulatedDisk.crash` draws from.
        name_order: which unsynced names survive.
        read_error_rate: a read raises EIO.
        write_error_rate: a write stops somewhere and raises EIO.
        sync_error_rate: a sync of a file or a directory raises EIO.
            failed_syncs: effects of a failed sync of a file; one is drawn.
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


#: A disk whose only fault is power loss.
NO_FAULTS = DiskFaults()
