"""`SimulatedFiles`: the twin of `penstock.runtime.hdfs_files`, a file system in memory that fails as HDFS does.

A `SimulatedFileSystem` outlives its clients, which are processes that may die: files that they had open stay leased. A
client's request may take long, be refused, or be lost on its way there or back; or the client gives it up and it
arrives later. A write may end half-way. A client sends no request twice, except a creation (`SENT_TWICE`). Each fault
is a named value (`FileFault`), see `remote_requests`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from penstock.model.errors import (
    NoSuchRemoteFileError,
    RemoteFileCopiesError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    RemoteFileLengthError,
    RemoteFileNotClosedError,
    StorageError,
    StorageSafeModeError,
    StorageUnreachableError,
)
from penstock.model.segments import Buffer
from penstock.runtime.files import FileInfo
from penstock_simulation.simulated.remote_requests import RemoteClient, RequestFaults, WayToService

T = TypeVar("T")


class FileFault(StrEnum):
    """Faults of a request.

    Attributes:
        SLOW: it takes longer.
        LOST_REQUEST: it does not arrive: `StorageUnreachableError`.
            LOST_REPLY: it has its effect, and the answer is lost: `StorageUnreachableError`. A write has then only
                opened its file, which stays open.
            LATE: it has its effect after the client has given it up: `StorageNotRespondingError`.
            SENT_TWICE: the creation of a file is done twice: the second one finds the file of the first.
            HALF_WRITTEN: a write ends half-way, with at most a part of it synced; the file stays open:
                `StorageUnreachableError`.
            NOT_CLOSED: everything is written and synced, and the file stays open: `RemoteFileNotClosedError`.
        COPIES_UNKNOWN: an append finds that copies of the file's end are not known: `RemoteFileCopiesError`.
    """

    SLOW = "slow"
    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    LATE = "late"
    SENT_TWICE = "sent twice"
    HALF_WRITTEN = "half written"
    NOT_CLOSED = "not closed"
    COPIES_UNKNOWN = "copies unknown"


#: Holder of the lease during a truncation.
_TRUNCATION = "truncation"


@dataclass(frozen=True, slots=True)
class FileFaults(RequestFaults[FileFault]):
    """See `RequestFaults`.

    Attributes:
        recovery_s: how long the recovery of a lease takes.
        is_safe_mode: whether changes are refused.
    """

    recovery_s: float = 1.0
    is_safe_mode: bool = False


@dataclass(slots=True)
class SimulatedFile:
    """Stored state of a file.

    Attributes:
            data: all bytes that arrived.
            synced_bytes: number of bytes that are durable.
            stated_bytes: length that `stat` returns while the file is open.
            holder: holder of the lease; None when the file is closed.
            recovered_s: when a recovery in progress will be done.
    """

    data: bytearray
    synced_bytes: int = 0
    stated_bytes: int = 0
    holder: object | None = None
    recovered_s: float | None = None

    def close(self) -> None:
        """Close the file with all bytes that arrived."""
        self.holder = self.recovered_s = None
        self.synced_bytes = self.stated_bytes = len(self.data)


class SimulatedFileSystem:
    """Stored files. `files`: by path. Folders are implied by the paths of files."""

    def __init__(self) -> None:
        self.files: dict[str, SimulatedFile] = {}

    def is_folder(self, path: str) -> bool:
        """Return whether there is any file under a path."""
        return any(each.startswith(f"{path}/") for each in self.files)

    def file(self, path: str) -> SimulatedFile:
        """Return a file. Raises `NoSuchRemoteFileError`."""
        found = self.files.get(path)
        if found is None:
            raise NoSuchRemoteFileError(path)
        return found


class SimulatedFiles(RemoteClient[FileFault]):
    """`FileStore` of one client of `system`."""

    faults: FileFaults

    def __init__(
        self,
        system: SimulatedFileSystem,
        rng: random.Random,
        faults: FileFaults | None = None,
        way: WayToService | None = None,
    ) -> None:
        super().__init__(FileFault, rng, faults or FileFaults(), way)
        self.system = system
        self._is_closed = False

    @property
    def place(self) -> str:
        """See `FileStore.place`."""
        return "hdfs://simulated"

    @property
    def name_part_bytes_max(self) -> int:
        """See `FileStore.name_part_bytes_max`."""
        return 255

    async def create(self, path: str, content: Buffer) -> None:
        """See `FileStore.create`."""
        data = bytes(content)

        def begin() -> SimulatedFile:
            self._demand_changes()
            there = self.system.files.get(path)
            if there is not None:
                raise RemoteFileExistsError(path, "simulated", is_own=there.holder is self)
            if self.system.is_folder(path) or any(path.startswith(f"{each}/") for each in self.system.files):
                raise StorageError(f"simulated: {path} lies above or below a file")
            made = self.system.files[path] = SimulatedFile(bytearray(), holder=self)
            return made

        def effect() -> None:
            if self._strikes("create", FileFault.SENT_TWICE):
                begin()
            made = begin()
            self._lose_reply("create")
            self._write("create", path, made, data)

        await self._request("create", effect)

    async def append(self, path: str, offset: int, content: Buffer) -> None:
        """See `FileStore.append`."""
        data = bytes(content)

        def effect() -> None:
            self._demand_changes()
            found = self.system.file(path)
            if self._strikes("append", FileFault.COPIES_UNKNOWN):
                raise RemoteFileCopiesError(path, known=1, wanted=2)
            if found.holder is not None:
                raise RemoteFileLeasedError(path, "simulated")
            if len(found.data) != offset:
                raise RemoteFileLengthError(path, length_bytes=len(found.data), offset=offset)
            found.holder = self
            self._lose_reply("append")
            self._write("append", path, found, data)

        await self._request("append", effect)

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """See `FileStore.read`."""
        return await self._request("read", lambda: self._synced(path)[offset : offset + length])

    async def stat(self, path: str) -> FileInfo:
        """See `FileStore.stat`."""

        def effect() -> FileInfo:
            name = path.rpartition("/")[2]
            if self.system.is_folder(path):
                return FileInfo(name, True, 0)
            return FileInfo(name, False, self._stated_bytes(self.system.file(path)))

        return await self._request("stat", effect)

    async def list(self, folder: str) -> Sequence[FileInfo]:
        """See `FileStore.list`."""

        def effect() -> Sequence[FileInfo]:
            found: dict[str, FileInfo] = {}
            for path, file in self.system.files.items():
                if path.startswith(f"{folder}/"):
                    name, below, _ = path[len(folder) + 1 :].partition("/")
                    found[name] = FileInfo(name, bool(below), 0 if below else self._stated_bytes(file))
            return sorted(found.values(), key=lambda info: info.name)

        return await self._request("list", effect)

    async def rename_new(self, source: str, target: str) -> None:
        """See `FileStore.rename_new`."""

        def effect() -> None:
            self._demand_changes()
            file = self.system.file(source)
            if target in self.system.files:
                raise RemoteFileExistsError(target, "simulated")
            self.system.files[target] = file
            del self.system.files[source]

        await self._request("rename_new", effect)

    async def delete(self, path: str) -> None:
        """See `FileStore.delete`."""

        def effect() -> None:
            self._demand_changes()
            self.system.file(path)
            del self.system.files[path]

        await self._request("delete", effect)

    async def recover_lease(self, path: str) -> bool:
        """See `FileStore.recover_lease`."""

        def effect() -> bool:
            self._demand_changes()
            file = self.system.file(path)
            now_s = asyncio.get_running_loop().time()
            if file.holder is not None and file.recovered_s is None:
                file.recovered_s = now_s + self.faults.recovery_s
            if file.recovered_s is not None and file.recovered_s > now_s:
                return False
            if file.holder is not None:
                # Bytes after the last sync are kept, or lost with their writer.
                kept_bytes = self._rng.randint(file.synced_bytes, len(file.data))
                del file.data[kept_bytes:]
                file.close()
            return True

        return await self._request("recover_lease", effect)

    async def truncate(self, path: str, length: int) -> bool:
        """See `FileStore.truncate`."""

        def effect() -> bool:
            self._demand_changes()
            file = self.system.file(path)
            now_s = asyncio.get_running_loop().time()
            if file.holder == _TRUNCATION and file.recovered_s is not None and file.recovered_s <= now_s:
                file.close()
            if file.holder is not None:
                raise RemoteFileLeasedError(path, "simulated")
            if len(file.data) <= length:
                return True
            del file.data[length:]
            file.close()
            # A truncation within a block takes a while, and the file is open meanwhile.
            file.holder, file.recovered_s = _TRUNCATION, now_s + self.faults.recovery_s
            return False

        return await self._request("truncate", effect)

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """See `FileStore.concat`."""

        def effect() -> None:
            self._demand_changes()
            files = [self.system.file(path) for path in (target, *sources)]
            if any(file.holder is not None or not file.data for file in files):
                raise StorageError(f"simulated: {target} and {sources} must be closed, and not empty")
            if len({path.rpartition("/")[0] for path in (target, *sources)}) > 1 or "," in "".join(sources):
                raise StorageError(f"simulated: {target} and {sources} are not in one folder, or have a comma")
            for path, file in zip(sources, files[1:], strict=True):
                files[0].data += file.data
                del self.system.files[path]
            files[0].close()

        await self._request("concat", effect)

    async def close(self) -> None:
        """See `FileStore.close`."""
        self._is_closed = True

    def _write(self, call: str, path: str, file: SimulatedFile, data: bytes) -> None:
        """Write to a file leased to this client."""
        if self.faults.is_full:
            file.close()
        self._demand_room()
        if self._strikes(call, FileFault.HALF_WRITTEN):
            arrived_bytes = self._rng.randint(0, len(data))
            file.synced_bytes = len(file.data)
            file.data += data[:arrived_bytes]
            raise StorageUnreachableError(f"simulated: the connection broke while {path} was written")
        file.stated_bytes = len(file.data)
        file.data += data
        file.synced_bytes = len(file.data)
        if self._strikes(call, FileFault.NOT_CLOSED):
            file.stated_bytes = file.synced_bytes
            raise RemoteFileNotClosedError(path, "simulated")
        file.close()

    def _lose_reply(self, call: str) -> None:
        """Lose the answer to the first of several requests: the file is open, and nothing is written."""
        if self._strikes(call, FileFault.LOST_REPLY):
            raise StorageUnreachableError(f"simulated: the reply to {call} was lost")

    def _synced(self, path: str) -> bytes:
        file = self.system.file(path)
        return bytes(file.data[: file.synced_bytes])

    def _stated_bytes(self, file: SimulatedFile) -> int:
        return len(file.data) if file.holder is None else file.stated_bytes

    def _demand_changes(self) -> None:
        if self.faults.is_safe_mode:
            raise StorageSafeModeError("simulated: in safe mode")

    async def _request(self, call: str, effect: Callable[[], T]) -> T:
        if self._is_closed:
            raise StorageError("simulated: the file system is closed")
        half_s = await self._travel(call, effect)
        self._give_up(call, effect)
        result = effect()
        await asyncio.sleep(half_s)
        if call not in ("create", "append"):
            self._lose_reply(call)
        return result
