"""`SimulatedDisk`: a file system in memory that loses power by the rules of docs/fault-model.md.

Every file has what its readers see and what is on the medium; every directory the names it has now and the durable
ones. `crash` draws from the disk's generator one of the states that the rules allow; `after_crash` makes a given one,
for explorers that go through them all. The same calls with the same seed give the same disk.

After TigerBeetle's `src/testing/storage.zig`: the faults are a contract written down, and each is a value.
Left out: hard and symbolic links, permissions, sparse accounting, and latency, which the runtime adds around calls.
"""

from __future__ import annotations

import errno
import hashlib
import posixpath
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.model.errors import DataDirectoryInUseError, StorageFullError
from penstock.runtime.disk import DiskSpace
from penstock.testing.simulation.disk_faults import (
    NO_FAULTS,
    CrashKind,
    DiskCall,
    DiskFaults,
    FailedSync,
    NameOrder,
    ProcessGoneError,
    SyncFailedError,
)
from penstock.testing.simulation.disk_handles import SimulatedFile, SimulatedLock
from penstock.testing.simulation.disk_nodes import DirectoryNode, FileNode, FileOutcome, NameChange, Node, PendingWrite

__all__ = ["CrashPlan", "DiskHook", "SimulatedDisk", "SimulatedFile", "SimulatedLock"]

#: Sees each call before its effect (a write: after the bytes are in the page cache); what it raises, the call raises.
DiskHook = Callable[[str, str], None]


#: Free space of a disk without a capacity.
_BOUNDLESS_BYTES = 1 << 60


def _no_hook(call: str, path: str) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """A legal state after a power failure. `names`: places of the kept changes in `SimulatedDisk.name_changes`.

    Files that are not named in `files` (by node number) keep nothing unsynced.
    """

    text: str
    names: frozenset[int]
    files: Mapping[int, FileOutcome]


