"""`BookKeeper`: the ledgers of production, by the official Java client and JPype.

Rules, each from a measured behaviour of the client:

- No Python runs on Java's threads: a callback per entry costs more than half of the throughput. Appends of a ledger
  complete in order, so one thread per open ledger waits for the oldest one, takes all that are done, and makes one call
  of the event loop (`JavaWriter`).
- The event loop's thread does not call Java for an entry. One thread sends the entries of all ledgers, in batches
  (`EntrySender`).
- The client's own throttle is off: it blocks the calling thread. The caller bounds bytes in flight. Beyond the direct
  memory the client reports too few bookies, and closes the ledger.
- Bytes that wait for one bookie are bounded, too: a bookie that is suspended would fill the direct memory, and stop all
  ledgers until it is resumed.
- A bookie that fails is replaced only if an entry cannot be confirmed otherwise (``delayEnsembleChange``).
- All other requests run in a pool of threads, and are given up after twice `LedgerClientSettings.request_timeout_s`.
  The start of the client, most of which is CPU time, may take ten minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.model.errors import InvalidArgumentError, StorageNotRespondingError
from penstock.model.errors.ledgers import LedgerError, NoSuchLedgerError, ledger_error
from penstock.runtime.bookkeeper_errors import java_error
from penstock.runtime.entry_sender import EntrySender
from penstock.runtime.java_machine import has_java
from penstock.runtime.java_writer import JavaWriter
from penstock.runtime.ledger_rehearsal import rehearse
from penstock.runtime.ledgers import LedgerClientSettings, LedgerObserver, LedgerPlace, LedgerQuorum
from penstock.runtime.waits import cancel_and_wait
from penstock.runtime.work import BlockingWork, PoolSettings, WorkPool

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ZOOKEEPER_TIMEOUT_MS = 10_000
_CONNECT_TIMEOUT_MS = 1_000
#: Time for a connection that shows whether a bookie is reached.
_REACH_S = 0.5
_ENTRY_TIMEOUT_S = 5
_THREADS_MAX = 16
#: The largest number of bytes that Netty takes as a water mark.
_WATER_MARK_MAX = (1 << 31) - 1
#: Time for the start of the client, which takes seconds of CPU: on a busy machine minutes. Longer than any request: a
#: start that is given up is begun again by another process, which is as slow.
_START_TIMEOUT_S = 600.0
#: The rehearsal takes a second of CPU, which the start of containers needs first.
_REHEARSAL_DELAY_S = 10.0
#: Ledgers of which one page of a list has numbers.
_PAGE_LENGTH = 1000


def open_ledger_store(place: LedgerPlace, settings: LedgerClientSettings, work: BlockingWork) -> BookKeeper:
    """Return the BookKeeper cluster at `place`. See `penstock.runtime.ledgers.OpenLedgerStore`."""
    return BookKeeper(place, settings, work)


class BookKeeper:
    """`LedgerStore` of the cluster at `place`. The virtual machine runs, see `start_java`."""

    def __init__(self, place: LedgerPlace, settings: LedgerClientSettings, work: BlockingWork) -> None:
        if not has_java():
            raise InvalidArgumentError(f"{place}: the Java virtual machine of this process does not run")
        self._place = place
        self._password = settings.password.encode()
        self._timeout_s = settings.request_timeout_s
        self._in_flight_bytes_max = min(settings.in_flight_bytes_max, _WATER_MARK_MAX)
        pool = PoolSettings(
            thread_count_max=_THREADS_MAX, hung_count_max=_THREADS_MAX, timeout_s=settings.request_timeout_s * 2
        )
        self._pool = work.pool("bookkeeper", pool)
        start = PoolSettings(thread_count_max=1, hung_count_max=1, timeout_s=_START_TIMEOUT_S)
        self._start_pool = work.pool("bookkeeper start", start)
        self._client: Any = None
        self._manager: Any = None
        self._sender: EntrySender | None = None
        self._connecting = asyncio.Lock()
        self._is_rehearsed = settings.is_rehearsed
        self._rehearsal: asyncio.Task[None] | None = None

    @property
    def place(self) -> str:
        """See `LedgerStore.place`."""
        return str(self._place)

    async def start(self) -> None:
        """See `LedgerStore.start`."""
        async with self._connecting:
            if self._client is None:
                self._client, self._manager, self._sender = await self._run(self._connect, self._start_pool)
                if self._is_rehearsed and self._rehearsal is None:
                    self._rehearsal = asyncio.get_running_loop().create_task(self._rehearse(), name="rehearsal")

    async def _rehearse(self) -> None:
        await asyncio.sleep(_REHEARSAL_DELAY_S)
        try:
            await rehearse(self)
        except LedgerError as error:
            _log.info("%s: the first take-over of a container takes longer: %s", self.place, error)

    def _connect(self) -> tuple[Any, Any, EntrySender]:
        import jpype

        # By full names: `JPackage` searches all jars, which takes seconds.
        policy = jpype.JClass("org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy")
        settings = jpype.JClass("org.apache.bookkeeper.conf.ClientConfiguration")()
        settings.setMetadataServiceUri(self._place.service_uri).setZkTimeout(_ZOOKEEPER_TIMEOUT_MS)
        settings.setThrottleValue(0)
        settings.setEnsemblePlacementPolicy(policy.class_)
        settings.setNumIOThreads(1).setNumWorkerThreads(1)
        settings.setAddEntryTimeout(_ENTRY_TIMEOUT_S).setReadEntryTimeout(_ENTRY_TIMEOUT_S)
        settings.setAddEntryQuorumTimeout(0)
        settings.setClientConnectTimeoutMillis(_CONNECT_TIMEOUT_MS)
        # Without a wait for room: an entry is not sent to a bookie that takes nothing, and two others confirm it.
        settings.setWaitTimeoutOnBackpressureMillis(0)
        settings.setClientWriteBufferLowWaterMark(self._in_flight_bytes_max)
        settings.setClientWriteBufferHighWaterMark(min(2 * self._in_flight_bytes_max, _WATER_MARK_MAX))
        settings.setUseV2WireProtocol(True)
        settings.setDelayEnsembleChange(True)
        client = jpype.JClass("org.apache.bookkeeper.client.api.BookKeeper").newBuilder(settings).build()
        # The implementation: metadata of a ledger can be read without opening it.
        manager = client.getMetadataClientDriver().getLedgerManagerFactory().newLedgerManager()
        return client, manager, EntrySender()

    async def bookies(self) -> Collection[str]:
        """See `LedgerStore.bookies`."""

        def listed() -> Collection[str]:
            found = self._answer(self._client.getMetadataClientDriver().getRegistrationClient().getWritableBookies())
            return frozenset(str(each) for each in found.getValue())

        await self.start()
        return await self._run(listed)

    async def reach(self, bookies: Collection[str]) -> Collection[str]:
        """See `LedgerStore.reach`."""
        names = list(bookies)
        found = await asyncio.gather(*(_accepts(name) for name in names))
        return frozenset(name for name, is_reached in zip(names, found, strict=True) if is_reached)

    async def create(self, quorum: LedgerQuorum, labels: Mapping[str, bytes], observer: LedgerObserver) -> JavaWriter:
        """See `LedgerStore.create`."""
        await self.start()
        loop, sender = asyncio.get_running_loop(), self._sender
        if sender is None:
            raise ledger_error(-19, f"the client of {self.place} is closed")

        def created() -> JavaWriter:
            import jpype

            custom = jpype.JClass("java.util.HashMap")()
            for name, value in labels.items():
                custom.put(name, _java_bytes(value))
            request = self._client.newCreateLedgerOp().withEnsembleSize(quorum.ensemble)
            request = request.withWriteQuorumSize(quorum.ensemble).withAckQuorumSize(quorum.ack)
            request = request.withDigestType(_digest()).withPassword(_java_bytes(self._password))
            handle = self._answer(request.withCustomMetadata(custom).execute())
            close = partial(self._close_handle, handle)
            return JavaWriter(handle, quorum, observer, loop, sender, close, jpype.JException)

        return await self._run(created)

    async def open(self, ledger_id: int, *, is_fencing: bool) -> JavaReader:
        """See `LedgerStore.open`."""

        def opened() -> JavaReader:
            request = self._client.newOpenLedgerOp().withLedgerId(ledger_id).withPassword(_java_bytes(self._password))
            handle = self._answer(request.withDigestType(_digest()).withRecovery(is_fencing).execute())
            return JavaReader(self, handle)

        await self.start()
        return await self._run(opened)

    async def delete(self, ledger_id: int) -> None:
        """See `LedgerStore.delete`."""
        await self.start()
        try:
            await self._run(lambda: self._answer(self._client.newDeleteLedgerOp().withLedgerId(ledger_id).execute()))
        except NoSuchLedgerError:
            return

    async def ledger_ids(self) -> AsyncIterator[int]:
        """See `LedgerStore.ledger_ids`."""
        await self.start()
        found = await self._run(lambda: self._answer(self._client.newListLedgersOp().execute()))
        numbers = await self._run(lambda: found.iterator())
        while page := await self._run(lambda: _page(numbers)):
            for number in page:
                yield number
        await self._run(found.close)

    async def labels(self, ledger_id: int) -> Mapping[str, bytes]:
        """See `LedgerStore.labels`."""
        await self.start()
        return await self._run(lambda: _labels(self._answer(self._manager.readLedgerMetadata(ledger_id)).getValue()))

    async def close(self) -> None:
        """See `LedgerStore.close`."""
        if self._rehearsal is not None:
            await cancel_and_wait(self._rehearsal)
        client, self._client = self._client, None
        manager, self._manager = self._manager, None
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        if client is not None:

            def closed() -> None:
                manager.close()
                client.close()

            try:
                await self._run(closed)
            except (LedgerError, StorageNotRespondingError):
                pass
        self._pool.close()
        self._start_pool.close()

    async def _run(self, call: Callable[[], T], pool: WorkPool | None = None) -> T:
        """Run `call` in a thread of `pool`. Raises `LedgerError`, also if it takes too long. None: that of requests."""
        try:
            return await (pool or self._pool).run(_translated, call)
        except StorageNotRespondingError as error:
            raise ledger_error(-23, f"{self.place} does not answer: {error}") from error

    async def _close_handle(self, handle: Any) -> None:
        await self._run(lambda: self._answer(handle.closeAsync()))

    def _answer(self, future: Any) -> Any:
        """Wait for a Java future, in a thread of the pool."""
        import jpype

        return future.get(int(self._timeout_s * 1000), jpype.JClass("java.util.concurrent.TimeUnit").MILLISECONDS)


class JavaReader:
    """`LedgerReader` over a handle of the Java client. Made in a thread of the pool."""

    def __init__(self, store: BookKeeper, handle: Any) -> None:
        metadata = handle.getLedgerMetadata()
        self.ledger_id: int = int(handle.getId())
        self.labels: Mapping[str, bytes] = _labels(metadata)
        self.last_entry: int = int(handle.getLastAddConfirmed())
        self.length_bytes: int = int(handle.getLength())
        self.bookies: Collection[str] = frozenset(
            str(bookie) for bookies in metadata.getAllEnsembles().values() for bookie in bookies
        )
        self._store = store
        self._handle = handle

    async def read(self, first: int, last: int) -> Sequence[bytes]:
        """See `LedgerReader.read`."""
        return await self._store._run(lambda: self._entries(self._handle.readAsync(first, last)))

    async def read_unconfirmed(self, entry: int) -> bytes | None:
        """See `LedgerReader.read_unconfirmed`."""
        try:
            found = await self._store._run(lambda: self._entries(self._handle.readUnconfirmedAsync(entry, entry)))
        except LedgerError:
            return None
        return found[0]

    def _entries(self, future: Any) -> list[bytes]:
        entries = self._store._answer(future)
        try:
            return [bytes(memoryview(each.getEntryBytes())) for each in entries]
        finally:
            entries.close()

    async def close(self) -> None:
        """See `LedgerReader.close`."""
        try:
            await self._store._close_handle(self._handle)
        except LedgerError:
            return


async def _accepts(bookie: str) -> bool:
    """Return whether a bookie accepts a connection."""
    host, _, port = bookie.rpartition(":")
    if not host or not port.isdigit():
        return True  # A name that only the metadata resolve.
    try:
        async with asyncio.timeout(_REACH_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except OSError:  # Among them TimeoutError.
        return False
    writer.close()
    return True


def _labels(metadata: Any) -> dict[str, bytes]:
    custom = metadata.getCustomMetadata()
    return {str(each.getKey()): bytes(memoryview(each.getValue())) for each in custom.entrySet()}


def _page(numbers: Any) -> list[int]:
    page: list[int] = []
    while len(page) < _PAGE_LENGTH and numbers.hasNext():
        page.append(int(numbers.next()))
    return page


def _java_bytes(value: bytes) -> Any:
    import jpype

    return jpype.JArray(jpype.JByte)(value)


def _digest() -> Any:
    import jpype

    return jpype.JClass("org.apache.bookkeeper.client.api.DigestType").CRC32C


def _translated(call: Callable[[], T]) -> T:
    import jpype

    try:
        return call()
    except jpype.JException as error:
        raise java_error(error) from error
