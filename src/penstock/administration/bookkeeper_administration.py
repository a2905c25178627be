"""`BookKeeperAdministration`: inspects and changes the logs of a cluster in BookKeeper, while it runs.

All changes are conditional. Why `sweep` deletes nothing that is needed: docs/bookkeeper-log.md, "Sweep".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from penstock.administration.ledger_rebuild import ClusterLogs, LedgerRebuild, RebuiltLog
from penstock.administration.log_administration import LogReport, LogState
from penstock.model.cluster_nodes import ClusterIdentity
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LaterVersionError,
    LogDamagedError,
    LogFencedError,
    LogIdentityError,
    StorageConflictError,
    StorageError,
)
from penstock.model.errors.ledgers import NoSuchLedgerError
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.java_machine import start_java
from penstock.runtime.ledger_rehearsal import REHEARSAL
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace, LedgerStore
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.factory import enable_log
from penstock.segmentstore.tier1.bookkeeper.log_reader import LogReader
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, LogRecord, record_path
from penstock.segmentstore.tier1.bookkeeper.record_store import RecordStore, StoredLogRecord
from penstock.server.settings import StandaloneSettings

_ADVICE = (
    "If bookies with the missing or intact entries can be started again, start them and repeat this command; otherwise "
    "build a cluster from images in long-term storage"
)


@dataclass(frozen=True, slots=True)
class LedgerSweepReport:
    """What a sweep has found.

    Attributes:
        is_dry_run: whether nothing was changed.
        unnamed: ledgers of the cluster that no record names, and those that rehearsals of stores have left; they were
            deleted, or would be.
        kept_count: ledgers that a record names, or may name soon.
        foreign_count: ledgers of other clusters and applications; they stay.
    """

    is_dry_run: bool
    unnamed: Sequence[int]
    kept_count: int
    foreign_count: int


def open_ledgers(place: str, settings: StandaloneSettings, runtime: Runtime) -> LedgerStore:
    """Return the BookKeeper cluster at `place`, with its virtual machine started; close it.

    Raises `InvalidArgumentError`: something must be installed.
    """
    log = settings.bookkeeper
    start_java(f"the log in {place}", log.jars, heap_mb=log.heap_mb, direct_mb=log.direct_mb)
    client = LedgerClientSettings(log.password, log.request_timeout_s)
    return runtime.open_ledgers(LedgerPlace.parse(place), client, runtime.work)


@asynccontextmanager
async def ledger_logs(
    identity: ClusterIdentity, service: CoordinationService, settings: StandaloneSettings, runtime: Runtime
) -> AsyncIterator[BookKeeperAdministration]:
    """Open the logs of the cluster `identity`, whose records are in `service`.

    Raises `InvalidArgumentError`: something must be installed. `LedgerError`: BookKeeper does not answer.
    """
    log = settings.bookkeeper
    ledgers = open_ledgers(identity.log, settings, runtime)
    records = RecordStore(service, identity.cluster_id, log.retry_s)
    try:
        await ledgers.start()
        yield BookKeeperAdministration(ClusterLogs(ledgers, records, log, runtime, identity.container_count))
    finally:
        await records.close()
        await ledgers.close()


class BookKeeperAdministration:
    """See the module."""

    def __init__(self, logs: ClusterLogs) -> None:
        self._logs = logs

    @property
    def logs(self) -> ClusterLogs:
        """The logs, and what their administration uses."""
        return self._logs

    @property
    def cluster_id(self) -> str:
        """The cluster that the logs belong to."""
        return self._logs.records.cluster_id

    async def owners(self) -> Collection[str]:
        """Return the tokens, in hex, of the processes that have opened each log last.

        Raises `UnreadableDataError` if a record is damaged.
        """
        return frozenset(record.owner.hex() for record in (await self._all_records()).values())

    async def reports(self) -> Sequence[LogReport]:
        """Return a report of each container's log. Changes and fences nothing."""
        return [await self._report(container_id) for container_id in range(self._logs.container_count)]

    async def _report(self, container_id: int) -> LogReport:
        path = f"{self._logs.records.place}{record_path(container_id)}"
        try:
            stored = await self._logs.records.read(container_id)
        except LaterVersionError as error:
            return LogReport(container_id, LogState.LATER_VERSION, 0, 0, 0, path, str(error))
        except (CorruptionError, LogIdentityError) as error:
            return LogReport(container_id, LogState.DAMAGED, 0, 0, 0, path, str(error))
        if stored is None:
            problem = "its record does not exist: no store has opened it, or the node was deleted"
            return LogReport(container_id, LogState.MISSING, 0, 0, 0, path, problem)
        record, length_bytes, problem = stored.record, 0, ""
        for ledger in record.ledgers:
            try:
                reader = await self._logs.ledgers.open(ledger.ledger_id, is_fencing=False)
            except StorageError as error:
                problem = str(error)
                continue
            length_bytes += reader.length_bytes
            await reader.close()
        state = LogState.ENABLED
        if not record.is_enabled:
            state, problem = LogState.DISABLED, record.reason
        return LogReport(container_id, state, record.epoch, len(record.ledgers), length_bytes, path, problem)

    async def enable(self, container_id: int) -> None:
        """Enable a disabled log. Its frames are read first: a damaged log stays disabled.

        Raises:
            InvalidArgumentError: it is not disabled, or does not exist.
            LogDamagedError: it is damaged. Nothing was changed.
            LedgerError: its bookies do not answer.
        """
        stored = await self.demand(container_id)
        if not stored.record.is_enabled:
            try:
                await self._check_frames(stored.record)
            except CorruptionError as error:
                raise LogDamagedError(container_id, error, advice=_ADVICE) from error
        await enable_log(self._logs.records, self._logs.runtime, container_id)

    async def _check_frames(self, record: LogRecord) -> None:
        reader = LogReader(self._logs.ledgers, self._logs.settings, record.container_id, self._logs.records.cluster_id)
        try:
            ends = {
                each.ordinal: (await reader.fenced(each)).last_entry
                for each in record.ledgers
                if each.last_entry is None
            }
            ended = record.with_ends(ends)
            async for _ in reader.frame_runs(ended, ended.ledgers):
                pass
        finally:
            await reader.close()

    async def disable(self, container_id: int) -> None:
        """Disable a log. A store that has opened it ends its container.

        Raises `InvalidArgumentError` if it is disabled already, or does not exist.
        """
        stored = await self.demand(container_id)
        record = stored.record
        if not record.is_enabled:
            raise InvalidArgumentError(f"the log of container {container_id} in {self._logs.records.place} is disabled")
        nonce = self._logs.runtime.random_id()
        try:
            await self._logs.records.change(
                stored, replace(record, nonce=nonce, is_enabled=False, reason="by an administrator")
            )
        except StorageConflictError as error:
            raise LogFencedError(
                f"the log of container {container_id} in {self._logs.records.place} was changed meanwhile: "
                "list the logs"
            ) from error
        for ledger in reversed(record.ledgers):
            if ledger.last_entry is None:
                # Its owner finds the fence with its next append or check, and the changed record at its next open.
                await (await self._logs.ledgers.open(ledger.ledger_id, is_fencing=True)).close()

    async def rebuild(self, *, is_dry_run: bool) -> Sequence[RebuiltLog]:
        """Make records that do not exist again. No store of the cluster may run. Errors as `LedgerRebuild.run`."""
        rebuild = LedgerRebuild(self._logs)
        return await rebuild.run(is_dry_run=is_dry_run)

    async def sweep(self, *, is_dry_run: bool) -> LedgerSweepReport:
        """Delete ledgers of this cluster that no record names and that none can name any more.

        Raises `UnreadableDataError` if a record is damaged: then nothing was deleted.
        """
        found: dict[int, LedgerLabels] = {}
        foreign_count = 0
        rehearsed: list[int] = []
        async for ledger_id in self._logs.ledgers.ledger_ids():
            try:
                raw = await self._logs.ledgers.labels(ledger_id)
            except NoSuchLedgerError:
                continue
            labels = LedgerLabels.decode(raw)
            if raw.get("application") == REHEARSAL:
                rehearsed.append(ledger_id)
            elif labels is None or labels.cluster_id != self._logs.records.cluster_id:
                foreign_count += 1
            else:
                found[ledger_id] = labels
        # After the ledgers: one that was listed is in its record now, or its ordinal shows whether it can be added.
        records = await self._all_records()
        left_over = [each for each, labels in found.items() if _is_left_over(each, labels, records)]
        kept_count = len(found) - len(left_over)
        # A store that is rehearsing does without its ledger.
        unnamed = sorted([*left_over, *rehearsed])
        if not is_dry_run:
            for ledger_id in unnamed:
                await self._logs.ledgers.delete(ledger_id)
        return LedgerSweepReport(is_dry_run, unnamed, kept_count, foreign_count)

    async def _all_records(self) -> dict[int, LogRecord]:
        found = {number: await self._logs.records.read(number) for number in range(self._logs.container_count)}
        return {number: stored.record for number, stored in found.items() if stored is not None}

    async def demand(self, container_id: int) -> StoredLogRecord:
        """Return the record of a container. Raises `InvalidArgumentError` if there is none."""
        stored = await self._logs.records.read(container_id) if 0 <= container_id < self._logs.container_count else None
        if stored is None:
            raise InvalidArgumentError(
                f"there is no log of container {container_id} in {self._logs.records.place}, which has "
                f"{self._logs.container_count} containers"
            )
        return stored


def _is_left_over(ledger_id: int, labels: LedgerLabels, records: dict[int, LogRecord]) -> bool:
    """Return whether a ledger is in no record, and cannot get into one: each takes the record's next ordinal.

    Ledgers of a damaged log that was salvaged stay.
    """
    record = records.get(labels.container_id)
    if record is None:
        return False
    is_named = any(each.ledger_id == ledger_id for each in record.ledgers)
    return not is_named and record.begins <= labels.ordinal < record.next_ordinal
