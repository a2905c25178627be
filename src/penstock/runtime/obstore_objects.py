"""`ObstoreObjects`: `ObjectStore` by obstore, for S3, Google Cloud Storage and Azure, and for its test stores.

obstore (Rust's object_store) runs requests in its own threads and answers through the event loop. Its errors describe
the cause only as text, so `storage_error` parses that: status codes and the codes of S3's error documents.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectRangeError,
    StorageBucketMissingError,
    StorageClockError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageThrottledError,
    StorageUnreachableError,
    UnsupportedOperationError,
)
from penstock.model.segments import Buffer
from penstock.runtime.extras import missing_extra
from penstock.runtime.objects import ObjectInfo, ObjectPlace, ObjectStoreSettings, ObjectVersion, VersionedObject

if TYPE_CHECKING:
    from obstore import Attributes, ListStream, ObjectMeta, PutResult, UpdateVersion
    from obstore.store import AzureStore, ClientConfig, GCSStore, LocalStore, MemoryStore, RetryConfig, S3Store

    AnyStore = S3Store | GCSStore | AzureStore | LocalStore | MemoryStore

T = TypeVar("T")

#: The key of the tag in an object's user-defined metadata. Azure accepts only identifiers.
_TAG = "penstocktag"
_FILE_NAME_BYTES_MAX = 255
#: Length of the suffix of obstore's temporary files: ``#`` and a number.
_DRAFT_SUFFIX_BYTES = 4
#: Objects in one page of a list; the maximum of S3.
_PAGE_LENGTH = 1000

#: The settings with credentials, by scheme.
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")

_CREDENTIALS_CODES = frozenset((
    "AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidToken", "SignatureDoesNotMatch", "XAdminUserNotFound",
))  # fmt: skip
_CLOCK_CODES = frozenset(("RequestTimeTooSkewed", "RequestExpired"))
_BUCKET_CODES = frozenset(("NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "PermanentRedirect",
                           "AuthorizationHeaderMalformed"))  # fmt: skip
_THROTTLE_CODES = frozenset(("SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "Throttling"))
_FULL_CODES = frozenset(("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "EntityTooLargeForQuota"))
#: Addresses from which a library fetches the machine's role when it has no credentials.
_ROLE_MARKS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "token request")


def open_object_store(place: ObjectPlace, settings: ObjectStoreSettings) -> ObstoreObjects:
    """Return the bucket of `place`. See `penstock.runtime.objects.OpenObjectStore`."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise InvalidArgumentError(missing_extra(str(place), "s3", error)) from error
    endpoint = settings.endpoint or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=settings.connect_timeout_s),
        "timeout": timedelta(seconds=settings.request_timeout_s),
    }
    if (endpoint if place.scheme == "s3" else settings.endpoint).startswith("http://"):
        client["allow_http"] = True
    retry: RetryConfig = {
        "max_retries": settings.request_retries_max,
        "retry_timeout": timedelta(seconds=settings.retry_timeout_s),
        "backoff": {
            "init_backoff": timedelta(seconds=settings.retry_delay_s_first),
            "max_backoff": timedelta(seconds=settings.retry_delay_s_max),
            "base": 2,
        },
    }
    try:
        store: AnyStore
        match place.scheme:
            case "s3":
                given = {
                    "endpoint": endpoint,
                    "region": settings.region,
                    "access_key_id": settings.access_key_id,
                    "secret_access_key": settings.secret_access_key,
                    "session_token": settings.session_token,
                }
                store = S3Store(
                    place.bucket,
                    config={name: value for name, value in given.items() if value},  # type: ignore[arg-type]  # A TypedDict of these.
                    client_options=client,
                    retry_config=retry,
                )
            case "gs":
                store = GCSStore(place.bucket, client_options=client, retry_config=retry)
            case _:
                store = (
                    AzureStore(place.bucket, endpoint=settings.endpoint, client_options=client, retry_config=retry)
                    if settings.endpoint
                    else AzureStore(place.bucket, client_options=client, retry_config=retry)
                )
    except (BaseError, ValueError) as error:
        raise InvalidArgumentError(
            f"{place} cannot be used: {_first_line(error)}; its credentials come from {_CREDENTIALS[place.scheme]}"
        ) from error
    return ObstoreObjects(store, str(ObjectPlace(place.scheme, place.bucket)), settings)


