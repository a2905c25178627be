"""`SharedDisk` and `MountedDisk`: a file system that several hosts have mounted, as from a file server.

Names and locks are on the server and the same for all hosts. Bytes that a host writes are in its own cache, invisible
to other hosts, until it syncs or closes the file (as in NFS, without its attribute cache). When a host dies, its locks
are released; its cache is lost, or is written to the server at that moment. Errors, shortages and stalls are those of
the calling host (`Host.disk.faults`, `Host.stalls`). Data on the server that was not synced there is lost only by
`SharedDisk.crash`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock.model.errors import StorageFullError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults
from penstock_simulation.simulated.disk_handles import SimulatedFile, SimulatedLock
from penstock_simulation.simulated.disk_nodes import FileNode
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.simulation import Simulation


class SharedDisk:
    """The file server's disk. `mounted` returns a host's view of it."""

    def __init__(self, simulation: Simulation, name: str, faults: DiskFaults) -> None:
        self._loop = simulation.loop
        self._hosts = simulation.hosts
        self._faults = faults
        self.disk: SimulatedDisk = SimulatedDisk(simulation.rng(f"{name} disk"), faults)
        self.disk.hook = self._on_call

    def mounted(self, host: Host) -> MountedDisk:
        """Return the view of a host's present process."""
        return MountedDisk(self.disk, host)

    def crash(self) -> None:
        """Make the server lose power. No host may be up: hosts would not be notified."""
        self.disk.faults = self._faults
        self.disk.crash()
        self.disk.hook = self._on_call

    def _on_call(self, call: str, path: str) -> None:
        self._hosts[self._loop.current.host_name].on_disk_call(call, path)


class MountedDisk:
    """`Disk` of one process on a `SharedDisk`."""

    def __init__(self, disk: SimulatedDisk, host: Host) -> None:
        self._disk = disk
        self._host = host
        self._rng = host.runtime.rng
        self._locks: dict[SimulatedLock, None] = {}
        #: Writes that the server does not have yet, oldest first, with a file to write them to.
        self._cached: dict[FileNode, tuple[SimulatedFile, list[tuple[int, bytes]]]] = {}
        host.process.on_death[self._host_died] = None

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> MountedFile:
        """See `Disk.open`."""
        file = self.wait_turn().open(path, create=create, exclusive=exclusive, writable=writable)
        return MountedFile(file, self)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self.wait_turn().make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        return self.wait_turn().list_directory(path)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self._disk.exists(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self.wait_turn().rename(source, target)

    def link(self, source: str, target: str) -> None:
        """See `Disk.link`."""
        self.wait_turn().link(source, target)

    def space(self, path: str) -> DiskSpace:
        """See `Disk.space`."""
        return self.wait_turn().space(path)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.wait_turn().remove(path)

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self.wait_turn().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self.wait_turn().sync_directory(path)

    def lock(self, path: str) -> SimulatedLock:
        """See `Disk.lock`. The server releases it when the host dies."""
        lock = self.wait_turn().lock(path)
        self._locks[lock] = None
        return lock

    def wait_turn(self) -> SimulatedDisk:
        """Return the disk, for one call with the faults of this host."""
        self._disk.faults = self._host.disk.faults
        return self._disk

    def cache(self, file: SimulatedFile, offset: int, data: bytes) -> None:
        """Keep a write in this host's cache."""
        self._cached.setdefault(file.node, (file, []))[1].append((offset, data))

    def cached(self, file: SimulatedFile) -> Sequence[tuple[int, bytes]]:
        """Return the writes to a file that the server does not have, oldest first."""
        return self._cached[file.node][1] if file.node in self._cached else ()

    def write_back(self, node: FileNode) -> None:
        """Send the cached writes of a file to the server. Raises the errors of its writes; the rest is lost."""
        file, writes = self._cached.pop(node, (None, ()))
        for offset, data in writes:
            assert file is not None
            self.wait_turn()
            file.write(offset, [data])

    def _host_died(self) -> None:
        for lock in self._locks:
            lock.release()
        for node in list(self._cached):
            writes = self._cached.pop(node)[1]
            for offset, data in writes if self._rng.random() < 0.5 else ():
                # Bypasses the disk's calls, because no code of the host runs any more.
                self._disk.late_write(node, offset, data)


class MountedFile:
    """`DiskFile` on a `SharedDisk`."""

    def __init__(self, file: SimulatedFile, mount: MountedDisk) -> None:
        self._file = file
        self._mount = mount

    @property
    def path(self) -> str:
        """See `DiskFile.path`."""
        return self._file.path

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write`. The server gets it with the next sync."""
        data = b"".join(buffers)
        self._file.check(offset, is_change=True)
        self._mount.cache(self._file, offset, data)
        return len(data)

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write_synced`."""
        count = self.write(offset, buffers)
        self.sync()
        return count

    def read(self, offset: int, length: int) -> bytes:
        """See `DiskFile.read`."""
        self._mount.wait_turn()
        stored = self._file.read(offset, length)
        writes = self._mount.cached(self._file)
        if not writes:
            return stored
        content = bytearray(stored)
        content.extend(bytes(max(min(offset + length, self.length()) - offset, 0) - len(content)))
        for start, data in writes:
            first, last = max(start, offset), min(start + len(data), offset + len(content))
            if first < last:
                content[first - offset : last - offset] = data[first - start : last - start]
        return bytes(content)

    def length(self) -> int:
        """See `DiskFile.length`."""
        ends = (offset + len(data) for offset, data in self._mount.cached(self._file))
        return max(self._file.length(), *ends, 0)

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        self._mount.write_back(self._file.node)
        self._mount.wait_turn()
        self._file.sync()

    def truncate(self, length: int) -> None:
        """See `DiskFile.truncate`."""
        self._mount.write_back(self._file.node)
        self._mount.wait_turn()
        self._file.truncate(length)

    def is_linked(self) -> bool:
        """See `DiskFile.is_linked`."""
        return self._file.is_linked()

    def share(self, offset: int) -> None:
        """See `DiskFile.share`. Writes of other hosts do not change this host's memory."""

    def close(self) -> None:
        """See `DiskFile.close`. Writes that the server refuses are silently lost: they were not synced."""
        with suppress(OSError, StorageFullError):
            self._mount.write_back(self._file.node)
        self._file.close()
