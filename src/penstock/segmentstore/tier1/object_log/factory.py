"""`ObjectLogFactory`: `DurableLogFactory` of the logs in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.model.errors import InvalidArgumentError, LogFencedError, LogTakenOverError, ObjectChangedError
from penstock.runtime.objects import ObjectStore
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.log_process import LogProcess
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.tier1.object_log.server_claim import ServerClaim
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings


class ObjectLogFactory:
    """See the module. One for each process: all of its logs share one journal."""

    def __init__(
        self,
        objects: ObjectStore,
        runtime: Runtime,
        settings: ObjectLogSettings | None = None,
        *,
        prefix: str = "",
        cluster_id: str = "",
        container_count: int,
        owner: LogOwner | None = None,
        server: str = "",
    ) -> None:
        """`objects`: the bucket; `close` closes it. `prefix`: of all keys. `cluster_id`: see `LogBucket`.

        `owner`: the identity under which logs are opened; by default a new one that takes every other process as
        alive, because nothing shows that it is not. `server`: opens all logs as the only server, with this description
        (see `ServerClaim`); empty: other processes may open some of them at the same time.
        """
        settings = settings or ObjectLogSettings()
        bucket = LogBucket(objects, settings, prefix=prefix, cluster_id=cluster_id)
        owner = owner or LogOwner(runtime.random_id(), lambda token: True)
        self.process: LogProcess = LogProcess(bucket, runtime, settings, owner, container_count)
        if server:
            self.process.claim = ServerClaim(bucket, runtime, owner.token, server)
        self._container_count = container_count

    @property
    def on_fenced(self) -> Callable[[int], None]:
        """Called with the id of a container whose log another process has opened or disabled."""
        return self.process.on_fenced

    @on_fenced.setter
    def on_fenced(self, on_fenced: Callable[[int], None]) -> None:
        self.process.on_fenced = on_fenced

    @property
    def on_taken_over(self) -> Callable[[LogTakenOverError], None]:
        """Called when a later server has started on this log: this process must exit."""
        return self.process.on_taken_over

    @on_taken_over.setter
    def on_taken_over(self, on_taken_over: Callable[[LogTakenOverError], None]) -> None:
        self.process.on_taken_over = on_taken_over

    async def start(self) -> None:
        """See `DurableLogFactory.start`. With a claim, earlier servers open no log from now on."""
        if self.process.claim is not None:
            await self.process.claim.take()

    async def close(self) -> None:
        """See `DurableLogFactory.close`."""
        await self.process.close()
        await self.process.bucket.objects.close()

    def create(self, container_id: int) -> ObjectLog:
        """See `DurableLogFactory.create`."""
        if not 0 <= container_id < self._container_count:
            raise InvalidArgumentError(f"there are {self._container_count} containers, and none {container_id}")
        return ObjectLog(container_id, self.process)

    async def check(self) -> None:
        """See `DurableLogFactory.check`."""
        await self.has_logs()

    async def has_logs(self) -> bool:
        """See `DurableLogFactory.has_logs`."""
        for container_id in range(self._container_count):
            if await self.process.bucket.read_record(container_id, gives_up_refused=True) is not None:
                return True
        return False

    async def enable(self, container_id: int) -> None:
        """See `DurableLogFactory.enable`. Raises `InvalidArgumentError` when the log is not disabled."""
        await enable_log(self.process.bucket, self.process.runtime, container_id)


async def enable_log(bucket: LogBucket, runtime: Runtime, container_id: int) -> None:
    """Undo `DurableLog.disable`. Raises `InvalidArgumentError`, and `LogFencedError` if the record has changed."""
    stored = await bucket.read_record(container_id, gives_up_refused=True)
    if stored is None or stored.record.is_enabled:
        raise InvalidArgumentError(f"the log of container {container_id} in {bucket.place} is not disabled")
    nonce = runtime.random_id()
    try:
        await bucket.change_record(stored, replace(stored.record, nonce=nonce, is_enabled=True, reason=""))
    except ObjectChangedError as error:
        raise LogFencedError(
            f"the log of container {container_id} in {bucket.place} was changed meanwhile: list the logs again"
        ) from error
