"""`DirectoryChunkStorage`: chunks as plain files under a local or NFS directory.

A chunk's name is its path below the root. Differences from faults of the reference implementation: directory entries
are synced, so that an acknowledged chunk survives a power failure; a file shorter than recorded is an error and not an
endless loop; a concatenation returns the right length.

Two instances may use one root (a zombie and its successor): there is no lock and no state on disk besides the chunks
and the identity. Calls on one chunk of one instance are serialised; the layer above decides which instance may append
to a chunk.

Disk work runs in separate pools, so a file system that hangs blocks nothing else. A call has a time-out, and then
raises `StorageNotRespondingError`. A cancelled call abandons a read at once, and waits a short time for any other
operation to end, so that usually no thread writes after the caller has returned. An operation that still runs then is
abandoned: it takes effect later or never, like a call of a superseded instance, and its resources stay in use until it
ends: its files open, the chunk it writes to locked.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from penstock.model.errors import (
    ChunkError,
    InvalidArgumentError,
    NoSuchChunkError,
    StorageError,
    StorageNotRespondingError,
)
from penstock.model.segments import Buffer
from penstock.runtime.descriptors import DescriptorBudget
from penstock.runtime.disk import DiskFile, DiskSpace
from penstock.runtime.fixed_values import fixed
from penstock.runtime.runtime import Runtime
from penstock.runtime.work import PoolSettings, WorkPool
from penstock.segmentstore.tier2.chunk_files import ChunkFiles
from penstock.segmentstore.tier2.chunk_name import (
    CHUNK_NAME_PART_LENGTH_MAX,
    RESERVED_NAME_PREFIX,
    check_chunk_name,
    check_concat,
    check_range,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.directory_syncs import DirectorySyncs

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: A directory may be pruned between its creation and that of the file in it; then both are repeated.
_CREATE_ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class DirectoryChunkStorageSettings:
    """Bounds of `DirectoryChunkStorage`.

    Attributes:
        open_files_max: files kept open while idle, not counting those in use. A flush to another chunk has to open it
            and to close one, each a separate job for a thread.
        known_directories_max: directories remembered as durable, to avoid syncing them again.
        copy_buffer_bytes: how much `concat` copies at a time.
        reads: the pool for reads of chunks.
        writes: the pool for writes, creations and concatenations.
        names: the pool for everything else: directories, deletions, lists, lengths.
        cancel_grace_s: how long a cancelled call waits for the end of a change in progress before abandoning it.
    """

    open_files_max: int = fixed(1024)
    known_directories_max: int = fixed(4096)
    copy_buffer_bytes: int = fixed(1024 * 1024)
    reads: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=8, hung_count_max=16, timeout_s=30.0)
    )
    writes: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=8, hung_count_max=16, timeout_s=60.0)
    )
    names: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=4, hung_count_max=8, timeout_s=30.0)
    )
    cancel_grace_s: float = fixed(1.0)

    def within(self, budget: DescriptorBudget) -> DirectoryChunkStorageSettings:
        """Return these settings with no more files kept open than the descriptor budget allows."""
        return replace(self, open_files_max=min(self.open_files_max, budget.open_chunks))


@dataclass(slots=True)
class _OpenFile:
    file: DiskFile
    #: Calls that use the file now. It is closed only at 0: a descriptor closed during a read may become another file.
    user_count: int = 0
    #: Removed from the cache: the last user closes it.
    is_dropped: bool = False
    #: Serialises the calls that change the chunk.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _AtSecondCall:
    """Calls `release` on the second call: by the work at its end and by its caller, whichever is later."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = release
        self._is_called = False

    def __call__(self) -> None:
        if self._is_called:
            self._release()
        self._is_called = True


