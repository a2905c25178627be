"""`DiskTree`: the names and files of a `SimulatedDisk`, and the states that a power failure may leave.

Every directory has the names that processes see and the durable ones; the difference is a list of changes, oldest
first. Together with the unsynced changes of the files (`disk_nodes`) they determine the states a crash may leave. A
state is a `CrashPlan`: this module makes single ones and enumerates them all; it draws nothing and has no faults.
"""

from __future__ import annotations

import errno
import hashlib
import posixpath
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock_simulation.simulated.disk_faults import NameOrder
from penstock_simulation.simulated.disk_nodes import (
    DirectoryNode,
    FileNode,
    FileOutcome,
    NameChange,
    Node,
    PendingWrite,
)


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """A legal state after a power failure. `names`: indexes of the kept changes in `DiskTree.name_changes`.

    Files that are not listed in `files` (by node number) keep no unsynced changes.
    """

    text: str
    names: frozenset[int]
    files: Mapping[int, FileOutcome]


class DiskTree:
    """See the module. Absolute and relative paths are equivalent."""

    def __init__(self, sector_bytes: int, name_order: NameOrder) -> None:
        self.sector_bytes = sector_bytes
        self.name_order = name_order
        self._root = DirectoryNode()
        self._changes: list[NameChange] = []
        self._sequence = 0
        self._node_count = 0
        self._unmounted: dict[str, DirectoryNode] = {}

    # Lookup.

    def find(self, path: str) -> Node | None:
        """Return the node at a path, or None."""
        node: Node | None = self._root
        for name in parts_of(path):
            node = node.live.get(name) if isinstance(node, DirectoryNode) else None
        return node

    def file(self, path: str) -> FileNode:
        """Return a file. Raises `FileNotFoundError`."""
        node = self.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def directory(self, path: str, wanted: str | None = None) -> DirectoryNode:
        """Return a directory. Raises `NotADirectoryError`, `FileNotFoundError`, which name `wanted` if it is given."""
        node: Node = self._root
        for name in parts_of(path):
            found = node.live.get(name) if isinstance(node, DirectoryNode) else None
            if isinstance(node, FileNode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", wanted or path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", wanted or path)
            node = found
        if isinstance(node, FileNode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", wanted or path)
        return node

    def parent(self, path: str) -> tuple[DirectoryNode, str]:
        """Return the directory that holds a path's last name, and that name. Raises as `directory`, `OSError`."""
        parts = parts_of(path)
        if not parts:
            raise OSError(errno.EBUSY, "the root cannot be changed", path)
        return self.directory("/".join(parts[:-1]), path), parts[-1]

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Return everything that has a name now, with its path, sorted."""
        return _walk(self._root, "")

    @property
    def used_bytes(self) -> int:
        """Sum of the lengths of all files that have a name."""
        return sum(len(node.live) for _, node in self.walk() if isinstance(node, FileNode))

    def fingerprint(self) -> bytes:
        """Return a digest of all names and of the contents that readers see."""
        digest = hashlib.blake2b(digest_size=16)
        for path, node in self.walk():
            digest.update(path.encode() + b"\0")
            if isinstance(node, FileNode):
                digest.update(b"%d:" % len(node.live))
                digest.update(node.live)
        return digest.digest()

    # Changes.

    def next_sequence(self) -> int:
        """Return the number of the next change, of bytes or of names."""
        self._sequence += 1
        return self._sequence

    def new_file(self, content: bytes = b"") -> FileNode:
        """Return a new file without a name."""
        self._node_count += 1
        return FileNode(self._node_count, self.sector_bytes, content)

    def change(self, text: str, *slots: tuple[DirectoryNode, str, Node | None], moved: Node) -> None:
        """Set names atomically, not durable yet."""
        for directory, name, node in slots:
            _assign(directory.live, name, node)
        self._changes.append(NameChange(self.next_sequence(), text, slots, moved))

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Make the names in a directory durable. With `NameOrder.PREFIX` all older changes elsewhere do too."""
        mine = [at for at, change in enumerate(self._changes) if change.touches(directory)]
        if not mine:
            return
        if self.name_order is NameOrder.PREFIX:
            wanted = frozenset(range(mine[-1] + 1))
        else:
            wanted = self._with_dependencies(mine)
        for at in sorted(wanted):
            for holder, name, node in self._changes[at].slots:
                _assign(holder.durable, name, node)
        self._changes = [change for at, change in enumerate(self._changes) if at not in wanted]

    def place(self, path: str, content: bytes) -> None:
        """Put a file on the medium, with the directories above it."""
        *folders, name = parts_of(path)
        directory = self._root
        for folder in folders:
            child = directory.live.get(folder) or DirectoryNode()
            if isinstance(child, FileNode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory.live[folder] = directory.durable[folder] = child
            directory = child
        node = self.new_file(content)
        node.link_count = 1
        directory.live[name] = directory.durable[name] = node

    def unmount(self, path: str) -> bool:
        """See `SimulatedDisk.unmount`."""
        node = self.find(path)
        if not isinstance(node, DirectoryNode) or path in self._unmounted:
            return False
        parent, name = self.parent(path)
        inside = {node, *(found for _, found in _walk(node, "") if isinstance(found, DirectoryNode))}
        self._changes = [change for change in self._changes if not any(map(change.touches, inside))]
        for directory in inside:
            directory.durable = dict(directory.live)
        for _, found in _walk(node, ""):
            if isinstance(found, FileNode):
                found.sync()
        self._unmounted[path] = node
        parent.live[name] = parent.durable[name] = DirectoryNode()
        return True

    @property
    def unmounted(self) -> Sequence[str]:
        """See `SimulatedDisk.unmounted`."""
        return list(self._unmounted)

    def mount(self, path: str) -> None:
        """See `SimulatedDisk.mount`."""
        parent, name = self.parent(path)
        parent.live[name] = parent.durable[name] = self._unmounted.pop(path)

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

    def pending_sequences(self) -> list[int]:
        """Return the sequence numbers of all unsynced changes, ascending: moments that `tear_plan` accepts."""
        numbers = [change.sequence for change in self._changes]
        for node in self.unsynced_files():
            numbers += [change.sequence for change in node.pending]
        return sorted(numbers)

    def keep_plan(self) -> CrashPlan:
        """Return the plan that keeps everything."""
        files = {node.number: node.kept() for node in self.unsynced_files()}
        return CrashPlan("keep all", frozenset(range(len(self._changes))), files)

    def tear_plan(self, sequence: int, torn_share: float) -> CrashPlan:
        """Return the plan that keeps all changes before `sequence`, and that share of the sectors of that write."""
        names = frozenset(at for at, change in enumerate(self._changes) if change.sequence < sequence)
        files: dict[int, FileOutcome] = {}
        for node in self.unsynced_files():
            torn = 0
            for change in node.pending:
                if change.sequence == sequence and isinstance(change, PendingWrite):
                    torn = int(torn_share * (len(change.data) // node.sector_bytes + 1))
            files[node.number] = node.kept_before(sequence, torn)
        return CrashPlan(f"keep up to {sequence}, {torn_share:.2f} of the next", names, files)

    def random_tear_plan(self, rng: random.Random) -> CrashPlan:
        """Draw a moment of the whole history, and tear the write of that moment."""
        return self.tear_plan(rng.randint(0, self._sequence), rng.random())

    def reorder_plan(self, rng: random.Random) -> CrashPlan:
        """Draw any legal plan."""
        if self.name_order is NameOrder.PREFIX:
            names = frozenset(range(rng.randint(0, len(self._changes))))
        else:
            names = self._with_dependencies([at for at in range(len(self._changes)) if rng.random() < 0.5])
        keep_rate = rng.choice((0.05, 0.5, 0.95))
        files = {node.number: node.random_outcome(rng, keep_rate) for node in self.unsynced_files()}
        return CrashPlan(f"any sectors, {keep_rate} kept", names, files)

    def name_choices(self) -> list[frozenset[int]]:
        """Return the sets of name changes that may be kept; for `NameOrder.SUBSET`, closed under dependencies."""
        count = len(self._changes)
        choices = [frozenset(range(kept)) for kept in range(count + 1)]
        if self.name_order is NameOrder.SUBSET:
            choices += [self._with_dependencies([at]) for at in range(count)]
        return list(dict.fromkeys(choices))

    def after(self, plan: CrashPlan) -> DiskTree:
        """Return a new tree in the state of `plan`; this one stays as it is."""
        overlay: dict[DirectoryNode, dict[str, Node]] = {}
        for at in sorted(plan.names):
            for directory, name, node in self._changes[at].slots:
                _assign(overlay.setdefault(directory, dict(directory.durable)), name, node)

        def content(node: FileNode) -> bytearray:
            return node.content_after(plan.files.get(node.number) or node.dropped())

        return self._rebuilt(lambda directory: overlay.get(directory, directory.durable), content)

    def crash(self, plan: CrashPlan) -> None:
        """Switch to the state that `after` returns. Unmounted contents stay unchanged."""
        after = self.after(plan)
        self._root, self._changes = after._root, after._changes

    def copy(self) -> DiskTree:
        """Return an independent copy: page cache, medium and unsynced changes."""
        copy = DiskTree(self.sector_bytes, self.name_order)
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
        for _, found in copy.walk():
            if isinstance(found, FileNode):
                found.link_count += 1
        copy._sequence, copy._node_count = self._sequence, self._node_count
        return copy

    def _with_dependencies(self, places: Sequence[int]) -> frozenset[int]:
        wanted = set(places)
        for at in range(len(self._changes) - 1, -1, -1):
            if at in wanted:
                change = self._changes[at]
                wanted.update(before for before in range(at) if change.must_follow(self._changes[before]))
        return frozenset(wanted)

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
    ) -> DiskTree:
        tree = DiskTree(self.sector_bytes, self.name_order)

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

        copy(self._root, tree._root)
        tree._sequence, tree._node_count = self._sequence, self._node_count
        return tree


def parts_of(path: str) -> list[str]:
    """Return the names in a path."""
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
