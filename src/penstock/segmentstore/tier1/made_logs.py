"""`MadeLogs`: a durable record, outside of tier 1, of the containers whose logs were created.

Tier 1 may be a separate mount. Without this record a missing log cannot be distinguished from one that never existed,
and an empty log would replace it. There is one small file per container, so that several processes can add theirs
without a lock. Format: docs/formats.md. Failure cases: docs/log-identity.md.
"""

from __future__ import annotations

import tomllib

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LogIdentityError
from penstock.runtime.disk import Disk
from penstock.segmentstore.later_format import version_error

FORMAT_VERSION = 1
_RECORD_LENGTH_MAX = 64 * 1024
_DRAFT_SUFFIX = ".new"


class MadeLogs:
    """The records in `directory`. Every method blocks; run them in the log's own threads."""

    def __init__(self, disk: Disk, directory: str, cluster_id: str) -> None:
        self._disk = disk
        self._directory = directory
        self._cluster_id = cluster_id

    def path(self, container_id: int) -> str:
        """Return the file that holds the record of a container."""
        return f"{self._directory}/{container_id}"

    def container_ids(self) -> list[int]:
        """Return the containers whose logs were created, ascending."""
        if not self._disk.exists(self._directory):
            return []
        names = self._disk.list_directory(self._directory)
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def contains(self, container_id: int) -> bool:
        """Return whether the container's log was created.

        Raises `LogIdentityError` if the record belongs to another cluster, `CorruptionError`, `LaterVersionError`.
        """
        path = self.path(container_id)
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return False
        try:
            data = file.read(0, _RECORD_LENGTH_MAX)
        finally:
            file.close()
        self._check(data, path, container_id)
        return True

    def add(self, container_id: int) -> None:
        """Record durably that the container's log was created. Idempotent."""
        self._disk.make_directory(self._directory)
        path = self.path(container_id)
        draft = path + _DRAFT_SUFFIX
        file = self._disk.open(draft, create=True)
        try:
            file.truncate(0)
            file.write(0, [self._encode(container_id)])
            file.sync()
        finally:
            file.close()
        self._disk.rename(draft, path)
        self._disk.sync_directory(self._directory)

    def _encode(self, container_id: int) -> bytes:
        body = (
            "# Written by Penstock when it created the log of this container. Do not edit, do not remove.\n"
            f"format_version = {FORMAT_VERSION}\n"
            f'cluster_id = "{self._cluster_id}"\n'
            f"container_id = {container_id}\n"
        ).encode()
        return body + b'crc32c = "%08x"\n' % crc32c(body, 0)

    def _check(self, data: bytes, path: str, container_id: int) -> None:
        body, mark, checksum = data.rpartition(b"crc32c = ")
        if not mark or checksum.strip() != b'"%08x"' % crc32c(body, 0):
            raise CorruptionError(path, len(body), "the checksum does not match: it was edited or damaged")
        fields = tomllib.loads(body.decode())
        if fields["format_version"] != FORMAT_VERSION:
            raise version_error(path, fields["format_version"], (FORMAT_VERSION,))
        if fields["cluster_id"] != self._cluster_id:
            raise LogIdentityError(path, found=fields["cluster_id"], expected=self._cluster_id)
        if fields["container_id"] != container_id:
            raise CorruptionError(path, 0, f"it is the record of container {fields['container_id']}")
