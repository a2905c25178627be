"""`SimulatedObjects`: the twin of `penstock.runtime.obstore_objects`, an in-memory bucket with the faults of services.

A `SimulatedBucket` outlives its clients, which are processes that may die. A client's request may take long, be
refused, or be lost on its way there or back; or the client gives it up and it arrives later. As the library does, a
client retries idempotent requests; it sends a creation or a replacement once, or twice (`SENT_TWICE`). Objects are
stored atomically. As on S3, the version of an object is a checksum of its content.
Each fault is a named value (`ObjectFault`), see `remote_requests`.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar

from penstock.model.errors import (
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectRangeError,
    StorageFullError,
    StorageNotRespondingError,
    StorageThrottledError,
    StorageUnreachableError,
)
from penstock.model.segments import Buffer
from penstock.runtime.objects import ObjectInfo, ObjectVersion, VersionedObject
from penstock_simulation.simulated.remote_requests import RemoteClient, RequestFaults, WayToService

T = TypeVar("T")

_PAGE_LENGTH = 10
#: Probability that a request that hangs has its effect.
_HANGS_EXECUTED = 0.7
#: How often an idempotent request is retried.
_RETRIES_MAX = 2
#: Conditional requests, which are not.
_SENT_ONCE = ("put_new", "put_if")


class ObjectFault(StrEnum):
    """Faults of a request.

    Attributes:
        SLOW: it takes longer.
        THROTTLE: it is refused without effect: `StorageThrottledError`.
        LOST_REQUEST: it does not arrive: `StorageUnreachableError`.
        LOST_REPLY: it has its effect, and the answer is lost: `StorageUnreachableError`.
            SENT_TWICE: it has its effect, the answer is lost, and a library retries it: the answer is the second one's.
            LATE: it has its effect after the client has given it up: `StorageNotRespondingError`.
            CONFLICT: a creation or a replacement is refused without effect, as if it had raced with another:
                `ObjectExistsError`, `ObjectChangedError`.
            STALE_LIST: a list returns the state of some time ago.
            LATE_COPY: it has its effect and is answered, and a second copy of it arrives later.
            HANG: no answer comes for `ObjectFaults.hang_s`: `StorageNotRespondingError`. It may have its effect then.
            STALL: the client of a replacement is suspended for up to `ObjectFaults.stall_s_max` before it is sent.
    """

    SLOW = "slow"
    THROTTLE = "throttle"
    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    SENT_TWICE = "sent twice"
    LATE = "late"
    CONFLICT = "conflict"
    STALE_LIST = "stale list"
    LATE_COPY = "late copy"
    HANG = "hang"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class ObjectFaults(RequestFaults[ObjectFault]):
    """See `RequestFaults`.

    Attributes:
            staleness_s_max: greatest age of the state that a stale list returns.
            hang_s: how long a client waits for a request that hangs.
            stall_s_max: the longest stall before a replacement.
            is_atomic: whether a creation or a replacement checks and writes in one step. Services without that are
                unsuitable; tests of races must fail on them.
    """

    staleness_s_max: float = 5.0
    hang_s: float = 30.0
    stall_s_max: float = 10.0
    is_atomic: bool = True


class SimulatedBucket:
    """Stored objects.

    Attributes:
        contents: by key, bytes and tag.
        quota_bytes: bytes of all objects together beyond which creations and replacements are refused.
        deleted: keys of objects that were deleted; some may exist again.
    """

    def __init__(self) -> None:
        self.deleted: set[str] = set()
        self.contents: dict[str, tuple[bytes, str]] = {}
        self.quota_bytes: int | None = None
        #: Changes, oldest first: (time, key, length before or None).
        self.history: deque[tuple[float, str, int | None]] = deque(maxlen=10_000)

    def create(self, key: str, content: bytes, tag: str) -> None:
        """Create an object. Raises `ObjectExistsError`."""
        if key in self.contents:
            raise ObjectExistsError(key, "simulated")
        self.replace(key, content, tag)

    def replace(self, key: str, content: bytes, tag: str) -> None:
        """Put an object, replacing any earlier one. Raises `StorageFullError`."""
        if self.quota_bytes is not None:
            used = sum(len(each) for name, (each, _) in self.contents.items() if name != key)
            if used + len(content) > self.quota_bytes:
                raise StorageFullError(f"simulated: {used} of {self.quota_bytes} bytes are used")
        self._note(key)
        self.contents[key] = content, tag

    def replace_if(self, key: str, content: bytes, version: ObjectVersion) -> ObjectVersion:
        """Replace an object that is in `version`. Raises `ObjectChangedError`."""
        self.demand_version(key, version)
        self.replace(key, content, "")
        return version_of(content)

    def demand_version(self, key: str, version: ObjectVersion) -> None:
        """Raise `ObjectChangedError` unless the object is in `version`."""
        found = self.contents.get(key)
        if found is None or version_of(found[0]) != version:
            raise ObjectChangedError(key, "simulated")

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        self._note(key)
        if self.contents.pop(key, None) is not None:
            self.deleted.add(key)

    def listed(self, as_of_s: float) -> dict[str, int]:
        """Return the lengths of all objects, by key, as they were at some time."""
        lengths: dict[str, int] = {key: len(content) for key, (content, _) in self.contents.items()}
        for time_s, key, before in reversed(self.history):
            if time_s <= as_of_s:
                break
            if before is None:
                lengths.pop(key, None)
            else:
                lengths[key] = before
        return lengths

    def _note(self, key: str) -> None:
        before = self.contents.get(key)
        self.history.append((asyncio.get_running_loop().time(), key, None if before is None else len(before[0])))


def version_of(content: bytes) -> ObjectVersion:
    """Return the version of an object with this content."""
    return ObjectVersion(hashlib.md5(content, usedforsecurity=False).hexdigest())


class SimulatedObjects(RemoteClient[ObjectFault]):
    """`ObjectStore` of one client of `bucket`."""

    faults: ObjectFaults

    def __init__(
        self,
        bucket: SimulatedBucket,
        rng: random.Random,
        faults: ObjectFaults | None = None,
        way: WayToService | None = None,
    ) -> None:
        super().__init__(ObjectFault, rng, faults or ObjectFaults(), way)
        self.bucket = bucket

    @property
    def place(self) -> str:
        """See `ObjectStore.place`."""
        return "s3://simulated"

    @property
    def key_part_bytes_max(self) -> int:
        """See `ObjectStore.key_part_bytes_max`."""
        return 255

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        """See `ObjectStore.put_new`."""
        data = bytes(content)
        if self._strikes("put_new", ObjectFault.CONFLICT):
            raise ObjectExistsError(key, "simulated: another creation is under way")

        def create() -> None:
            self._demand_room()
            self.bucket.create(key, data, tag)

        if self.faults.is_atomic:
            await self._request("put_new", create)
            return

        def check() -> None:
            if key in self.bucket.contents:
                raise ObjectExistsError(key, "simulated")

        await self._request("put_new", check)
        await self._request("put_new", lambda: self.bucket.replace(key, data, tag))

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        """See `ObjectStore.put_if`."""
        data = bytes(content)
        if self._strikes("put_if", ObjectFault.STALL):
            await asyncio.sleep(self._rng.uniform(0, self.faults.stall_s_max))
        if self._strikes("put_if", ObjectFault.CONFLICT):
            raise ObjectChangedError(key, "simulated: another change is in progress")

        def replace() -> ObjectVersion:
            self._demand_room()
            return self.bucket.replace_if(key, data, version)

        if self.faults.is_atomic:
            return await self._request("put_if", replace)
        await self._request("put_if", lambda: self.bucket.demand_version(key, version))
        await self._request("put_if", lambda: self.bucket.replace(key, data, ""))
        return version_of(data)

    async def get_versioned(self, key: str) -> VersionedObject:
        """See `ObjectStore.get_versioned`."""
        content, _ = await self._request("get", lambda: self._object(key))
        return VersionedObject(content, version_of(content))

    async def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        content, tag = await self._request("head", lambda: self._object(key))
        return ObjectInfo(key, len(content), tag)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return (await self._request("get", lambda: self._object(key)))[0]

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        content, _ = await self._request("get_range", lambda: self._object(key))
        if offset >= len(content):
            raise ObjectRangeError(key, f"simulated: it has {len(content)} bytes, none at {offset}")
        return content[offset : offset + length]

    async def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        await self._request("delete", lambda: self.bucket.delete(key))

    async def delete_many(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete_many`. Half of the objects may be deleted when it fails."""
        for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
            await self._request("delete_many", partial(self._delete_all, part))

    def _delete_all(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.bucket.delete(key)

    async def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See `ObjectStore.list`."""
        start = f"{folder}/" if folder else ""
        while True:
            past_s = (
                self._rng.uniform(0, self.faults.staleness_s_max)
                if self._strikes("list", ObjectFault.STALE_LIST)
                else 0.0
            )
            as_of_s = asyncio.get_running_loop().time() - past_s
            lengths = await self._request("list", partial(self.bucket.listed, as_of_s))
            keys = sorted((key for key in lengths if key.startswith(start) and key > after), key=str.encode)
            page = [ObjectInfo(key, lengths[key]) for key in keys[:_PAGE_LENGTH]]
            if not page:
                return
            yield page
            after = page[-1].key

    async def close(self) -> None:
        """See `ObjectStore.close`."""

    def _object(self, key: str) -> tuple[bytes, str]:
        found = self.bucket.contents.get(key)
        if found is None:
            raise NoSuchObjectError(key)
        return found

    async def _request(self, call: str, effect: Callable[[], T]) -> T:
        for _ in range(0 if call in _SENT_ONCE else _RETRIES_MAX):
            try:
                return await self._attempt(call, effect)
            except (StorageUnreachableError, StorageThrottledError, StorageNotRespondingError):
                await asyncio.sleep(self.faults.latency_s_max)
        return await self._attempt(call, effect)

    async def _attempt(self, call: str, effect: Callable[[], T]) -> T:
        half_s = await self._travel(call, effect)
        if self._strikes(call, ObjectFault.THROTTLE):
            raise StorageThrottledError(f"simulated: too many requests, {call} was refused")
        self._give_up(call, effect)
        if self._strikes(call, ObjectFault.HANG):
            if self._rng.random() < _HANGS_EXECUTED:
                self._have_late(self._rng.uniform(0, self.faults.hang_s + self.faults.late_s_max), effect)
            await asyncio.sleep(self.faults.hang_s)
            raise StorageNotRespondingError(f"simulated: {call} was not answered within {self.faults.hang_s:g} s")
        result = effect()
        if self._strikes(call, ObjectFault.LATE_COPY):
            self._have_late(self._rng.uniform(0, self.faults.late_s_max), effect)
        if self._strikes(call, ObjectFault.SENT_TWICE):
            result = effect()
        await asyncio.sleep(half_s)
        if self._strikes(call, ObjectFault.LOST_REPLY):
            raise StorageUnreachableError(f"simulated: the reply to {call} was lost")
        return result