class SimulatedDisk:
    """`Disk` in memory, of one machine and one process at a time.

    Attributes:
        faults: may be replaced at any time.
        hook: see `DiskHook`. Reset by `crash` and `process_kill`.
        crash_count: power failures so far.
        fault_counts: random faults so far, by name.
    """

    def __init__(
        self, rng: random.Random, faults: DiskFaults = NO_FAULTS, *, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Begin with `files` (and the directories above them) on the medium."""
        self.faults = faults
        self.hook: DiskHook = _no_hook
        self.crash_count = 0
        self.fault_counts: dict[str, int] = {}
        self._rng = rng
        self._root = DirectoryNode()
        self._changes: list[NameChange] = []
        self._sequence = 0
        self._node_count = 0
        self._generation = 0
        self._locks: dict[FileNode, None] = {}
        self._unmounted: dict[str, DirectoryNode] = {}
        for path, content in (files or {}).items():
            self._place(path, content)

    # The `Disk` protocol.

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> SimulatedFile:
        """See `Disk.open`. Opening a directory raises `IsADirectoryError` even for reading."""
        self.hook(DiskCall.OPEN, path)
        self._take_descriptor(path)
        parent, name = self._parent(path)
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
            node = self._new_file()
            self._change(f"create {path}", (parent, name, node), moved=node)
            node.link_count += 1
        elif create and exclusive:
            raise FileExistsError(errno.EEXIST, "exists already", path)
        return SimulatedFile(self, path, node, self._generation, is_writable=writable)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`. The hook sees each directory made and each sync of a parent."""
        parts = _parts(path)
        directory = self._root
        for depth, name in enumerate(parts, 1):
            node = directory.live.get(name)
            here = "/" + "/".join(parts[:depth])
            if isinstance(node, FileNode):
                is_last = depth == len(parts)
                raise (FileExistsError if is_last else NotADirectoryError)(errno.ENOTDIR, "not a directory", here)
            if node is None:
                self.hook(DiskCall.MAKE_DIRECTORY, here)
                node = DirectoryNode()
                self._change(f"make directory {here}", (directory, name, node), moved=node)
                self.sync_directory(posixpath.dirname(here))
            directory = node

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        self.hook(DiskCall.LIST_DIRECTORY, path)
        self._take_descriptor(path)
        return sorted(self._directory(path).live)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self._find(path) is not None

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`. Directories can be moved, too, onto nothing or an empty directory."""
        self.hook(DiskCall.RENAME, target)
        from_directory, from_name = self._parent(source)
        node = from_directory.live.get(from_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        to_directory, to_name = self._parent(target)
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
        self._change(
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
        node = self._file(source)
        to_directory, to_name = self._parent(target)
        if to_name in to_directory.live:
            raise FileExistsError(errno.EEXIST, "exists already", target)
        self._change(f"link {source} to {target}", (to_directory, to_name, node), moved=node)
        node.link_count += 1

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.hook(DiskCall.REMOVE, path)
        parent, name = self._parent(path)
        node = parent.live.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self._change(f"remove {path}", (parent, name, None), moved=node)
        node.link_count -= 1

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self.hook(DiskCall.REMOVE_DIRECTORY, path)
        node = self._directory(path)
        if node.live:
            raise OSError(errno.ENOTEMPTY, "directory is not empty", path)
        parent, name = self._parent(path)
        self._change(f"remove directory {path}", (parent, name, None), moved=node)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`. With `NameOrder.PREFIX` all older changes elsewhere become durable, too."""
        self.hook(DiskCall.SYNC_DIRECTORY, path)
        self._take_descriptor(path)
        directory = self._directory(path)
        if self._strikes("sync error", self.faults.sync_error_rate):
            raise OSError(errno.EIO, "simulated: directory sync failed", path)
        mine = [at for at, change in enumerate(self._changes) if change.touches(directory)]
        if not mine:
            return
        if self.faults.name_order is NameOrder.PREFIX:
            wanted = frozenset(range(mine[-1] + 1))
        else:
            wanted = self._with_dependencies(mine)
        for at in sorted(wanted):
            for holder, name, node in self._changes[at].slots:
                _assign(holder.durable, name, node)
        self._changes = [change for at, change in enumerate(self._changes) if at not in wanted]

    def lock(self, path: str) -> SimulatedLock:
        """See `Disk.lock`. Killing the process or the machine gives all locks back."""
        self.hook(DiskCall.LOCK, path)
        self._take_descriptor(path)
        parent, name = self._parent(path)
        node = parent.live.get(name)
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if node is None:
            node = self._new_file()
            self._change(f"create {path}", (parent, name, node), moved=node)
            node.link_count += 1
        if node in self._locks:
            raise DataDirectoryInUseError(f"{path} is locked by another process")
        self._locks[node] = None
        return SimulatedLock(self._locks, node)

    def space(self, path: str) -> DiskSpace:
        """See `Disk.space`. Without a capacity there is room for everything."""
        self.hook(DiskCall.SPACE, path)
        if self._find(path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        capacity = self.faults.capacity_bytes
        if capacity is None:
            return DiskSpace(_BOUNDLESS_BYTES, _BOUNDLESS_BYTES)
        return DiskSpace(max(capacity - self.used_bytes, 0), capacity)

    # Faults on demand.

    def crash(self) -> None:
        """Lose power: draw a legal state from the generator and become it. Open files and locks are gone."""
        self._become(self.after_crash(self.draw_crash_plan()))
        self.crash_count += 1

    def process_kill(self) -> None:
        """Kill the process (SIGKILL): the page cache stays, synced or not. Open files and locks are gone."""
        self.hook = _no_hook
        self._generation += 1
        self._locks = {}

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Rot: invert bit `bit` (0 to 7) of the byte at `offset`, on the medium and for readers."""
        node = self._file(path)
        for content in (node.live, node.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit
        if offset >= len(node.live):
            raise IndexError(f"{path} has {len(node.live)} bytes, none at {offset}")

    def break_sector(self, path: str, offset: int) -> None:
        """Let reads of the sector at `offset` raise EIO until it is written again."""
        self._file(path).bad_sectors.add(offset // self.faults.sector_bytes)

    def unmount(self, path: str, files: Mapping[str, bytes] | None = None) -> bool:
        """Put an empty directory in the place of one, as when a file system is not mounted. False if there is none.

        What was there stays as it is, synced, until `mount`; files that are open stay open. With `files`, by name,
        another file system is mounted there.
        """
        node = self._find(path)
        if not isinstance(node, DirectoryNode) or path in self._unmounted:
            return False
        parent, name = self._parent(path)
        inside = {node, *(found for _, found in _walk(node, "") if isinstance(found, DirectoryNode))}
        self._changes = [change for change in self._changes if not any(map(change.touches, inside))]
        for directory in inside:
            directory.durable = dict(directory.live)
        for _, found in _walk(node, ""):
            if isinstance(found, FileNode):
                found.sync()
        self._unmounted[path] = node
        parent.live[name] = parent.durable[name] = DirectoryNode()
        for file_name, content in (files or {}).items():
            self._place(f"{path}/{file_name}", content)
        return True

    def mount(self, path: str) -> None:
        """Undo `unmount`. What was put into the empty directory meanwhile cannot be seen any more."""
        parent, name = self._parent(path)
        parent.live[name] = parent.durable[name] = self._unmounted.pop(path)

    # What an observer may see.

    @property
    def used_bytes(self) -> int:
        """Lengths of all files that have a name, together."""
        return sum(len(node.live) for _, node in _walk(self._root, "") if isinstance(node, FileNode))

    def files(self) -> dict[str, bytes]:
        """Return every file as a process started next would see it."""
        return {path: bytes(node.live) for path, node in _walk(self._root, "") if isinstance(node, FileNode)}

    def directories(self) -> list[str]:
        """Return every directory but the root, sorted."""
        return [path for path, node in _walk(self._root, "") if isinstance(node, DirectoryNode)]

    def fingerprint(self) -> bytes:
        """Return a digest of all names and of the contents that readers see."""
        digest = hashlib.blake2b(digest_size=16)
        for path, node in _walk(self._root, ""):
            digest.update(path.encode() + b"\0")
            if isinstance(node, FileNode):
                digest.update(b"%d:" % len(node.live))
                digest.update(node.live)
        return digest.digest()

    # States after a crash.

    @property
    def name_changes(self) -> Sequence[NameChange]:
        """Creations, renames and removals that are not durable, oldest first."""
        return self._changes

    def unsynced_files(self) -> list[FileNode]:
        """Return the files with unsynced work that some durable or pending name leads to, in order of creation."""
        found: dict[int, FileNode] = {}
        for directory in self._all_directories():
            for node in [*directory.live.values(), *directory.durable.values()]:
                if isinstance(node, FileNode) and node.pending:
                    found[node.number] = node
        for change in self._changes:
            if isinstance(change.moved, FileNode) and change.moved.pending:
                found[change.moved.number] = change.moved
        return [found[number] for number in sorted(found)]

    def draw_crash_plan(self) -> CrashPlan:
        """Draw a state by `faults.crash_kinds`."""
        rng = self._rng
        kind = rng.choice(self.faults.crash_kinds)
        match kind:
            case CrashKind.DROP:
                return CrashPlan("drop all", frozenset(), {})
            case CrashKind.KEEP:
                return self.keep_plan()
            case CrashKind.TEAR:
                return self.tear_plan(rng.randint(0, self._sequence), rng.random())
            case CrashKind.REORDER:
                return self.reorder_plan(rng)

    def keep_plan(self) -> CrashPlan:
        """Return the plan that keeps everything."""
        files = {node.number: node.kept() for node in self.unsynced_files()}
        return CrashPlan("keep all", frozenset(range(len(self._changes))), files)

    def pending_sequences(self) -> list[int]:
        """Return the sequence numbers of all unsynced work, ascending: moments that `tear_plan` can cut at."""
        numbers = [change.sequence for change in self._changes]
        for node in self.unsynced_files():
            numbers += [change.sequence for change in node.pending]
        return sorted(numbers)

    def tear_plan(self, sequence: int, torn_share: float) -> CrashPlan:
        """Return the plan that keeps what is older than `sequence`, and that share of the sectors of that write."""
        names = frozenset(at for at, change in enumerate(self._changes) if change.sequence < sequence)
        files: dict[int, FileOutcome] = {}
        for node in self.unsynced_files():
            torn = 0
            for change in node.pending:
                if change.sequence == sequence and isinstance(change, PendingWrite):
                    torn = int(torn_share * (len(change.data) // node.sector_bytes + 1))
            files[node.number] = node.kept_before(sequence, torn)
        return CrashPlan(f"keep up to {sequence}, {torn_share:.2f} of the next", names, files)

    def reorder_plan(self, rng: random.Random) -> CrashPlan:
        """Draw any legal plan."""
        if self.faults.name_order is NameOrder.PREFIX:
            names = frozenset(range(rng.randint(0, len(self._changes))))
        else:
            names = self._with_dependencies([at for at in range(len(self._changes)) if rng.random() < 0.5])
        keep_rate = rng.choice((0.05, 0.5, 0.95))
        files = {node.number: node.random_outcome(rng, keep_rate) for node in self.unsynced_files()}
        return CrashPlan(f"any sectors, {keep_rate} kept", names, files)

    def name_choices(self) -> list[frozenset[int]]:
        """Return the sets of name changes that may be kept; for `NameOrder.SUBSET` only each with what it needs."""
        count = len(self._changes)
        choices = [frozenset(range(kept)) for kept in range(count + 1)]
        if self.faults.name_order is NameOrder.SUBSET:
            choices += [self._with_dependencies([at]) for at in range(count)]
        return list(dict.fromkeys(choices))

    def after_crash(self, plan: CrashPlan) -> SimulatedDisk:
        """Return a new disk in the state of `plan`; this one stays as it is."""
        overlay: dict[DirectoryNode, dict[str, Node]] = {}
        for at in sorted(plan.names):
            for directory, name, node in self._changes[at].slots:
                _assign(overlay.setdefault(directory, dict(directory.durable)), name, node)

        def content(node: FileNode) -> bytearray:
            return node.content_after(plan.files.get(node.number) or node.dropped())

        return self._rebuilt(lambda directory: overlay.get(directory, directory.durable), content)

    def fork(self) -> SimulatedDisk:
        """Return an independent copy as the next process would find it: page cache, medium and unsynced work."""
        copy = SimulatedDisk(self._rng, self.faults)
        copies: dict[int, FileNode] = {}
        directories: dict[DirectoryNode, DirectoryNode] = {self._root: copy._root}

        def copied(node: Node) -> Node:
            if isinstance(node, FileNode):
                if node.number not in copies:
                    copies[node.number] = node.copy()
                return copies[node.number]
            if node not in directories:
                directories[node] = DirectoryNode()
                fill(node)
            return directories[node]

        def fill(node: DirectoryNode) -> None:
            target = directories[node]
            target.live = {name: copied(child) for name, child in node.live.items()}
            target.durable = {name: copied(child) for name, child in node.durable.items()}

        fill(self._root)
        for change in self._changes:
            slots = []
            for directory, name, child in change.slots:
                holder = copied(directory)
                assert isinstance(holder, DirectoryNode)
                slots.append((holder, name, None if child is None else copied(child)))
            copy._changes.append(NameChange(change.sequence, change.text, tuple(slots), copied(change.moved)))
        for node in copies.values():
            node.link_count = 0
        for _, found in _walk(copy._root, ""):
            if isinstance(found, FileNode):
                found.link_count += 1
        copy._sequence, copy._node_count = self._sequence, self._node_count
        return copy

    # For `SimulatedFile`.

    def check_handle(self, path: str, generation: int) -> None:
        """Raise `ProcessGoneError` when the handle's process was killed."""
        if generation != self._generation:
            raise ProcessGoneError(path)

    def write_file(self, path: str, node: FileNode, offset: int, data: bytes) -> None:
        """Write, or as much of it as faults allow. Raises `StorageFullError`, `OSError`."""
        self._sequence += 1
        room: int | None = None
        if self.faults.capacity_bytes is not None:
            growth = offset + len(data) - len(node.live)
            free = self.faults.capacity_bytes - self.used_bytes
            if growth > free:
                room = max(0, len(data) - (growth - max(free, 0)))
        if room is None and self._strikes("write error", self.faults.write_error_rate):
            node.write(self._sequence, offset, data[: self._rng.randrange(len(data) + 1)])
            raise OSError(errno.EIO, "simulated: write failed half way", path)
        node.write(self._sequence, offset, data[:room])
        self.hook(DiskCall.WRITE, path)
        if room is not None:
            raise StorageFullError(
                f"no space left while writing {len(data)} bytes to {path}: {room} were written, the disk holds "
                f"{self.used_bytes} of {self.faults.capacity_bytes}"
            )

    def late_write(self, node: FileNode, offset: int, data: bytes) -> None:
        """Write what a host that has died had in its cache. Nobody hears of it."""
        self._sequence += 1
        node.write(self._sequence, offset, data)

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

    def sync_file(self, path: str, node: FileNode) -> None:
        """Bring the file to the medium. Raises `OSError`, see `FailedSync`."""
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
        node.sync()

    def cut_file(self, path: str, node: FileNode, length: int) -> None:
        """Set the length."""
        self.hook(DiskCall.TRUNCATE, path)
        self._sequence += 1
        node.set_length(self._sequence, length)

    # Helpers.

    def _take_descriptor(self, path: str) -> None:
        if not self.faults.has_descriptors:
            raise OSError(errno.EMFILE, "simulated: too many open files", path)

    def _strikes(self, fault: str, rate: float) -> bool:
        if not rate or self._rng.random() >= rate:
            return False
        self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1
        return True

    def _new_file(self, content: bytes = b"") -> FileNode:
        self._node_count += 1
        return FileNode(self._node_count, self.faults.sector_bytes, content)

    def _change(self, text: str, *slots: tuple[DirectoryNode, str, Node | None], moved: Node) -> None:
        self._sequence += 1
        for directory, name, node in slots:
            _assign(directory.live, name, node)
        self._changes.append(NameChange(self._sequence, text, slots, moved))

    def _with_dependencies(self, places: Sequence[int]) -> frozenset[int]:
        wanted = set(places)
        for at in range(len(self._changes) - 1, -1, -1):
            if at in wanted:
                change = self._changes[at]
                wanted.update(before for before in range(at) if change.must_follow(self._changes[before]))
        return frozenset(wanted)

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        parts = _parts(path)
        if not parts:
            raise OSError(errno.EBUSY, "the root cannot be changed", path)
        return self._directory("/".join(parts[:-1]), path), parts[-1]

    def _directory(self, path: str, wanted: str | None = None) -> DirectoryNode:
        node: Node = self._root
        for name in _parts(path):
            found = node.live.get(name) if isinstance(node, DirectoryNode) else None
            if isinstance(node, FileNode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", wanted or path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", wanted or path)
            node = found
        if isinstance(node, FileNode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", wanted or path)
        return node

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in _parts(path):
            node = node.live.get(name) if isinstance(node, DirectoryNode) else None
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _all_directories(self) -> list[DirectoryNode]:
        found: dict[DirectoryNode, None] = {}
        waiting = [self._root, *(slot[0] for change in self._changes for slot in change.slots)]
        while waiting:
            directory = waiting.pop()
            if directory not in found:
                found[directory] = None
                children = [*directory.live.values(), *directory.durable.values()]
                waiting += [child for child in children if isinstance(child, DirectoryNode)]
        return list(found)

    def _rebuilt(
        self, entries: Callable[[DirectoryNode], Mapping[str, Node]], content: Callable[[FileNode], bytearray]
    ) -> SimulatedDisk:
        disk = SimulatedDisk(self._rng, self.faults)

        def copy(source: DirectoryNode, target: DirectoryNode) -> None:
            for name, node in entries(source).items():
                made: Node
                if isinstance(node, FileNode):
                    made = FileNode(node.number, node.sector_bytes, bytes(content(node)))
                    made.bad_sectors = set(node.bad_sectors)
                    made.link_count = 1
                else:
                    made = DirectoryNode()
                    copy(node, made)
                target.live[name] = target.durable[name] = made

        copy(self._root, disk._root)
        disk._sequence, disk._node_count = self._sequence, self._node_count
        return disk

    def _become(self, other: SimulatedDisk) -> None:
        self.process_kill()
        self._root, self._changes = other._root, other._changes

    def _place(self, path: str, content: bytes) -> None:
        *folders, name = _parts(path)
        directory = self._root
        for folder in folders:
            child = directory.live.get(folder) or DirectoryNode()
            if isinstance(child, FileNode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory.live[folder] = directory.durable[folder] = child
            directory = child
        node = self._new_file(content)
        node.link_count = 1
        directory.live[name] = directory.durable[name] = node


def _parts(path: str) -> list[str]:
    return [part for part in posixpath.normpath("/" + path).split("/") if part]


def _assign(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _walk(directory: DirectoryNode, path: str) -> Iterator[tuple[str, Node]]:
    for name in sorted(directory.live):
        node = directory.live[name]
        yield f"{path}/{name}", node
        if isinstance(node, DirectoryNode):
            yield from _walk(node, f"{path}/{name}")
