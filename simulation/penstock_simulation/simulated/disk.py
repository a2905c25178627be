"""`SimulatedDisk`: a file system in memory that fails and loses power by the rules of docs/fault-model.md.

This module has the calls and their faults; the contents, and the states after a power failure, are in `disk_tree`.
`crash` draws one of the states that the rules allow from the disk's generator; `after_crash` makes a given state, for
explorers that enumerate them all. The same calls with the same seed give the same disk.

After TigerBeetle's `src/testing/storage.zig`: the faults are a written contract, and each is a value.
Left out: hard and symbolic links, permissions, sparse accounting, and latency, which the runtime adds around calls.
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.model.errors import DataDirectoryInUseError, StorageFullError
from penstock.runtime.disk import DiskSpace, LockState
from penstock_simulation.simulated.disk_faults import (
    NO_FAULTS,
    CrashKind,
    DiskCall,
    DiskFaults,
    FailedSync,
    ProcessGoneError,
    SyncFailedError,
)
from penstock_simulation.simulated.disk_handles import SimulatedFile, SimulatedLock
from penstock_simulation.simulated.disk_nodes import DirectoryNode, FileNode
from penstock_simulation.simulated.disk_tree import CrashPlan, DiskTree, parts_of

__all__ = ["DiskHook", "SimulatedDisk", "SimulatedFile", "SimulatedLock"]

#: Called for each call before its effect (a write: after the bytes are in the page cache); its errors are the call's.
DiskHook = Callable[[str, str], None]


#: Free space of a disk without a capacity.
_BOUNDLESS_BYTES = 1 << 60


def _no_hook(call: str, path: str) -> None:
    """Do nothing."""


class SimulatedDisk:
    """`Disk` in memory, of one machine and one process at a time.

    Attributes:
            faults: may be replaced at any time, except for properties of the medium (sectors, the order of names).
            tree: names and files, and the states that a crash may leave.
        hook: see `DiskHook`. Reset by `crash` and `process_kill`.
        crash_count: power failures so far.
        fault_counts: random faults so far, by name.
    """

    def __init__(
        self,
        rng: random.Random,
        faults: DiskFaults = NO_FAULTS,
        *,
        files: Mapping[str, bytes] | None = None,
        tree: DiskTree | None = None,
    ) -> None:
        """Start with `files` (and the directories above them) on the medium, or with the contents of `tree`."""
        self.faults = faults
        self.hook: DiskHook = _no_hook
        self.crash_count: int = 0
        self.fault_counts: dict[str, int] = {}
        self._rng = rng
        self.tree: DiskTree = tree or DiskTree(faults.sector_bytes, faults.name_order)
        self._generation = 0
        self._locks: dict[FileNode, None] = {}
        #: Files that another process has locked: see `replace_lock`.
        self._others: dict[FileNode, None] = {}
        for path, content in (files or {}).items():
            self.tree.place(path, content)

    # The `Disk` protocol.

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> SimulatedFile:
        """See `Disk.open`. Opening a directory raises `IsADirectoryError` even for reading."""
        self.hook(DiskCall.OPEN, path)
        self._take_descriptor(path)
        parent, name = self.tree.parent(path)
        node = parent.live.get(name)
        if isinstance(node, DirectoryNode):
            if create and exclusive:
                raise FileExistsError(errno.EEXIST, "exists already", path)
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if self.faults.capacity_bytes is not None and self.used_bytes >= self.faults.capacity_bytes:
                raise OSError(errno.ENOSPC, "simulated: no space left for another file", path)
            node = self.tree.new_file()
            self.tree.change(f"create {path}", (parent, name, node), moved=node)
            node.link_count += 1
        elif create and exclusive:
            raise FileExistsError(errno.EEXIST, "exists already", path)
        return SimulatedFile(self, path, node, self._generation, is_writable=writable)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`. The hook sees each directory made and each sync of a parent."""
        parts = parts_of(path)
        directory = self.tree.directory("/")
        for depth, name in enumerate(parts, 1):
            here = "/" + "/".join(parts[:depth])
            node = directory.live.get(name)
            if node is None:
                self.hook(DiskCall.MAKE_DIRECTORY, here)
                # The call may have been held, and another host may have created the directory meanwhile.
                node = directory.live.get(name)
            if isinstance(node, FileNode):
                is_last = depth == len(parts)
                raise (FileExistsError if is_last else NotADirectoryError)(errno.ENOTDIR, "not a directory", here)
            if node is None:
                node = DirectoryNode()
                self.tree.change(f"make directory {here}", (directory, name, node), moved=node)
                self.sync_directory(posixpath.dirname(here))
            directory = node

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        self.hook(DiskCall.LIST_DIRECTORY, path)
        self._take_descriptor(path)
        return sorted(self.tree.directory(path).live)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self.tree.find(path) is not None

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`. Directories can be moved too, to a free name or onto an empty directory."""
        self.hook(DiskCall.RENAME, target)
        from_directory, from_name = self.tree.parent(source)
        node = from_directory.live.get(from_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        to_directory, to_name = self.tree.parent(target)
        replaced = to_directory.live.get(to_name)
        if replaced is node:
            return
        if isinstance(replaced, DirectoryNode):
            if isinstance(node, FileNode):
                raise IsADirectoryError(errno.EISDIR, "is a directory", target)
            if replaced.live:
                raise OSError(errno.ENOTEMPTY, "directory is not empty", target)
        elif isinstance(node, DirectoryNode):
            if replaced is not None:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", target)
            if (posixpath.normpath(target) + "/").startswith(posixpath.normpath(source) + "/"):
                raise OSError(errno.EINVAL, "a directory cannot be moved into itself", target)
        self.tree.change(
            f"rename {source} to {target}",
            (from_directory, from_name, None),
            (to_directory, to_name, node),
            moved=node,
        )
        if isinstance(replaced, FileNode):
            replaced.link_count -= 1

    def link(self, source: str, target: str) -> None:
        """See `Disk.link`."""
        self.hook(DiskCall.LINK, target)
        node = self.tree.file(source)
        to_directory, to_name = self.tree.parent(target)
        if to_name in to_directory.live:
            raise FileExistsError(errno.EEXIST, "exists already", target)
        self.tree.change(f"link {source} to {target}", (to_directory, to_name, node), moved=node)
        node.link_count += 1

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.hook(DiskCall.REMOVE, path)
        parent, name = self.tree.parent(path)
        node = parent.live.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self.tree.change(f"remove {path}", (parent, name, None), moved=node)
        node.link_count -= 1

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self.hook(DiskCall.REMOVE_DIRECTORY, path)
        node = self.tree.directory(path)
        if node.live:
            raise OSError(errno.ENOTEMPTY, "directory is not empty", path)
        parent, name = self.tree.parent(path)
        self.tree.change(f"remove directory {path}", (parent, name, None), moved=node)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`. With `NameOrder.PREFIX` all older changes elsewhere become durable too."""
        self.hook(DiskCall.SYNC_DIRECTORY, path)
        self._take_descriptor(path)
        directory = self.tree.directory(path)
        if self._strikes("sync error", self.faults.sync_error_rate):
            raise OSError(errno.EIO, "simulated: directory sync failed", path)
        self.tree.sync_directory(directory)

    def lock(self, path: str) -> SimulatedLock:
        """See `Disk.lock`. Killing the process or the machine releases all locks."""
        self.hook(DiskCall.LOCK, path)
        self._take_descriptor(path)
        parent, name = self.tree.parent(path)
        node = parent.live.get(name)
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if node is None:
            node = self.tree.new_file()
            self.tree.change(f"create {path}", (parent, name, node), moved=node)
            node.link_count += 1
        if node in self._locks or node in self._others:
            raise DataDirectoryInUseError(f"{path} is locked by another process")
        self._locks[node] = None
        return SimulatedLock(self._locks, node, partial(self._lock_state, path, parent, node, self._generation))

    def _lock_state(self, path: str, parent: DirectoryNode, node: FileNode, generation: int) -> LockState:
        self.check_handle(path, generation)
        if self.tree.find(posixpath.dirname(path)) is not parent:
            return LockState.DIRECTORY_GONE
        is_in_place = self.tree.find(path) is node
        return LockState.IN_PLACE if is_in_place else LockState.FILE_GONE

    def space(self, path: str) -> DiskSpace:
        """See `Disk.space`. Without a capacity the free space is a large constant."""
        self.hook(DiskCall.SPACE, path)
        if self.tree.find(path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        capacity = self.faults.capacity_bytes
        if capacity is None:
            return DiskSpace(_BOUNDLESS_BYTES, _BOUNDLESS_BYTES)
        return DiskSpace(max(capacity - self.used_bytes, 0), capacity)

    # Faults on demand.

    def crash(self) -> None:
        """Lose power: draw a legal state and switch to it. Open files and locks are gone."""
        plan = self.draw_crash_plan()
        self.process_kill()
        self._others.clear()
        self.tree.crash(plan)
        self.crash_count += 1

    def process_kill(self) -> None:
        """Kill the process (SIGKILL): the page cache stays, synced or not. Open files and locks are gone."""
        self.hook = _no_hook
        self._generation += 1
        self._locks = {}

    def replace_lock(self, path: str, *, is_taken: bool) -> FileNode | None:
        """Remove a lock file, whose lock stays held. None: there was none, or another process holds one already.

        `is_taken`: another process creates the file again and locks it, until `give_lock_back` or a power failure.
        Return the file that is locked.
        """
        node = self.tree.find(path)
        if not isinstance(node, FileNode) or self._others:
            return None
        parent, name = self.tree.parent(path)
        self.tree.change(f"remove {path}", (parent, name, None), moved=node)
        node.link_count -= 1
        if not is_taken:
            return node
        other = self.tree.new_file()
        self.tree.change(f"create {path}", (parent, name, other), moved=other)
        other.link_count += 1
        self._others[other] = None
        return other

    def is_taken(self, file: FileNode) -> bool:
        """Whether another process still has the lock of a file that `replace_lock` returned."""
        return file in self._others

    def give_lock_back(self, file: FileNode) -> None:
        """End the other process of `replace_lock`."""
        self._others.pop(file, None)

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Bit rot: invert bit `bit` (0 to 7) of the byte at `offset`, on the medium and for readers."""
        node = self.tree.file(path)
        for content in (node.live, node.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit
        if offset >= len(node.live):
            raise IndexError(f"{path} has {len(node.live)} bytes, none at {offset}")

    def break_sector(self, path: str, offset: int) -> None:
        """Make reads of the sector at `offset` raise EIO until it is written again."""
        self.tree.file(path).bad_sectors.add(offset // self.faults.sector_bytes)

    def unmount(self, path: str, files: Mapping[str, bytes] | None = None) -> bool:
        """Replace a directory by an empty one, as when a file system is not mounted. False if there is none.

        The original contents stay unchanged and synced until `mount`; open files stay open. With `files`, by name,
        another file system is mounted there.
        """
        if not self.tree.unmount(path):
            return False
        for file_name, content in (files or {}).items():
            self.tree.place(f"{path}/{file_name}", content)
        return True

    def mount(self, path: str) -> None:
        """Undo `unmount`. Files written to the replacement directory become invisible."""
        self.tree.mount(path)

    @property
    def unmounted(self) -> Sequence[str]:
        """The directories replaced by `unmount`."""
        return self.tree.unmounted

    # For observers.

    @property
    def used_bytes(self) -> int:
        """Sum of the lengths of all files that have a name."""
        return self.tree.used_bytes

    def files(self) -> dict[str, bytes]:
        """Return every file as a newly started process would see it."""
        return {path: bytes(node.live) for path, node in self.tree.walk() if isinstance(node, FileNode)}

    def directories(self) -> list[str]:
        """Return every directory but the root, sorted."""
        return [path for path, node in self.tree.walk() if isinstance(node, DirectoryNode)]

    def fingerprint(self) -> bytes:
        """Return a digest of all names and of the contents that readers see."""
        return self.tree.fingerprint()

    # States after a crash.

    def become(self, files: Mapping[str, bytes]) -> None:
        """Contain exactly these files, as a newly installed disk. No file may be open."""
        self.tree = DiskTree(self.faults.sector_bytes, self.faults.name_order)
        self._locks.clear()
        for path, content in files.items():
            self.tree.place(path, content)

    def draw_crash_plan(self) -> CrashPlan:
        """Draw a state by `faults.crash_kinds`."""
        match self._rng.choice(self.faults.crash_kinds):
            case CrashKind.DROP:
                return CrashPlan("drop all", frozenset(), {})
            case CrashKind.KEEP:
                return self.tree.keep_plan()
            case CrashKind.TEAR:
                return self.tree.random_tear_plan(self._rng)
            case CrashKind.REORDER:
                return self.tree.reorder_plan(self._rng)

    def after_crash(self, plan: CrashPlan) -> SimulatedDisk:
        """Return a new disk in the state of `plan`; this one stays as it is."""
        return SimulatedDisk(self._rng, self.faults, tree=self.tree.after(plan))

    def fork(self) -> SimulatedDisk:
        """Return an independent copy, as the next process would find it: page cache, medium and unsynced changes."""
        return SimulatedDisk(self._rng, self.faults, tree=self.tree.copy())

    # For `SimulatedFile`.

    def check_handle(self, path: str, generation: int) -> None:
        """Raise `ProcessGoneError` when the handle's process was killed."""
        if generation != self._generation:
            raise ProcessGoneError(path)

    def write_file(self, path: str, node: FileNode, offset: int, data: bytes) -> None:
        """Write, as far as faults allow. Raises `StorageFullError`, `OSError`."""
        sequence = self.tree.next_sequence()
        room: int | None = None
        if self.faults.capacity_bytes is not None:
            growth = offset + len(data) - len(node.live)
            free = self.faults.capacity_bytes - self.used_bytes
            if growth > free:
                room = max(0, len(data) - (growth - max(free, 0)))
        if room is None and self._strikes("write error", self.faults.write_error_rate):
            node.write(sequence, offset, data[: self._rng.randrange(len(data) + 1)])
            raise OSError(errno.EIO, "simulated: write failed half way", path)
        node.write(sequence, offset, data[:room])
        self.hook(DiskCall.WRITE, path)
        if room is not None:
            raise StorageFullError(
                f"no space left while writing {len(data)} bytes to {path}: {room} were written, the disk holds "
                f"{self.used_bytes} of {self.faults.capacity_bytes}"
            )

    def late_write(self, node: FileNode, offset: int, data: bytes) -> None:
        """Write the cached data of a host that has died. Errors are not reported."""
        node.write(self.tree.next_sequence(), offset, data)

    def read_file(self, path: str, node: FileNode, offset: int, length: int) -> bytes:
        """Read what is in the page cache. Raises `OSError`."""
        self.hook(DiskCall.READ, path)
        size = self.faults.sector_bytes
        stop = min(offset + length, len(node.live))
        if node.bad_sectors and node.bad_sectors.intersection(range(offset // size, -(-stop // size))):
            raise OSError(errno.EIO, "simulated: sector cannot be read", path)
        if self._strikes("read error", self.faults.read_error_rate):
            raise OSError(errno.EIO, "simulated: read failed", path)
        return bytes(memoryview(node.live)[offset:stop])

    def sync_file(self, path: str, node: FileNode, extent: tuple[int, int] | None = None) -> None:
        """Sync the file, or an extent of it (offset, length), to the medium. Raises `OSError`, see `FailedSync`.

        A failed sync of an extent affects the whole file.
        """
        try:
            self.hook(DiskCall.SYNC, path)
            if self._strikes("sync error", self.faults.sync_error_rate):
                raise SyncFailedError(self._rng.choice(self.faults.failed_syncs))
        except SyncFailedError as error:
            match error.outcome:
                case FailedSync.LOSE:
                    node.lose_pending()
                case FailedSync.TEAR:
                    node.lose_pending(node.random_outcome(self._rng, 0.5))
                case FailedSync.KEEP:
                    pass
            raise
        if extent is None:
            node.sync()
        else:
            node.sync_extent(*extent)

    def cut_file(self, path: str, node: FileNode, length: int) -> None:
        """Set the length."""
        self.hook(DiskCall.TRUNCATE, path)
        node.set_length(self.tree.next_sequence(), length)

    # Helpers.

    def _take_descriptor(self, path: str) -> None:
        if not self.faults.has_descriptors:
            raise OSError(errno.EMFILE, "simulated: too many open files", path)

    def _strikes(self, fault: str, rate: float) -> bool:
        if not rate or self._rng.random() >= rate:
            return False
        self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1
        return True