class DirectoryChunkStorage:
    """`ChunkStorage` on a directory. All disk work runs in separate bounded pools."""

    def __init__(self, root: str, runtime: Runtime, settings: DirectoryChunkStorageSettings | None = None) -> None:
        self._root = root
        self._rng = runtime.rng
        self._settings = settings or DirectoryChunkStorageSettings()
        self._reads = runtime.work.pool("tier-2-reads", self._settings.reads)
        self._writes = runtime.work.pool("tier-2-writes", self._settings.writes)
        self._names = runtime.work.pool("tier-2-names", self._settings.names)
        # Closing may hang on some file systems.
        self._closes = runtime.work.pool("tier-2-closes", PoolSettings(thread_count_max=1))
        self._chunk_files = ChunkFiles(root, runtime.disk, copy_buffer_bytes=self._settings.copy_buffer_bytes)
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._durable_directories: OrderedDict[str, None] = OrderedDict()
        #: Files created in one directory at the same time share the sync of the directory.
        self._syncs = DirectorySyncs(lambda folder: self._run(self._chunk_files.sync_folder, folder))
        # Held while directories are created or removed, so that no call relies on a directory not yet synced.
        self._tree_lock = asyncio.Lock()
        self._is_closed = False

    @property
    def root(self) -> str:
        """The directory that holds the chunks."""
        return self._root

    @property
    def supports_append(self) -> bool:
        """See `ChunkStorage.supports_append`."""
        return True

    @property
    def supports_concat(self) -> bool:
        """See `ChunkStorage.supports_concat`. By copying."""
        return True

    @property
    def place(self) -> str:
        """See `ChunkStorage.place`."""
        return self._root

    @property
    def name_part_bytes_max(self) -> int:
        """See `ChunkStorage.name_part_bytes_max`."""
        return CHUNK_NAME_PART_LENGTH_MAX

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`."""
        self._check_open()
        return await self._run(self._chunk_files.read_identity)

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`."""
        self._chunk_files.identity = identity

    async def create_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.create_identity`."""
        self._check_open()
        draft_name = f"{RESERVED_NAME_PREFIX}{self._rng.randbytes(8).hex()}.new"
        await self._run(self._chunk_files.create_identity, identity, draft_name)

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        self._check(name)
        await self._create(name, ())

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""
        self._check(name)
        if not any(map(len, data)):
            raise InvalidArgumentError(f"chunk {name} cannot be created without content")
        return await self._create(name, data)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`. If the disk is full the chunk is truncated to `offset`.

        After any other failure bytes may remain after `offset`; the next write at `offset` then raises
        `BadChunkOffsetError`. A failed sync is never repeated: the resulting state of the disk is unknown.
        """
        self._check(name, offset)
        opened = await self._acquire(name, self._writes)
        try:
            return await self._change(opened, (), self._chunk_files.append, name, opened.file, offset, data)
        except NoSuchChunkError:
            self._forget(name, opened)
            raise

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        self._check(name, offset, length)
        opened = await self._acquire(name, self._reads)
        try:
            return await self._reads.run(
                self._chunk_files.read, name, opened.file, offset, length, on_end=partial(self._release, opened)
            )
        except NoSuchChunkError:
            self._forget(name, opened)
            raise

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        self._check(name)
        length = await self._run(self._chunk_files.length, name)
        if length is None:
            raise NoSuchChunkError(name)
        return ChunkInfo(name, length)

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        self._check(name)
        return await self._run(self._chunk_files.length, name) is not None

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`. Directories that become empty are removed, too."""
        self._check(name)
        await self._run(self._chunk_files.remove, name)
        self._drop(name)
        await self._locked(self._tree_lock, self._names)
        leave = _AtSecondCall(self._tree_lock.release)
        try:
            for removed in await self._run(self._chunk_files.prune, name, on_end=leave):
                self._durable_directories.pop(removed, None)
        finally:
            leave()

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`. Copies.

        After a failed copy the sources are unchanged, and the target ends at `target_length` or has bytes after it.
        """
        check_concat(target, target_length, sources)
        self._check(target)
        opened: list[_OpenFile] = []
        try:
            for name in (target, *(name for name, _ in sources)):
                opened.append(await self._acquire(name, self._writes))
        except BaseException:
            for entry in opened:
                self._release(entry)
            raise
        parts = [(name, entry.file, n) for (name, n), entry in zip(sources, opened[1:], strict=True)]
        total = await self._change(
            opened[0], opened[1:], self._chunk_files.join, target, opened[0].file, target_length, parts
        )
        for name, _ in sources:
            await self.delete(name)
        return total

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        self._check_open()
        folder = posixpath.dirname(prefix)
        if folder or prefix.startswith("/"):
            check_chunk_name(folder)
        return await self._run(self._chunk_files.walk, folder, prefix)

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`. In the order of the names' parts."""
        self._check_open()
        return await self._run(self._chunk_files.names, after, limit)

    async def space(self) -> DiskSpace | None:
        """See `ChunkStorage.space`. None before the first chunk is created."""
        self._check_open()
        return await self._names.run(self._chunk_files.space)

    async def close(self) -> None:
        """See `ChunkStorage.close`. Idempotent; files in use are closed when their calls end. Ignores hung calls."""
        self._is_closed = True
        for name in list(self._files):
            self._drop(name)
        try:
            async with asyncio.timeout(self._settings.cancel_grace_s):
                for pool in (self._reads, self._writes, self._names, self._closes):
                    await pool.drained(with_abandoned=True)
        except TimeoutError:
            _log.warning("calls in %s are still running after %g s, and are abandoned", self._root,
                         self._settings.cancel_grace_s)  # fmt: skip

    def _check(self, name: str, offset: int = 0, length: int = 0) -> None:
        check_chunk_name(name)
        check_range(name, offset, length)
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError(f"the chunk storage in {self._root} is closed")

    async def _run(self, function: Callable[..., T], *args: object, on_end: Callable[[], object] | None = None) -> T:
        """Run blocking work on names; if cancelled, wait a short time for its end before raising the cancellation."""
        return await self._finish(self._names.run(function, *args, on_end=on_end))

    async def _change(
        self, opened: _OpenFile, others: Sequence[_OpenFile], function: Callable[..., T], *args: object
    ) -> T:
        """Run blocking work that changes a chunk; when it has ended, release this and other files in use."""

        def release() -> None:
            for entry in (opened, *others):
                self._release(entry)

        try:
            await self._locked(opened.lock, self._writes)
        except BaseException:
            release()
            raise

        def end() -> None:
            opened.lock.release()
            release()

        return await self._finish(self._writes.run(function, *args, on_end=end))

    async def _locked(self, lock: asyncio.Lock, pool: WorkPool) -> None:
        """Take a lock that hanging work may hold for long; the caller hands it to the work that releases it."""
        timeout_s = pool.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s or None) as limit:
                await lock.acquire()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StorageNotRespondingError(
                f"{pool.name}: the previous call in {self._root} has not ended within {timeout_s:g} s; nothing was done"
            ) from error

    async def _finish(self, future: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + self._settings.cancel_grace_s
            while not future.done() and (left_s := deadline_s - loop.time()) > 0:
                try:
                    await asyncio.wait([future], timeout=left_s)
                except asyncio.CancelledError:
                    continue  # Cancelled again; the first cancellation is raised below.
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # Marks the exception as retrieved: the caller was cancelled.
            raise

    async def _create(self, name: str, data: Sequence[Buffer]) -> int:
        for attempt in range(1, _CREATE_ATTEMPTS_MAX + 1):
            try:
                await self._make_parents(name)
                creation: asyncio.Future[int] = self._writes.run(
                    self._chunk_files.create_file, name, data, discard=partial(self._discard_late, name)
                )
                length = await self._finish(creation)
                try:
                    await self._syncs.sync(self._chunk_files.folder(name))
                except StorageError as error:
                    await self._run(self._chunk_files.discard, name, error)
                    raise
                return length
            except FileNotFoundError as error:
                self._durable_directories.pop(self._chunk_files.folder(name), None)
                if attempt == _CREATE_ATTEMPTS_MAX:
                    raise ChunkError(name, f"its directory vanished {attempt} times while it was created") from error
        raise AssertionError("the last attempt returns or raises")

    def _discard_late(self, name: str, length: int) -> None:
        """Remove a chunk whose creation hung, was given up, and succeeded later."""
        if self._names.is_closed:
            return  # The process ends; the sweep of a later one finds it.

        def removed(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                _log.warning("chunk %s (%d bytes) was created late and could not be deleted: %s", name, length, error)

        self._names.run(self._chunk_files.discard_late, name).add_done_callback(removed)

    async def _make_parents(self, name: str) -> None:
        folder = self._chunk_files.folder(name)
        await self._locked(self._tree_lock, self._names)
        if folder in self._durable_directories:
            self._durable_directories.move_to_end(folder)
            self._tree_lock.release()
            return
        leave = _AtSecondCall(self._tree_lock.release)
        try:
            await self._run(self._chunk_files.make_directories, name, on_end=leave)
            self._durable_directories[folder] = None
            while len(self._durable_directories) > self._settings.known_directories_max:
                self._durable_directories.popitem(last=False)
        finally:
            leave()

    async def _acquire(self, name: str, pool: WorkPool) -> _OpenFile:
        """Return the open file of a chunk for one more user, who calls `_release` or lets `_change` do it."""
        opened = self._files.get(name)
        if opened is None:
            opening = pool.run(self._chunk_files.open, name, discard=self._close)
            try:
                file = await (opening if pool is self._reads else self._finish(opening))
            except asyncio.CancelledError:
                # It was opened nevertheless: the caller will not use it, and the pool has already handed it over.
                if opening.done() and not opening.cancelled() and opening.exception() is None:
                    self._close(opening.result())
                raise
            opened = self._files.get(name)
            if opened is None and not self._is_closed:
                opened = self._files[name] = _OpenFile(file)
            else:  # Another call has opened it, and its lock must be the only one; or the storage is closed.
                self._close(file)
                self._check_open()
                assert opened is not None
        self._files.move_to_end(name)
        opened.user_count += 1
        self._evict()
        return opened

    def _release(self, opened: _OpenFile) -> None:
        opened.user_count -= 1
        if opened.is_dropped and opened.user_count == 0:
            self._close(opened.file)
        self._evict()

    def _evict(self) -> None:
        excess = len(self._files) - self._settings.open_files_max
        if excess > 0:
            idle = (name for name, opened in self._files.items() if opened.user_count == 0)
            for name in list(islice(idle, excess)):
                self._drop(name)

    def _forget(self, name: str, opened: _OpenFile) -> None:
        """Drop a file that another instance has deleted."""
        if self._files.get(name) is opened:
            self._drop(name)

    def _drop(self, name: str) -> None:
        opened = self._files.pop(name, None)
        if opened is not None:
            opened.is_dropped = True
            if opened.user_count == 0:
                self._close(opened.file)

    def _close(self, file: DiskFile) -> None:
        """Close an unused file."""
        if self._closes.is_closed:
            return  # The process ends, and its descriptors with it.

        def closed(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                _log.warning("could not close %s: %s", file.path, error)

        self._closes.run(file.close).add_done_callback(closed)
