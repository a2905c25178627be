"""`WriterTimes`: the times that one writer notes on its stream. See ``docs/watermarks.md``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from penstock.client.common.deadline import within
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.times import NotedTime, noted_time

_log = logging.getLogger(__name__)


class WriterTimes:
    """Notes times under a writer name that is generated at the first one."""

    def __init__(self, cluster: Cluster, stream: str) -> None:
        self._cluster = cluster
        self._scope, self._stream = split_scoped_name(stream)
        self._writer = ""
        self._last: int | None = None

    async def note(self, time: NotedTime, position: Mapping[int, int | None]) -> None:
        """Note a time with a position (segment -> offset); an unknown offset is requested from the store.

        That offset may be past the writer's own events, never before their end. Raises `InvalidArgumentError` for a
        time before the last one, even if the controller no longer has that one.
        """
        number = noted_time(time)
        if self._last is not None and number < self._last:
            raise InvalidArgumentError(f"time {number} is before {self._last}, the time that this writer noted last")
        name = f"{self._scope}/{self._stream}"
        with within(f"note a time on stream {name}", self._cluster.settings.retry_time_max_s, "retry_time_max_s"):
            known = {segment: offset for segment, offset in position.items() if offset is not None}
            unknown = [segment for segment, offset in position.items() if offset is None]
            names = [segment_name(self._scope, self._stream, segment) for segment in unknown]
            for segment, info in zip(unknown, await segment_infos(self._cluster, names), strict=True):
                if isinstance(info, PenstockError):
                    raise info
                known[segment] = info.length
            if not self._writer:
                self._writer = str(UUID(bytes=self._cluster.rng.randbytes(16), version=4))
            await self._cluster.controller.note_time(
                self._scope, self._stream, self._writer, number, dict(sorted(known.items()))
            )
        self._last = number

    async def leave(self) -> None:
        """Report that no more times will come. If that fails, watermarks wait for them until the stream's time-out."""
        if not self._writer:
            return
        try:
            await self._cluster.controller.remove_writer(self._scope, self._stream, self._writer)
        except PenstockError as error:
            _log.warning("writer %s of %s/%s could not be removed: %s",
                         self._writer, self._scope, self._stream, error)  # fmt: skip
