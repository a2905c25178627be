"""`LocalLogFactory`: the logs of all containers in one local directory."""

from __future__ import annotations

from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.log_directory import LogDirectory, log_container_ids
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.log_work import while_locked
from penstock.segmentstore.tier1.made_logs import MadeLogs


class LocalLogFactory:
    """`DurableLogFactory`: one directory per container under `directory`."""

    def __init__(
        self,
        directory: str,
        runtime: Runtime,
        settings: LocalLogSettings | None = None,
        *,
        owner: LogOwner | None = None,
        cluster_id: str = "",
        made_logs_directory: str = "",
    ) -> None:
        """`owner`: the identity under which logs are opened; by default a new one, with no other process alive.

        `cluster_id`: logs of another cluster are refused, new ones belong to it. `made_logs_directory`: where the
        creation of logs is recorded, outside of tier 1, see `MadeLogs`. Without it a missing log is treated as a new
        one.
        """
        self._directory = directory
        self._runtime = runtime
        self._settings = settings or LocalLogSettings()
        self._owner = owner or LogOwner(runtime.random_id())
        self._cluster_id = cluster_id
        self._made_logs = MadeLogs(runtime.disk, made_logs_directory, cluster_id) if made_logs_directory else None

    async def start(self) -> None:
        """See `DurableLogFactory.start`. Logs share nothing: each has files of its own."""

    async def close(self) -> None:
        """See `DurableLogFactory.close`. Does nothing."""

    def create(self, container_id: int) -> LocalLog:
        """See `DurableLogFactory.create`."""
        directory = LogDirectory(
            self._runtime.disk,
            self._path(container_id),
            container_id,
            self._owner,
            cluster_id=self._cluster_id,
            made_logs=self._made_logs,
        )
        return LocalLog(directory, self._runtime, self._settings)

    async def check(self) -> None:
        """See `DurableLogFactory.check`."""
        await self.has_logs()

    async def has_logs(self) -> bool:
        """See `DurableLogFactory.has_logs`. Logs that are missing count."""
        return await self._runtime.work.run(self._has_logs)

    def _has_logs(self) -> bool:
        if self._made_logs is not None and self._made_logs.container_ids():
            return True
        return bool(log_container_ids(self._runtime.disk, self._directory))

    async def enable(self, container_id: int) -> None:
        """See `DurableLogFactory.enable`. Raises `InvalidArgumentError` when the log is not disabled."""
        path = self._path(container_id)
        directory = LogDirectory(self._runtime.disk, path, container_id)
        # The owner of the log holds its lock briefly from time to time.
        what = f"enable the log of container {container_id} in {path}"
        await while_locked(what, lambda: self._runtime.work.run(directory.enable), self._settings)

    def _path(self, container_id: int) -> str:
        return f"{self._directory}/{container_id}"
