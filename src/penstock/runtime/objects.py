"""`ObjectStore`: whole objects by key in a remote service. The part of the determinism seam for object stores.

Production uses `penstock.runtime.obstore_objects`, whose requests run in threads of a library; the simulation uses a
bucket in memory that answers late, twice or never. Requests are retried only as the settings say: the caller decides
how to treat an unknown outcome.

An object is created whole or not at all. It carries a *tag*: a text by which its creator distinguishes it from an
equal object of another creator. Chunks are never changed. Small records are replaced on condition: `ObjectStore.put_if`
names the version that it replaces (`ObjectVersion`). `object_changes` settles the outcome when a reply is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.runtime.fixed_values import fixed

#: URL schemes of supported stores.
OBJECT_SCHEMES = ("s3", "gs", "az")
#: A directory of this machine in place of a bucket: see `directory_objects`.
DIRECTORY_SCHEME = "file"
#: Keys have 1 024 bytes at most, and the names of chunks need a part of that.
PREFIX_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store reports about one object.

    Attributes:
        key: the object's name.
        length_bytes: its length.
        tag: the tag given at its creation; None where the store keeps no tags, and in answers of `ObjectStore.list`.
    """

    key: str
    length_bytes: int
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """A version of an object, as the store names it. Opaque, except for `is_same`.

    On S3 it is a checksum of the content, so an object that gets its earlier content back gets its earlier version
    back. Contents that are replaced on condition need a part that is never repeated (a nonce, a counter).

    Attributes:
        e_tag: the entity tag; S3 and Azure compare it. None: the store has none.
        version: the generation on Google Cloud Storage, which compares it; the version id on S3. None: there is none.
    """

    e_tag: str | None
    version: str | None = None

    def is_same(self, other: ObjectVersion) -> bool:
        """Whether both are one version. A store may leave out one of the two parts in some of its answers."""
        if self.e_tag is not None and other.e_tag is not None:
            return self.e_tag == other.e_tag
        return self.version is not None and self.version == other.version


@dataclass(frozen=True, slots=True)
class VersionedObject:
    """An object's bytes, and the version that they are."""

    content: bytes
    version: ObjectVersion


@dataclass(frozen=True, slots=True)
class ObjectStoreSettings:
    """How an object store is reached, and the limits of its requests. Empty values come from the environment.

    Attributes:
        endpoint: URL of the service, for stores other than the cloud's own. Empty: ``AWS_ENDPOINT_URL``, else the
            cloud's. One that begins with ``http://`` is used unencrypted.
        region: of the bucket. Empty: ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        access_key_id, secret_access_key, session_token: for S3. Empty: ``AWS_ACCESS_KEY_ID``,
            ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, else the role of this machine or container.
        connect_timeout_s: time for a connection.
        request_timeout_s: time for one request, its answer included.
        call_timeout_s: time for a whole call, its retries and its queueing included.
        request_retries_max: retries of a request that was throttled or whose connection broke.
        retry_timeout_s: no retry starts later than this after the first attempt.
        retry_delay_s_first: pause before the first retry; it doubles.
        retry_delay_s_max: longest pause.
        reads_max: concurrent reads of objects; further ones wait.
        writes_max: the same, for creations and replacements.
        names_max: the same, for everything else.
    """

    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    call_timeout_s: float = 60.0
    request_retries_max: int = 2
    retry_timeout_s: float = fixed(20.0)
    retry_delay_s_first: float = fixed(0.1)
    retry_delay_s_max: float = fixed(2.0)
    reads_max: int = 64
    writes_max: int = 32
    names_max: int = 16

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise InvalidArgumentError("give both access_key_id and secret_access_key of object storage, or neither")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                f"the endpoint of object storage is {self.endpoint!r}: it is a URL, http://... or https://..."
            )
        if min(self.reads_max, self.writes_max, self.names_max) < 1:
            raise InvalidArgumentError("reads_max, writes_max and names_max of object storage are at least 1")


