"""`BookKeeper`: the ledgers of production, by the official Java client and JPype.

Rules, each from a measured behaviour of the client:

- No Python runs on Java's threads: a callback per entry costs more than half of the throughput. Appends of a ledger
  complete in order, so one thread per open ledger waits for the oldest one, takes all that are done, and makes one call
  of the event loop.
- Entries from 16 KiB on are handed over as direct buffers, without a copy. Their bytes must not change.
- The client's own throttle is off: it blocks the calling thread. The caller bounds bytes in flight. Beyond the direct
  memory the client reports too few bookies, and closes the ledger.
- A bookie that fails is replaced only if an entry cannot be confirmed otherwise (``delayEnsembleChange``).
- All other requests run in a pool of threads, and are given up after twice `LedgerClientSettings.request_timeout_s`.
  The start of the client, most of which is CPU time, may take ten minutes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from penstock.model.errors import InvalidArgumentError, StorageNotRespondingError
from penstock.model.errors.ledgers import LedgerError, NoSuchLedgerError, ledger_error
from penstock.runtime.java_machine import has_java
from penstock.runtime.ledgers import LedgerClientSettings, LedgerObserver, LedgerPlace, LedgerQuorum
from penstock.runtime.work import BlockingWork, PoolSettings, WorkPool

T = TypeVar("T")

#: Entries from this length on are not copied.
_DIRECT_BYTES_MIN = 16 * 1024
_ZOOKEEPER_TIMEOUT_MS = 10_000
_CONNECT_TIMEOUT_MS = 1_000
#: Time for a connection that shows whether a bookie is reached.
_REACH_S = 0.5
_ENTRY_TIMEOUT_S = 5
_THREADS_MAX = 16
#: Time for the start of the client, which takes seconds of CPU: on a busy machine minutes. Longer than any request: a
#: start that is given up is begun again by another process, which is as slow.
_START_TIMEOUT_S = 600.0
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
        pool = PoolSettings(
            thread_count_max=_THREADS_MAX, hung_count_max=_THREADS_MAX, timeout_s=settings.request_timeout_s * 2
        )
        self._pool = work.pool("bookkeeper", pool)
        start = PoolSettings(thread_count_max=1, hung_count_max=1, timeout_s=_START_TIMEOUT_S)
        self._start_pool = work.pool("bookkeeper start", start)
        self._client: Any = None
        self._manager: Any = None
        self._connecting = asyncio.Lock()

    @property
    def place(self) -> str:
        """See `LedgerStore.place`."""
        return str(self._place)

    async def start(self) -> None:
        """See `LedgerStore.start`."""
        async with self._connecting:
            if self._client is None:
                self._client, self._manager = await self._run(self._connect, self._start_pool)

    def _connect(self) -> tuple[Any, Any]:
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
        settings.setUseV2WireProtocol(True)
        settings.setDelayEnsembleChange(True)
        client = jpype.JClass("org.apache.bookkeeper.client.api.BookKeeper").newBuilder(settings).build()
        # The implementation: metadata of a ledger can be read without opening it.
        return client, client.getMetadataClientDriver().getLedgerManagerFactory().newLedgerManager()

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
        loop = asyncio.get_running_loop()

        def created() -> JavaWriter:
            import jpype

            custom = jpype.JClass("java.util.HashMap")()
            for name, value in labels.items():
                custom.put(name, _java_bytes(value))
            request = self._client.newCreateLedgerOp().withEnsembleSize(quorum.ensemble)
            request = request.withWriteQuorumSize(quorum.ensemble).withAckQuorumSize(quorum.ack)
            request = request.withDigestType(_digest()).withPassword(_java_bytes(self._password))
            handle = self._answer(request.withCustomMetadata(custom).execute())
            return JavaWriter(self, handle, quorum, observer, loop)

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
        client, self._client = self._client, None
        manager, self._manager = self._manager, None
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

    def _answer(self, future: Any) -> Any:
        """Wait for a Java future, in a thread of the pool."""
        import jpype

        return future.get(int(self._timeout_s * 1000), jpype.JClass("java.util.concurrent.TimeUnit").MILLISECONDS)


class JavaWriter:
    """`LedgerWriter` over a handle of the Java client. Made in a thread of the pool.

    JPype examines each class of Java when it is first used, which takes long: all that the event loop's thread uses
    later is used here once.
    """

    def __init__(
        self,
        store: BookKeeper,
        handle: Any,
        quorum: LedgerQuorum,
        observer: LedgerObserver,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        import jpype

        self._store = store
        self._handle = handle
        self._append = handle.appendAsync
        self._direct = jpype.nio.convertToDirectBuffer
        self._bytes = jpype.JArray(jpype.JByte)
        self._java_error = jpype.JException
        self._observer = observer
        self._loop = loop
        self._quorum = quorum
        self._ledger_id = int(handle.getId())
        self._is_over = False
        jpype.JClass("java.util.concurrent.CompletableFuture")
        self._direct(bytes(_DIRECT_BYTES_MIN))
        self._bytes(b"\0")
        _ = self.bookies
        #: Futures of the appends in their order; None ends the thread.
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._drain, name=f"ledger {self._ledger_id}", daemon=True).start()

    @property
    def ledger_id(self) -> int:
        """See `LedgerWriter.ledger_id`."""
        return self._ledger_id

    @property
    def quorum(self) -> LedgerQuorum:
        """See `LedgerWriter.quorum`."""
        return self._quorum

    @property
    def bookies(self) -> Collection[str]:
        """See `LedgerWriter.bookies`."""
        return tuple(str(each) for each in self._handle.getLedgerMetadata().getAllEnsembles().lastEntry().getValue())

    def append(self, entry: bytes) -> None:
        """See `LedgerWriter.append`."""
        if self._is_over:
            raise ledger_error(-11, f"ledger {self._ledger_id} is closed")
        try:
            answer = self._append(self._direct(entry) if len(entry) >= _DIRECT_BYTES_MIN else self._bytes(entry))
        except self._java_error as error:
            raise java_error(error) from error
        self._answers.put(answer)

    def _drain(self) -> None:
        """Wait for answers, and pass each run of them to the event loop, in a thread of its own."""
        answers = self._answers
        following = answers.get()
        while following is not None:
            last, failure = -1, None
            try:
                last = int(following.get())
                following = None
                while following is None:
                    following = answers.get_nowait()
                    if following is None or not following.isDone():
                        break
                    last = int(following.get())
                    following = None
                is_over = following is None
            except queue.Empty:
                is_over = False
            except self._java_error as error:
                failure, is_over = java_error(error), True
            if not self._tell(last, failure) or is_over:
                return
            if following is None:
                following = answers.get()

    def _tell(self, last: int, failure: LedgerError | None) -> bool:
        """Pass outcomes to the event loop; return False if it is closed."""
        try:
            self._loop.call_soon_threadsafe(self._settled, last, failure)
        except RuntimeError:
            return False
        return True

    def _settled(self, last: int, failure: LedgerError | None) -> None:
        if self._is_over:
            return
        if last >= 0:
            self._observer.confirmed(last)
        if failure is not None and not self._is_over:
            self._is_over = True
            self._observer.failed(failure)

    async def close(self) -> None:
        """See `LedgerWriter.close`."""
        is_first, self._is_over = not self._is_over, True
        try:
            await self._store._run(lambda: self._store._answer(self._handle.closeAsync()))
        finally:
            self._answers.put(None)
            if is_first:
                self._observer.failed(ledger_error(-11, f"ledger {self._ledger_id} was closed"))


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
            await self._store._run(lambda: self._store._answer(self._handle.closeAsync()))
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


def java_error(error: Any) -> LedgerError:
    """Return the error for an exception of Java, by the code of the client's exception in its chain of causes."""
    import jpype

    known = jpype.JClass("org.apache.bookkeeper.client.api.BKException")
    time_out = jpype.JClass("java.util.concurrent.TimeoutException")
    each = error
    while each is not None:
        if isinstance(each, known):
            return ledger_error(int(each.getCode()), f"{type(each).__name__}: {each.getMessage()}")
        if isinstance(each, time_out):
            return ledger_error(-23, "no answer in time")
        each = each.getCause()
    return ledger_error(-999, str(error))
