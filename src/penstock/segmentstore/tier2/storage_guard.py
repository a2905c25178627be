"""`GuardedChunkStorage`: long-term storage that is used only while its identity is confirmed.

The identity is checked before a log is claimed, periodically, and whenever a chunk is not found. While storage is
missing, belongs to another cluster, does not respond, or lacks many chunks at once, every call fails at once with
`StorageUnavailableError` and nothing is touched: no flush, no read, no deletion; the log keeps its contents. Checks
continue, and operation resumes automatically when storage is back.

To distinguish a missing place from a new one, the identity is written before the first log of the cluster is opened.
Once there is any log, a place without identity is not the long-term storage.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.model.errors import (
    LaterVersionError,
    NoSuchChunkError,
    StorageError,
    StorageIdentityError,
    StorageRefusedError,
    StorageUnavailableError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.settings import StorageGuardSettings
from penstock.segmentstore.tier2.chunk_deletion import DeletesMany, delete_each
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo, ChunkStorage
from penstock.segmentstore.tier2.rolling_header import segment_of_header
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: Chunks considered lost, which are not counted again; if there are more, the oldest are forgotten.
_LOST_CHUNKS_MAX = 100_000


class GuardedChunkStorage(WrappedChunkStorage):
    """See the module. Call `claim` first; `start` checks periodically from then on, until `close`.

    `may_be_older`: a new cluster may begin on top of data of an older Pravega; see docs/rolling-storage.md.
    """

    def __init__(
        self, inner: ChunkStorage, *, cluster_id: str, settings: StorageGuardSettings, may_be_older: bool = False
    ) -> None:
        super().__init__(inner)
        self._may_be_older = may_be_older
        self._identity = StorageIdentity(cluster_id)
        #: The identity as of the last successful check.
        self.identity: bytes | None = None
        self._settings = settings
        self._problem: StorageUnavailableError | None = StorageUnavailableError(
            f"long-term storage in {inner.place} was not checked yet"
        )
        self._problem_since_s: float | None = None
        self._is_claimed = False
        #: Whether the last check got no response, so that the place is unknown.
        self._is_silent = False
        self._watch: asyncio.Task[None] | None = None
        #: The check in progress, the next one, and a read of the identity that timed out.
        self._probe: asyncio.Task[None] | None = None
        self._next_probe: asyncio.Task[None] | None = None
        self._read: asyncio.Task[bytes | None] | None = None
        #: Chunks recently found missing, with the time; and those considered lost.
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._missing_since_s: float | None = None

    @property
    def is_available(self) -> bool:
        """Whether storage can be used, as far as is known."""
        return self._problem is None

    @property
    def problem(self) -> str | None:
        """Why storage cannot be used, for messages and probes; None if it can."""
        return None if self._problem is None else str(self._problem)

    @property
    def problem_since_s(self) -> float | None:
        """Since when, by the loop's clock, storage cannot be used; None while it can, or before the first check."""
        return self._problem_since_s

    # -- claiming -----------------------------------------------------------------------------------------------

    async def claim(self, has_logs: Callable[[], Awaitable[bool]]) -> None:
        """Verify that this is the cluster's long-term storage; make it so if the cluster and the place are new.

        `has_logs` returns whether any log of the cluster was ever opened.

        Raises:
            StorageIdentityError: it belongs to another cluster, holds chunks of unknown origin, or is damaged.
            LaterVersionError: a later version has written it.
            StorageUnavailableError: it is missing, or does not respond; nothing was created.
            StorageError: it is new, and its identity cannot be written.
        """
        # In this order: a process that opens a log meanwhile has written the identity before.
        had_logs = await has_logs()
        found = await self._read_identity()
        if found is None and not had_logs:
            chunks = await self.inner.list()
            if self._may_be_older and any(segment_of_header(chunk.name) for chunk in chunks):
                # Chunks of another cluster of this software, or of a later Pravega, are still refused.
                chunks = [chunk for chunk in chunks if chunk_origin(chunk.name) is not None]
            if chunks:
                raise StorageIdentityError(
                    self.place,
                    f"it has no identity but chunks ({chunks[0].name}, {len(chunks)} in all), and this cluster has "
                    "stored nothing yet; use an empty place",
                )
            try:
                await self.inner.create_identity(self._identity.encode())
            except StorageIdentityError:
                pass  # Created by another store, perhaps of another cluster: checked next.
            found = await self._read_identity()
        if found is not None:
            StorageIdentity.decode(found, self.place)
        self._check_identity(found)
        self._is_claimed = True
        self._set_available()

    async def claim_when_there(self, has_logs: Callable[[], Awaitable[bool]]) -> None:
        """Claim storage; wait while it is missing. Raises the other errors of `claim`.

        A cluster that has logs does not wait for storage that does not respond: it is checked repeatedly, and not used
        until it has responded and its identity is correct.

        Storage that refuses all requests of a cluster that has stored nothing yet is a configuration error, and not
        waited for: `StorageRefusedError`.
        """
        told: str | None = None
        while True:
            try:
                await self.claim(has_logs)
            except StorageIdentityError:
                raise
            except StorageUnavailableError as error:
                self._note_problem(error)
                if isinstance(error, StorageRefusedError) or self._is_silent:
                    had_logs = await has_logs()
                    if self._is_silent and had_logs:
                        logger.warning("long-term storage does not answer; continuing without it: %s", error)
                        self._is_claimed = True
                        return
                    if isinstance(error, StorageRefusedError) and not had_logs:
                        raise
                if str(error) != told:
                    told = str(error)
                    logger.warning("waiting for long-term storage: %s", error)
                await asyncio.sleep(self._settings.retry_interval_s)
            else:
                return

    def start(self) -> None:
        """Check periodically from now on."""
        self._watch = asyncio.get_running_loop().create_task(self._check_periodically())

    async def _check_periodically(self) -> None:
        settings = self._settings
        while True:
            await asyncio.sleep(settings.check_interval_s if self.is_available else settings.retry_interval_s)
            try:
                await self.check()
            except StorageUnavailableError:
                pass  # The error was recorded, and is raised to all callers.

    # -- checks -------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check storage now. Raises `StorageUnavailableError` unless it is present and has the expected identity.

        Concurrent calls share a check, but only one that began after the call.
        """
        if self._next_probe is None:
            self._next_probe = asyncio.get_running_loop().create_task(self._probe_after(self._probe))
        await asyncio.shield(self._next_probe)
        if self._problem is not None:
            raise self._error()

    async def check_place(self) -> None:
        """Check storage now. Raises `StorageUnavailableError` if it responds with a wrong identity, or refuses.

        Without a response it may be the right one. It cannot be used then, and operations that need it do not proceed.
        """
        try:
            await self.check()
        except StorageUnavailableError:
            if not self._is_silent:
                raise

    async def _probe_after(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None and not previous.done():
            await asyncio.wait((previous,))
        self._probe, self._next_probe = self._next_probe, None
        try:
            self._check_identity(await self._read_identity())
            await self._check_missing()
        except StorageUnavailableError as error:
            self._set_unavailable(error)
        else:
            if self._is_claimed:
                self._set_available()

    async def _read_identity(self) -> bytes | None:
        """Return the identity. Raises `StorageUnavailableError` if several attempts fail, or it takes too long."""
        attempt = 1
        self._is_silent = False
        while True:
            try:
                return await self._read_identity_once()
            except StorageRefusedError:
                raise
            except StorageUnavailableError:
                self._is_silent = True
                raise
            except (StorageError, OSError) as error:
                if attempt >= self._settings.check_attempts_max:
                    self._is_silent = True
                    raise StorageUnavailableError(
                        f"long-term storage in {self.place} cannot be read: {error}"
                    ) from error
                logger.info("the identity of long-term storage in %s is read again: %s", self.place, error)
            attempt += 1
            await asyncio.sleep(self._settings.check_retry_delay_s)

    async def _read_identity_once(self) -> bytes | None:
        """Return the identity. Raises `StorageUnavailableError` if it does not arrive in time, else the error."""
        timeout_s = self._settings.check_timeout_s
        # A hung read is reused, otherwise each check would add one.
        is_old = self._read is not None
        read = self._read or asyncio.ensure_future(self.inner.read_identity())
        self._read = read
        await asyncio.wait((read,), timeout=timeout_s)
        if not read.done():
            raise StorageUnavailableError(f"long-term storage in {self.place} did not answer within {timeout_s:g} s")
        self._read = None
        if is_old:
            read.exception()
            return await self._read_identity_once()
        return read.result()

    def _check_identity(self, found: bytes | None) -> None:
        if found is None:
            raise StorageUnavailableError(
                f"{self.place} is not the long-term storage used so far: it has no identity; mount it or put it back, "
                "and the server continues automatically. Nothing is created there until then"
            )
        try:
            identity = StorageIdentity.decode(found, self.place)
        except LaterVersionError as error:
            raise StorageIdentityError(self.place, str(error)) from error
        if identity != self._identity:
            raise StorageIdentityError(
                self.place, f"it belongs to cluster {identity.cluster_id}, this server to {self._identity.cluster_id}"
            )
        # Not earlier: a creation in progress must not accept a different place because of this check.
        self.inner.hold_to_identity(found)
        self.identity = found

    def _set_unavailable(self, error: StorageUnavailableError) -> None:
        if self._problem is None:
            logger.error("long-term storage is unavailable, nothing is flushed until it is back: %s", error)
        self._note_problem(error)

    def _set_available(self) -> None:
        if self._problem is not None and self._watch is not None:
            logger.warning("long-term storage in %s is available again", self.place)
        self._problem = self._problem_since_s = None

    def _note_problem(self, error: StorageUnavailableError) -> None:
        self._problem = error
        if self._problem_since_s is None:
            self._problem_since_s = asyncio.get_running_loop().time()

    def _error(self) -> StorageUnavailableError:
        problem = self._problem
        if isinstance(problem, StorageIdentityError):
            return problem.with_traceback(None)
        return StorageUnavailableError(str(problem))

    # -- many missing chunks ------------------------------------------------------------------------------------

    def note_missing(self, chunk: str) -> None:
        """Note that a chunk is missing to which a record refers, as reported by the owner of the record.

        A single one is damage to its segment. Many at once mean that storage is incomplete, until they are back or
        `missing_wait_s_max` has passed.
        """
        if chunk in self._lost:
            return
        now_s = asyncio.get_running_loop().time()
        self._missing[chunk] = now_s
        self._missing.move_to_end(chunk)
        if self._missing_since_s is not None:
            return
        settings = self._settings
        while self._missing and next(iter(self._missing.values())) < now_s - settings.missing_window_s:
            self._believe_lost(self._missing.popitem(last=False)[0])
        if len(self._missing) > settings.missing_chunks_max:
            self._missing_since_s = now_s
            self._set_unavailable(self._many_missing())

    def _many_missing(self) -> StorageUnavailableError:
        return StorageUnavailableError(
            f"{len(self._missing)} chunks are missing in {self.place} at once, {next(iter(self._missing))} among them: "
            "a part of it may not be mounted, or an old copy was put in its place"
        )

    async def _check_missing(self) -> None:
        """Raise `StorageUnavailableError` while many chunks are missing and are waited for."""
        if self._missing_since_s is None:
            return
        for chunk in list(self._missing):
            try:
                if await self.inner.exists(chunk):
                    self._missing.pop(chunk, None)
            except StorageError as error:
                raise StorageUnavailableError(f"long-term storage cannot be checked: {error}") from error
        settings = self._settings
        waited_s = asyncio.get_running_loop().time() - self._missing_since_s
        if len(self._missing) <= settings.missing_chunks_max:
            self._missing_since_s = None
        elif waited_s < settings.missing_wait_s_max:
            raise self._many_missing()
        else:
            logger.error("%s; after %g s they count as lost and their segments as damaged",
                         self._many_missing(), waited_s)  # fmt: skip
            self._missing_since_s = None
            for chunk in list(self._missing):
                self._believe_lost(chunk)
            self._missing.clear()

    def _believe_lost(self, chunk: str) -> None:
        self._lost[chunk] = None
        while len(self._lost) > _LOST_CHUNKS_MAX:
            self._lost.popitem(last=False)

    # -- calls --------------------------------------------------------------------------------------------------

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        await self._guarded(lambda: self.inner.create(name))

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""
        return await self._guarded(lambda: self.inner.create_with_content(name, data))

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        return await self._guarded(lambda: self.inner.write(name, offset, data))

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        return await self._guarded(lambda: self.inner.read(name, offset, length))

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        return await self._guarded(lambda: self.inner.info(name))

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        return await self._found(lambda: self.inner.exists(name))

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        await self._guarded(lambda: self.inner.delete(name))

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `DeletesMany`."""
        inner = self.inner
        if not isinstance(inner, DeletesMany):
            return await delete_each(self, names, limit=limit)
        failed = await self._guarded(lambda: inner.delete_many(names, limit=limit))
        await self.check()  # It does not report missing chunks, so storage as a whole may have been missing.
        return failed

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        return await self._guarded(lambda: self.inner.concat(target, target_length, sources))

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        found = await self._found(lambda: self.inner.list(prefix))
        await self.check()  # Another cluster's storage has other chunks.
        return found

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`."""
        return await self._found(lambda: self.inner.names(limit=limit, after=after))

    async def _found(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may find nothing; the result is verified as for a missing chunk, see `_guarded`."""
        found = await self._guarded(call)
        if not found:
            await self.check()
            found = await self._guarded(call)
            if not found:
                await self.check()
        return found

    async def _guarded(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._problem is not None:
            raise self._error()
        try:
            return await call()
        except NoSuchChunkError:
            await self.check()  # Checks whether storage as a whole is missing, not the chunk.
        except StorageUnavailableError as error:
            self._set_unavailable(error)
            raise
        # Or storage as a whole was missing then, and was back for the check. The result is accepted if it is the same
        # twice, each time with a successful check after it: a single response at the wrong time would mean the loss of
        # a chunk.
        try:
            return await call()
        except NoSuchChunkError:
            await self.check()
            raise
        except StorageUnavailableError as error:
            self._set_unavailable(error)
            raise

    async def close(self) -> None:
        """Stop the checks, and release all resources."""
        tasks = [task for task in (self._watch, self._probe, self._next_probe, self._read) if task is not None]
        for task in tasks:
            task.cancel()
        self._watch = None
        await self.inner.close()
