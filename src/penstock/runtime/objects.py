"""`ObjectStore`: whole objects by key in somebody else's service. The part of the determinism seam for object stores.

Production has `penstock.runtime.obstore_objects` behind it, whose requests run in threads of a library; the simulation
has a bucket in memory that answers late, twice or never. Requests are neither retried nor remembered above what the
settings say: what an unknown outcome means is decided by the caller.

An object is created whole or not at all, and never changed. Beside its bytes it carries a *tag*, some text by which the
one who created it tells it from an equal one of somebody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import Buffer

#: Kinds of places, as the schemes of their URLs.
OBJECT_SCHEMES = ("s3", "gs", "az")
#: Keys have 1 024 bytes at most, and the names of chunks take their part.
PREFIX_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object.

    Attributes:
        key: the object's name.
        length_bytes: how long it is.
        tag: what it was created with; None if it has none, as where a store keeps none, and in answers of
            `ObjectStore.list`.
    """

    key: str
    length_bytes: int
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectStoreSettings:
    """How an object store is reached, and how long is tried. What is empty comes from the environment.

    Attributes:
        endpoint: URL of the service, for stores other than the cloud's own. Empty: ``AWS_ENDPOINT_URL``, else the
            cloud's. One that begins with ``http://`` is used unencrypted.
        region: of the bucket. Empty: ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        access_key_id, secret_access_key, session_token: for S3. Empty: ``AWS_ACCESS_KEY_ID``,
            ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, else the role that this machine or container has.
        connect_timeout_s: time for a connection.
        request_timeout_s: time for one request, its answer included.
        call_timeout_s: time for a call in all, its retries and its wait for a turn included.
        request_retries_max: how often a request is sent again that was throttled or met a broken connection.
        retry_timeout_s: nothing is sent again so long after the first time.
        retry_delay_s_first: pause before the first retry; it doubles.
        retry_delay_s_max: longest pause.
        reads_max: reads of objects under way at once; further ones wait.
        writes_max: the same, for creations.
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
    retry_timeout_s: float = 20.0
    retry_delay_s_first: float = 0.1
    retry_delay_s_max: float = 2.0
    reads_max: int = 64
    writes_max: int = 32
    names_max: int = 16

    def __post_init__(self) -> None:
        """Check what no type says. Raises `InvalidArgumentError`."""
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise InvalidArgumentError("access_key_id and secret_access_key of object storage belong together")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                f"the endpoint of object storage is {self.endpoint!r}: it is a URL, http://... or https://..."
            )
        if min(self.reads_max, self.writes_max, self.names_max) < 1:
            raise InvalidArgumentError("reads_max, writes_max and names_max of object storage are at least 1")


class ObjectStore(Protocol):
    """Objects of one bucket. Keys are relative paths without empty parts, ``.`` and ``..``.

    Each call raises, besides what it says:

        StorageCredentialsError, StorageBucketMissingError, StorageClockError: refused, nothing happened.
        StorageThrottledError: refused for now.
        StorageUnreachableError: no connection, or it broke; what was asked for may have happened.
        StorageNotRespondingError: no answer in time; what was asked for may still happen.
        StorageError: anything else; what was asked for may have happened.
    """

    @property
    def place(self) -> str:
        """Where it is, for people: the URL of the bucket."""

    @property
    def key_part_bytes_max(self) -> int:
        """The longest part of a key between slashes that it takes, in bytes of UTF-8."""

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        """Create an object, durably and whole or not at all, unless there is one; of several callers one succeeds.

        Raises `ObjectExistsError` if there is one, be it that an earlier attempt of the same call has created it; some
        stores raise it for a while, or for ever, where there is none (`ObjectExistsError` says when).
        """

    async def head(self, key: str) -> ObjectInfo:
        """Say what is known of an object. Raises `NoSuchObjectError`."""

    async def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises `NoSuchObjectError`."""

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (above 0) from `offset` on, fewer only at the end of the object.

        Raises `NoSuchObjectError`; `ObjectRangeError` when there is no byte at `offset`.
        """

    async def delete(self, key: str) -> None:
        """Delete an object; it is no error if there is none."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, those that exist. When it raises, any of them may be gone, and others are left."""

    def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield the objects in and below `folder` whose keys are above `after`, in pages and in the order of the keys.

        `folder`: without a slash at its end; empty for all.
        """

    async def close(self) -> None:
        """Give up what is under way. Waits for nothing."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A place for objects, as people write it: ``s3://bucket/prefix``.

    Attributes:
        scheme: one of `OBJECT_SCHEMES`.
        bucket: the bucket (S3, GCS) or container (Azure).
        prefix: all keys begin with it and a slash; may be empty.
    """

    scheme: str
    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> ObjectPlace:
        """Read a URL. Raises `InvalidArgumentError`."""
        scheme, mark, rest = url.partition("://")
        if not mark or scheme not in OBJECT_SCHEMES:
            examples = ", ".join(f"{each}://bucket/prefix" for each in OBJECT_SCHEMES)
            raise InvalidArgumentError(f"{url!r} is no place for objects: write {examples}")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.rstrip("/")
        if not bucket or "?" in url or "#" in url:
            raise InvalidArgumentError(f"{url!r} is no place for objects: write a bucket, a prefix, and nothing else")
        if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
            raise InvalidArgumentError(f"{url!r} is no place for objects: a part of its prefix is empty, '.' or '..'")
        if len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise InvalidArgumentError(f"{url!r} is no place for objects: its prefix is above {PREFIX_BYTES_MAX} bytes")
        return cls(scheme, bucket, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


#: Opens the bucket of a place. Waits for nothing, and asks nobody: the first call does. Raises `InvalidArgumentError`
#: for settings that cannot work, and when the library for it is not installed.
OpenObjectStore = Callable[[ObjectPlace, ObjectStoreSettings], ObjectStore]
