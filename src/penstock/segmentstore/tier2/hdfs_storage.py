"""`HdfsChunkStorage`: chunks as files of a remote file system such as HDFS. Concatenates by moving blocks.

A chunk's name is its path below `root`. A file has one writer, which holds its lease; the storage holds a lease only
during a call. Leases are not used for fencing. Names are: each epoch creates its own, so only the instance whose epoch
created a chunk ever appends to it. A lease found on such a chunk is left by an earlier call of the same instance that
was given up, and is recovered.

**Lost responses.**

1. *Creation.* It is sent again. If there is a file by then, and it is open with the lease of this client, an earlier
request has created it: it is deleted and created again. Any other file proves nothing, as files have no tags: the
outcome stays unknown and is raised as an error. The name is known to no other caller, so nothing is ever read from it;
it is deleted as an orphan.
2. *Append.* Synced bytes are durable, whether or not the file is closed afterwards. Before that the outcome is unknown.
The lease is recovered, which fences requests still in flight, and the append is repeated. If there are bytes after its
offset it does nothing and reports that, and the caller begins another chunk. Those bytes are never read: their content
could be verified, but not whether they are synced.
3. *Deletion.* The file is looked up: if it does not exist, it was deleted.
4. *Concatenation* is one step. It was done if the sources are gone and the target has the sum of all lengths.
5. *Reads, lookups and lists* are repeated, `retries_max` times.

Of calls that timed out only appends are repeated: the recovery fences requests that are still in progress.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.errors import (
    BadChunkOffsetError,
    ChunkError,
    ChunkExistsError,
    ChunkNotSettledError,
    InvalidArgumentError,
    NoSuchChunkError,
    NoSuchRemoteFileError,
    RemoteFileCopiesError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    RemoteFileLengthError,
    RemoteFileNotClosedError,
    StorageError,
    StorageIdentityError,
    StorageNotRespondingError,
    StorageSafeModeError,
    StorageUnavailableError,
    StorageUnreachableError,
)
from penstock.model.segments import Buffer
from penstock.model.sizes import IDENTITY_LENGTH_MAX
from penstock.runtime.disk import DiskSpace
from penstock.runtime.files import FileInfo, FileStore
from penstock.runtime.pacing import GrowingDelay
from penstock.segmentstore.tier2.chunk_files import IDENTITY_NAME
from penstock.segmentstore.tier2.chunk_name import (
    CHUNK_NAME_PART_LENGTH_MAX,
    RESERVED_NAME_PREFIX,
    check_chunk_name,
    check_concat,
    check_range,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.hdfs_storage_settings import HdfsStorageSettings
from penstock.segmentstore.tier2.storage_identity import demand_identity

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Turn:
    """Serialises the calls that change a chunk. `count`: holders and waiters."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class HdfsChunkStorage:
    """`ChunkStorage` in the folder `root` of `files`. Closing it closes `files`. See the module."""

    def __init__(
        self, files: FileStore, rng: random.Random, root: str, settings: HdfsStorageSettings | None = None
    ) -> None:
        self.files: FileStore = files
        self.root: str = root
        self._rng = rng
        self._settings = settings or HdfsStorageSettings()
        self._turns: dict[str, _Turn] = {}
        self._known_identity: bytes | None = None
        self._is_closed = False

    @property
    def supports_append(self) -> bool:
        """See `ChunkStorage.supports_append`."""
        return True

    @property
    def supports_concat(self) -> bool:
        """See `ChunkStorage.supports_concat`."""
        return True

    @property
    def place(self) -> str:
        """See `ChunkStorage.place`."""
        return f"{self.files.place}{self.root}"

    @property
    def name_part_bytes_max(self) -> int:
        """See `ChunkStorage.name_part_bytes_max`."""
        return min(CHUNK_NAME_PART_LENGTH_MAX, self.files.name_part_bytes_max)

    # -- identity -----------------------------------------------------------------------------------------------

    @property
    def identity_path(self) -> str:
        """The path of the identity file."""
        return self._path(IDENTITY_NAME)

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`."""
        self._check_open()
        try:
            return await self._again(lambda: self.files.read(self.identity_path, 0, IDENTITY_LENGTH_MAX + 1))
        except NoSuchRemoteFileError:
            return None

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`. Costs one read for each creation."""
        self._known_identity = identity

    async def create_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.create_identity`. Raises `StorageUnavailableError` if changes are currently refused.

        Written under a name unique to this call and then renamed, which is one step. A rename whose response was lost
        was done if that name no longer exists.
        """
        self._check_open()
        draft = self._path(f"{RESERVED_NAME_PREFIX}{self._rng.randbytes(8).hex()}.new")
        try:
            await self._create_file(draft, identity)
            await self._rename_draft(draft)
        except StorageSafeModeError as error:
            raise StorageUnavailableError(str(error)) from error

    async def _rename_draft(self, draft: str) -> None:
        try:
            try:
                await self._again(lambda: self.files.rename_new(draft, self.identity_path))
            except (RemoteFileExistsError, NoSuchRemoteFileError, StorageUnreachableError, StorageNotRespondingError):
                # An earlier request may have done it: then the draft is gone.
                if not await self._is_gone(draft):
                    raise
        except RemoteFileExistsError:
            await self._try_delete(draft)
            raise StorageIdentityError(self.place, "it has an identity already") from None
        except StorageError:
            await self._try_delete(draft)
            raise

    # -- changes ------------------------------------------------------------------------------------------------

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        self._check(name)
        await self._create(name, b"")

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`. For unknown outcomes see the module."""
        self._check(name)
        content = _in_one(data)
        if not len(content):
            raise InvalidArgumentError(f"chunk {name} cannot be created without content")
        await self._create(name, content)
        return len(content)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`. For unknown outcomes see the module."""
        self._check(name, offset)
        content = _in_one(data)
        async with self._turn(name):
            await self._append(name, offset, content)
        return len(content)

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`. Folders are kept, even if empty: a stream has one."""
        self._check(name)
        path = self._path(name)
        async with self._turn(name):
            try:
                await self.files.delete(path)
            except NoSuchRemoteFileError:
                raise NoSuchChunkError(name) from None
            except (StorageUnreachableError, StorageNotRespondingError):
                if not await self._is_gone(path):
                    raise

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`. Moves blocks; copies if the target is empty, or a source is in another folder.

        After a failed move the sources are unchanged, except for bytes after the given lengths; after a failed copy the
        target may have bytes after `target_length`, too.
        """
        check_concat(target, target_length, sources)
        self._check(target)
        async with self._turn(target):
            for name, length in ((target, target_length), *sources):
                if (found := (await self.info(name)).length) < length:
                    raise InvalidArgumentError(f"chunk {name}: cannot take {length} bytes of {found}")
            total = target_length + sum(length for _, length in sources)
            await self._cut(target, target_length)
            filled = [(name, length) for name, length in sources if length]
            if filled and target_length and self._can_move(target, [name for name, _ in filled]):
                for name, length in filled:
                    await self._cut(name, length)
                await self._move(target, total, [name for name, _ in filled])
                filled_names = {name for name, _ in filled}
            else:
                await self._copy(target, target_length, filled)
                filled_names = set()
            for name, _ in sources:
                if name not in filled_names:
                    await self.delete(name)
        return total

    async def _create(self, name: str, content: Buffer) -> None:
        self._check_length(name)
        async with self._turn(name):
            await demand_identity(self, self._known_identity, name)
            try:
                await self._create_file(self._path(name), content)
            except RemoteFileExistsError:
                raise ChunkExistsError(name) from None

    async def _create_file(self, path: str, content: Buffer) -> None:
        """Create a file; see the module for lost responses."""
        settings = self._settings
        delay = GrowingDelay(settings.retry_delay_s)
        problem: StorageUnreachableError | None = None
        for attempt in range(settings.retries_max + 1):
            if attempt:
                await delay.sleep()
            try:
                await self._create_once(path, content)
                return
            except RemoteFileExistsError:
                if problem is None:
                    raise
                raise problem from None  # Of an earlier attempt or another caller: unknown.
            except StorageUnreachableError as error:
                problem = error
        assert problem is not None
        raise problem

    async def _create_once(self, path: str, content: Buffer) -> None:
        try:
            await self.files.create(path, content)
        except RemoteFileNotClosedError as error:
            await self._close_synced(path, error)
        except RemoteFileExistsError as error:
            if not error.is_own:
                raise
            # Must be from an earlier request of this call: calls on a chunk are serialised.
            await self.files.delete(path)
            raise StorageUnreachableError(
                f"{self.files.place}: {path} was left open by an earlier creation attempt, and is deleted"
            ) from error

    async def _append(self, name: str, offset: int, content: Buffer) -> None:
        """Append; see the module for lost responses."""
        if not len(content):
            await self._compare_length(name, offset)
            return
        settings, path = self._settings, self._path(name)
        delay = GrowingDelay(settings.retry_delay_s)
        problem: StorageError | None = None
        for _ in range(settings.retries_max + 1):
            if problem is not None:
                _log.info("appending to %s is retried: %s", path, problem)
                await delay.sleep()
                try:
                    await self._recover(path)
                except NoSuchRemoteFileError:
                    raise NoSuchChunkError(name) from None
            try:
                await self.files.append(path, offset, content)
                return
            except NoSuchRemoteFileError:
                raise NoSuchChunkError(name) from None
            except RemoteFileLengthError as error:
                raise BadChunkOffsetError(name, expected=error.length_bytes, given=offset) from None
            except RemoteFileCopiesError as error:
                raise ChunkNotSettledError(name, str(error)) from error
            except RemoteFileNotClosedError as error:
                await self._close_synced(path, error)
                return
            except (RemoteFileLeasedError, StorageUnreachableError, StorageNotRespondingError) as error:
                problem = error
        assert problem is not None
        raise problem

    async def _compare_length(self, name: str, offset: int) -> None:
        length = (await self.info(name)).length
        if length != offset:
            raise BadChunkOffsetError(name, expected=length, given=offset)

    async def _close_synced(self, path: str, problem: RemoteFileNotClosedError) -> None:
        """Close a file whose bytes are already durable; a failure to do so is not an error."""
        try:
            await self._recover(path)
        except StorageError as error:
            _log.warning("%s: %s; it stays open until it must be closed: %s", path, problem, error)

    async def _recover(self, path: str) -> None:
        """Fence the writer of a file. Raises `StorageNotRespondingError` if it takes too long."""
        settings, loop = self._settings, asyncio.get_running_loop()
        deadline_s = loop.time() + settings.lease_timeout_s
        while not await self._again(lambda: self.files.recover_lease(path)):
            if loop.time() + settings.lease_poll_s > deadline_s:
                raise StorageNotRespondingError(
                    f"{self.files.place}: the lease of {path} was not recovered within {settings.lease_timeout_s:g} s; "
                    "it is retried at the next append: check that its DataNodes run"
                )
            await asyncio.sleep(settings.lease_poll_s)

    async def _cut(self, name: str, length: int) -> None:
        """Truncate a chunk to `length`."""
        path = self._path(name)
        # It may be open, and longer than reported, because a writer died.
        await self._recover(path)
        if (await self.info(name)).length > length and not await self.files.truncate(path, length):
            await self._truncated(path, length)

    async def _truncated(self, path: str, length: int) -> None:
        """Wait until a truncation within a block is complete and the file closed, by repeating the request.

        Recovering the lease meanwhile would start another recovery of the block, which may conflict with the next
        append.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        deadline_s = loop.time() + settings.lease_timeout_s
        while loop.time() < deadline_s:
            await asyncio.sleep(settings.lease_poll_s)
            try:
                if await self._again(lambda: self.files.truncate(path, length)):
                    return
            except RemoteFileLeasedError:
                pass  # Still in progress.
        await self._recover(path)

    def _can_move(self, target: str, sources: Sequence[str]) -> bool:
        """Return whether HDFS can move blocks of these. It takes paths separated by commas."""
        folder = target.rpartition("/")[0]
        return all(name.rpartition("/")[0] == folder and "," not in self._path(name) for name in sources)

    async def _move(self, target: str, total: int, sources: Sequence[str]) -> None:
        paths = [self._path(name) for name in sources]
        try:
            await self.files.concat(self._path(target), paths)
        except (StorageUnreachableError, StorageNotRespondingError):
            if not all([await self._is_gone(path) for path in paths]) or (await self.info(target)).length != total:
                raise

    async def _copy(self, target: str, offset: int, sources: Sequence[tuple[str, int]]) -> None:
        for name, length in sources:
            for start in range(0, length, self._settings.copy_buffer_bytes):
                count = min(self._settings.copy_buffer_bytes, length - start)
                piece = await self.read(name, start, count)
                if len(piece) != count:
                    raise ChunkError(name, f"{len(piece)} of {count} bytes were returned from offset {start}")
                await self._append(target, offset, piece)
                offset += count

    # -- reads and lookups --------------------------------------------------------------------------------------

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        self._check(name, offset, length)
        try:
            if length and (data := await self._again(lambda: self.files.read(self._path(name), offset, length))):
                return data
        except NoSuchRemoteFileError:
            raise NoSuchChunkError(name) from None
        found = (await self.info(name)).length
        if offset > found:
            raise InvalidArgumentError(f"chunk {name}: offset {offset} is beyond its length {found}")
        return b""

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`. For a chunk whose writer died: at least what was synced."""
        self._check(name)
        try:
            found = await self._again(lambda: self.files.stat(self._path(name)))
        except NoSuchRemoteFileError:
            raise NoSuchChunkError(name) from None
        if found.is_folder:
            raise NoSuchChunkError(name)
        return ChunkInfo(name, found.length_bytes)

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        try:
            await self.info(name)
        except NoSuchChunkError:
            return False
        return True

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        self._check_open()
        folder = prefix.rpartition("/")[0]
        if folder or prefix.startswith("/"):
            check_chunk_name(folder)
        found: list[ChunkInfo] = []
        pending = [folder]
        while pending:
            relative = pending.pop()
            for entry in await self._entries(relative):
                name = f"{relative}/{entry.name}" if relative else entry.name
                if entry.is_folder and (name.startswith(prefix) or prefix.startswith(f"{name}/")):
                    pending.append(name)
                elif not entry.is_folder and name.startswith(prefix):
                    found.append(ChunkInfo(name, entry.length_bytes))
        return sorted(found, key=lambda info: info.name)

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`. In the order of the names' parts."""
        self._check_open()
        behind = after.split("/") if after else []
        found: list[str] = []
        #: Stack of open folders, each with its remaining entries, last first.
        pending = [("", await self._entries_behind("", behind))]
        while pending and len(found) < limit:
            relative, entries = pending[-1]
            if not entries:
                pending.pop()
                continue
            entry = entries.pop()
            name = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_folder:
                pending.append((name, await self._entries_behind(name, behind)))
            elif name.split("/") > behind:
                found.append(name)
        return found

    async def space(self) -> DiskSpace | None:
        """See `ChunkStorage.space`. Always None."""
        return None

    async def close(self) -> None:
        """See `ChunkStorage.close`."""
        if not self._is_closed:
            self._is_closed = True
            await self.files.close()

    async def _entries(self, relative: str) -> Sequence[FileInfo]:
        path = self._path(relative) if relative else self.root
        found = await self._again(lambda: self.files.list(path))
        if not relative:
            found = [entry for entry in found if not entry.name.startswith(RESERVED_NAME_PREFIX)]
        return found

    async def _entries_behind(self, relative: str, behind: Sequence[str]) -> deque[FileInfo]:
        """Return entries of a folder that may sort after `behind`, last first."""
        entries = await self._entries(relative)
        parts = relative.split("/") if relative else []
        if len(parts) < len(behind) and parts == list(behind[: len(parts)]):
            entries = [entry for entry in entries if entry.name >= behind[len(parts)]]
        return deque(sorted(entries, key=lambda entry: entry.name, reverse=True))

    async def _is_gone(self, path: str) -> bool:
        """Return whether it is certain that the file does not exist."""
        try:
            await self._again(lambda: self.files.stat(path))
        except NoSuchRemoteFileError:
            return True
        except StorageError:
            pass
        return False

    async def _try_delete(self, path: str) -> None:
        try:
            await self.files.delete(path)
        except StorageError as error:
            _log.info("%s is unused but could not be deleted: %s", path, error)

    # -- helpers ------------------------------------------------------------------------------------------------

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make an idempotent call; repeat it if the connection breaks."""
        delay = GrowingDelay(self._settings.retry_delay_s)
        for _ in range(self._settings.retries_max):
            try:
                return await call()
            except StorageUnreachableError as error:
                _log.info("asked again: %s", error)
            await delay.sleep()
        return await call()

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(name, _Turn())
        turn.count += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.count -= 1
            if not turn.count:
                del self._turns[name]

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _check(self, name: str, offset: int = 0, length: int = 0) -> None:
        check_chunk_name(name)
        check_range(name, offset, length)
        self._check_open()

    def _check_length(self, name: str) -> None:
        length = max(len(part.encode()) for part in name.split("/"))
        if length > self.name_part_bytes_max:
            raise InvalidArgumentError(
                f"chunk {name}: a part of its name has {length} bytes, {self.place} takes {self.name_part_bytes_max}"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError(f"the chunk storage in {self.place} is closed")


def _in_one(data: Sequence[Buffer]) -> Buffer:
    """Return all bytes in one piece, copied only if necessary. A thread reads it while the loop runs."""
    return bytes(data[0]) if len(data) == 1 else b"".join(data)
