"""`BookKeeperLogFactory`: `DurableLogFactory` of the logs in BookKeeper."""

from __future__ import annotations

from dataclasses import replace

from penstock.model.errors import InvalidArgumentError, LogFencedError, StorageConflictError
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.ledgers import LedgerStore
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.bookkeeper_log import BookKeeperLog
from penstock.segmentstore.tier1.bookkeeper.log_process import BookKeeperProcess
from penstock.segmentstore.tier1.bookkeeper.record_store import RecordStore
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.log_owner import LogOwner


class BookKeeperLogFactory:
    """See the module. One for each process."""

    def __init__(
        self,
        ledgers: LedgerStore,
        service: CoordinationService,
        runtime: Runtime,
        settings: BookKeeperSettings | None = None,
        *,
        cluster_id: str,
        container_count: int,
        owner: LogOwner | None = None,
    ) -> None:
        """`ledgers`: BookKeeper; `close` closes it. `service`: has the records, below its root.

        `owner`: the identity under which logs are opened; by default a new one that takes every other process as
        alive, because nothing shows that it is not.
        """
        settings = settings or BookKeeperSettings()
        owner = owner or LogOwner(runtime.random_id(), lambda token: True)
        records = RecordStore(service, cluster_id, settings.retry_s)
        self.process: BookKeeperProcess = BookKeeperProcess(ledgers, records, runtime, settings, owner)
        self._container_count = container_count

    async def start(self) -> None:
        """See `DurableLogFactory.start`. Connects to BookKeeper."""
        await self.process.ledgers.start()
        self.process.start()

    async def close(self) -> None:
        """See `DurableLogFactory.close`."""
        await self.process.close()
        await self.process.records.close()
        await self.process.ledgers.close()

    def create(self, container_id: int) -> BookKeeperLog:
        """See `DurableLogFactory.create`."""
        if not 0 <= container_id < self._container_count:
            raise InvalidArgumentError(f"there are {self._container_count} containers, and none {container_id}")
        return BookKeeperLog(container_id, self.process)

    async def check(self) -> None:
        """See `DurableLogFactory.check`. Asks the bookies, and not the coordination service."""
        await self.process.check()

    async def has_logs(self) -> bool:
        """See `DurableLogFactory.has_logs`."""
        for container_id in range(self._container_count):
            if await self.process.records.read(container_id) is not None:
                return True
        return False

    async def enable(self, container_id: int) -> None:
        """See `DurableLogFactory.enable`. Raises `InvalidArgumentError` when the log is not disabled."""
        await enable_log(self.process.records, self.process.runtime, container_id)


async def enable_log(records: RecordStore, runtime: Runtime, container_id: int) -> None:
    """Undo `DurableLog.disable`. Raises `InvalidArgumentError`, and `LogFencedError` if the record has changed."""
    stored = await records.read(container_id)
    if stored is None or stored.record.is_enabled:
        raise InvalidArgumentError(f"the log of container {container_id} in {records.place} is not disabled")
    try:
        await records.change(stored, replace(stored.record, nonce=runtime.random_id(), is_enabled=True, reason=""))
    except StorageConflictError as error:
        raise LogFencedError(
            f"the log of container {container_id} in {records.place} was changed meanwhile: list the logs again"
        ) from error
