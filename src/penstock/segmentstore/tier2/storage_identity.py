"""`StorageIdentity`: the content of the identity object of a cluster's long-term storage.

It is written once, before the first log of the cluster is opened. So a place without it is either new, and then there
is no log, or it is not the long-term storage: not mounted, emptied, or the wrong one. The bytes are in docs/formats.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from penstock.model.checksum import crc32c
from penstock.model.errors import StorageIdentityError, StorageUnavailableError
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage

#: Version of the naming and layout of chunks. A place of another version is not used.
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StorageIdentity:
    """The cluster that owns a long-term storage."""

    cluster_id: str

    def encode(self) -> bytes:
        """Return the bytes of the identity."""
        body = (
            "# Written by Penstock when this place was first used as long-term storage. Do not edit.\n"
            f"layout_version = {LAYOUT_VERSION}\n"
            f'cluster_id = "{self.cluster_id}"\n'
        ).encode()
        return body + b'crc32c = "%08x"\n' % crc32c(body, 0)

    @classmethod
    def decode(cls, data: bytes, place: str) -> StorageIdentity:
        """Decode the output of `encode`. Raises `StorageIdentityError` for anything else, `LaterVersionError`."""
        body, mark, checksum = data.rpartition(b"crc32c = ")
        if not mark or checksum.strip() != b'"%08x"' % crc32c(body, 0):
            raise StorageIdentityError(
                place, f"the checksum of its identity of {len(data)} bytes does not match: it was edited or damaged"
            )
        fields = tomllib.loads(body.decode())
        if fields["layout_version"] != LAYOUT_VERSION:
            raise version_error(f"{place} (penstock-storage.toml)", fields["layout_version"], (LAYOUT_VERSION,))
        return cls(str(fields["cluster_id"]))


async def demand_identity(storage: ChunkStorage, known: bytes | None, chunk: str) -> None:
    """Raise `StorageUnavailableError` unless `storage` has the identity `known` before `chunk` is created there.

    None: any identity is accepted. Costs a request, and the place may change right after it.
    """
    if known is not None and (found := await storage.read_identity()) != known:
        what = "is gone" if found is None else "is another one"
        raise StorageUnavailableError(f"chunk {chunk} was not created: the identity of {storage.place} {what}")