class ObjectStore(Protocol):
    """Objects of one bucket. Keys are relative paths without empty parts, ``.`` and ``..``.

    Each call may raise, besides the errors it names:

        StorageCredentialsError, StorageBucketMissingError, StorageClockError: refused, nothing happened.
        StorageThrottledError: refused; a later retry may succeed.
        StorageUnreachableError: no connection, or it broke; the request may have been executed.
        StorageNotRespondingError: no answer in time; the request may still be executed.
        StorageError: anything else; the request may have been executed.
    """

    @property
    def place(self) -> str:
        """The URL of the bucket, for messages."""

    @property
    def key_part_bytes_max(self) -> int:
        """The longest component of a key that the store accepts, in bytes of UTF-8."""

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        """Create an object, durably and atomically, unless it exists; of several callers one succeeds.

        Raises `ObjectExistsError` if it exists, even if an earlier attempt of the same call has created it. Some stores
        raise it for a while, or permanently, where there is no object (`ObjectExistsError` says when).
        """

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        """Replace an object that is in `version`, durably and atomically, and return its new version.

        Of several callers that name one version, one succeeds. The new object has no tag. Raises `ObjectChangedError`
        if the object is in another version, even if an earlier attempt of the same call has put it there, or was
        deleted; some stores raise it without effect while another change is in progress. `object_changes.change_object`
        resolves these. Raises `UnsupportedOperationError` if the store has no conditional replacement.
        """

    async def get_versioned(self, key: str) -> VersionedObject:
        """Return an object's bytes and their version. Raises `NoSuchObjectError`."""

    async def head(self, key: str) -> ObjectInfo:
        """Return the metadata of an object. Raises `NoSuchObjectError`."""

    async def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises `NoSuchObjectError`."""

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (above 0) from `offset`; fewer only at the end of the object.

        Raises `NoSuchObjectError`; `ObjectRangeError` when there is no byte at `offset`.
        """

    async def delete(self, key: str) -> None:
        """Delete an object; no error if there is none."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, ignoring missing ones. When it raises, some of them may be deleted and others not."""

    def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield the objects in and below `folder` with keys above `after`, in pages, in key order.

        `folder`: without a trailing slash; empty for all.
        """

    async def close(self) -> None:
        """Cancel calls in progress. Waits for nothing."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A place for objects, given as a URL: ``s3://bucket/prefix``, or ``file:///directory``.

    Attributes:
        scheme: one of `OBJECT_SCHEMES`, or `DIRECTORY_SCHEME`.
        bucket: the bucket (S3, GCS) or container (Azure); empty for a directory.
        prefix: all keys begin with it and a slash; may be empty, but for a directory, whose path it is.
    """

    scheme: str
    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> ObjectPlace:
        """Parse a URL. Raises `InvalidArgumentError`."""
        scheme, mark, rest = url.partition("://")
        if mark and scheme == DIRECTORY_SCHEME:
            return cls(scheme, "", _directory(url, rest))
        if not mark or scheme not in OBJECT_SCHEMES:
            examples = ", ".join(f"{each}://bucket/prefix" for each in OBJECT_SCHEMES)
            raise InvalidArgumentError(f"{url!r} is not a place in object storage: write {examples}")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.rstrip("/")
        if not bucket or "?" in url or "#" in url:
            raise InvalidArgumentError(f"{url!r} is not a place in object storage: write only a bucket and a prefix")
        if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
            raise InvalidArgumentError(
                f"{url!r} is not a place in object storage: a part of its prefix is empty, '.' or '..'"
            )
        if len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise InvalidArgumentError(
                f"{url!r} is not a place in object storage: its prefix is above {PREFIX_BYTES_MAX} bytes"
            )
        return cls(scheme, bucket, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def _directory(url: str, path: str) -> str:
    parts = path.rstrip("/").split("/")
    if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]) or "\0" in path:
        raise InvalidArgumentError(f"{url!r} is not a directory: write file:///path/to/directory, without '.' and '..'")
    return "/".join(parts[1:])


#: Opens the bucket of a place. Does no I/O: the first call does. Raises `InvalidArgumentError` for unusable settings,
#: and when the library for it is not installed.
OpenObjectStore = Callable[[ObjectPlace, ObjectStoreSettings], ObjectStore]