class ObstoreObjects:
    """See the module. `store` is any of obstore's. Its memory and local stores are for tests: neither is durable.

    A local directory keeps no tags, and lists in no order.
    """

    def __init__(self, store: AnyStore, place: str, settings: ObjectStoreSettings | None = None) -> None:
        from obstore.store import LocalStore

        self._store = store
        self._place = place
        self._settings = settings or ObjectStoreSettings()
        self._is_directory = isinstance(store, LocalStore)
        self._reads = asyncio.Semaphore(self._settings.reads_max)
        self._writes = asyncio.Semaphore(self._settings.writes_max)
        self._names = asyncio.Semaphore(self._settings.names_max)

    @property
    def place(self) -> str:
        """See `ObjectStore.place`."""
        return self._place

    @property
    def key_part_bytes_max(self) -> int:
        """See `ObjectStore.key_part_bytes_max`. Gateways to file systems have their own limit."""
        return _FILE_NAME_BYTES_MAX - (_DRAFT_SUFFIX_BYTES if self._is_directory else 0)

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        """See `ObjectStore.put_new`."""
        attributes: Attributes | None = None if self._is_directory else {_TAG: tag}

        async def put() -> None:
            await self._store.put_async(key, content, mode="create", use_multipart=False, attributes=attributes)

        await self._call(self._writes, key, put)

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        """See `ObjectStore.put_if`. A directory has no conditional replacement."""
        if self._is_directory:
            raise UnsupportedOperationError(f"{self._place} is a directory: it cannot replace an object on condition")
        # The library refuses None for an absent part.
        named: UpdateVersion = {}
        if version.e_tag is not None:
            named["e_tag"] = version.e_tag
        if version.version is not None:
            named["version"] = version.version

        async def put() -> ObjectVersion:
            return self._version(key, await self._store.put_async(key, content, mode=named, use_multipart=False))

        try:
            return await self._call(self._writes, key, put)
        except ObjectExistsError as error:
            raise ObjectChangedError(key, _first_line(error.__cause__ or error)) from error
        except NoSuchObjectError as error:
            raise ObjectChangedError(key, "it was deleted") from error

    async def get_versioned(self, key: str) -> VersionedObject:
        """See `ObjectStore.get_versioned`."""

        async def get() -> VersionedObject:
            found = await self._store.get_async(key)
            return VersionedObject(bytes(await found.bytes_async()), self._version(key, found.meta))

        return await self._call(self._reads, key, get)

    def _version(self, key: str, answer: PutResult | ObjectMeta) -> ObjectVersion:
        version = ObjectVersion(answer["e_tag"], answer["version"])
        if version.e_tag is None and version.version is None:
            raise StorageError(
                f"{self._place} reports no version of {key}: it cannot replace objects on condition, or a proxy "
                "removes the header ETag"
            )
        return version

    async def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        found = await self._call(self._names, key, lambda: self._store.get_async(key, options={"head": True}))
        return ObjectInfo(key, found.meta["size"], found.attributes.get(_TAG))

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""

        async def get() -> bytes:
            found = await self._store.get_async(key)
            return bytes(await found.bytes_async())

        return await self._call(self._reads, key, get)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""

        async def get() -> bytes:
            # One request whose answer is one piece: `get_async` and `bytes_async` cost a seventh more.
            return bytes(await self._store.get_range_async(key, start=offset, length=length))

        data = await self._call(self._reads, key, get)
        if len(data) < length:
            expected = min(length, (await self.head(key)).length_bytes - offset)
            if len(data) != expected:
                raise StorageError(
                    f"{self._place}: {len(data)} of {expected} bytes of {key} were returned from offset {offset}"
                )
        return data

    async def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            await self._call(self._names, key, lambda: self._store.delete_async(key))
        except NoSuchObjectError:
            pass  # Most stores do not raise for a missing object; a directory does.

    async def delete_many(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete_many`. The library batches keys as far as the service allows."""
        if keys:
            await self._call(self._names, keys[0], lambda: self._store.delete_async(list(keys)))

    async def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See `ObjectStore.list`."""
        stream = self._store.list(folder or None, offset=after or None, chunk_size=_PAGE_LENGTH)
        everything: list[ObjectInfo] = []
        while True:
            try:
                page = await self._call(self._names, folder, lambda: _next_page(stream))
            except NoSuchObjectError:
                break  # A missing directory.
            if page is None:
                break
            infos = [ObjectInfo(each["path"], each["size"]) for each in page]
            if self._is_directory:
                everything += infos
            else:
                yield infos
        if everything:
            everything.sort(key=lambda info: info.key.encode())
            yield everything

    async def close(self) -> None:
        """See `ObjectStore.close`. Connections close with the last call."""

    async def _call(self, turns: asyncio.Semaphore, key: str, request: Callable[[], Awaitable[T]]) -> T:
        from obstore.exceptions import BaseError

        settings = self._settings
        try:
            async with asyncio.timeout(settings.call_timeout_s or None) as limit, turns:
                return await request()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StorageNotRespondingError(
                f"{self._place} did not answer about {key} within {settings.call_timeout_s:g} s; the operation may "
                "still take effect"
            ) from error
        except (BaseError, OSError, ValueError) as error:
            raise storage_error(error, self._place, key) from error


async def _next_page(stream: ListStream[Sequence[ObjectMeta]]) -> Sequence[ObjectMeta] | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


def storage_error(error: Exception, place: str, key: str) -> StorageError:
    """Return the error of `ObjectStore` for an error of obstore about `key`."""
    text = str(error)
    line = _first_line(error)
    status_found, code_found = _STATUS.search(text), _CODE.search(text)
    status = int(status_found[1]) if status_found else 0
    code = code_found[1] if code_found else ""
    kind = type(error).__name__
    if any(mark in text for mark in _ROLE_MARKS):
        variables = _CREDENTIALS.get(place.partition("://")[0], "them")
        return StorageCredentialsError(
            f"no credentials for {place}: set {variables}, or give this machine a role. Attempts: {line}"
        )
    if code in _CLOCK_CODES or "date header too old" in text:
        return StorageClockError(
            f"{place} refuses requests because the clocks differ too much: set this machine's clock (chronyc "
            f"tracking, timedatectl). Answer: {line}"
        )
    if code in _BUCKET_CODES or "BareRedirect" in text:
        return StorageBucketMissingError(
            f"{place} is not there ({code or 'it is elsewhere'}): create the bucket, or correct its name, the "
            f"endpoint or the region. Answer: {line}"
        )
    if code in _CREDENTIALS_CODES or status in (401, 403) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return StorageCredentialsError(
            f"{place} refuses these credentials ({code or status or kind}): check the access key, its secret and "
            f"their permissions (read, write, delete, list). Answer: {line}"
        )
    if kind == "AlreadyExistsError" or kind == "PreconditionError":
        return ObjectExistsError(key, code or line)
    if isinstance(error, FileNotFoundError) or (not status and "Not a directory (os error" in text):
        return NoSuchObjectError(key)
    if status == 416 or "Range {" in text or "InvalidRange" in text:
        return ObjectRangeError(key, line)
    if code in _FULL_CODES or status == 507 or "No space left" in text or "StorageFull" in text:
        return StorageFullError(f"no space is left in {place}: {line}")
    if code in _THROTTLE_CODES or status in (429, 503):
        return StorageThrottledError(f"{place} limits the request rate ({code or status}): {line}")
    if "kind: Timeout" in text:
        return StorageNotRespondingError(f"{place} did not answer in time; the operation may still take effect: {line}")
    if "kind: Connect" in text:
        return StorageUnreachableError(
            f"{place} cannot be reached: check the endpoint, and that the service runs. Attempts: {line}"
        )
    if "HttpError" in text:
        return StorageUnreachableError(f"the connection to {place} broke, with an unknown outcome: {line}")
    return StorageError(f"{place} could not carry out the operation on {key}: {line}")


def _first_line(error: BaseException) -> str:
    """Return obstore's message without its Rust source, and without error documents except their code."""
    text = str(error).split("\n\nDebug source", 1)[0]
    said = text.split("<?xml", 1)[0].strip().rstrip(":")
    found = _CODE.search(text)
    return f"{said} ({found[1]})" if found else said
