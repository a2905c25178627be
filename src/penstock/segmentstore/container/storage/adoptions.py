"""`Adoptions`: adopts segments of an older Pravega when a requested segment is unknown to the container.

Two steps, the first durable before the second: records of the chunks, by commits of the container's table; then the
segment itself, by one operation of the log, which the caller does. A crash between them leaves records that have no
effect, and the next call resumes. Nothing of the older layout is changed. See docs/rolling-storage.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.errors import AdoptionError, StorageNotRespondingError, UnreadableDataError
from penstock.model.names import (
    KEY_VALUE_TABLE_SUFFIX,
    READER_GROUP_TABLE_SUFFIX,
    SYSTEM_SCOPE,
    has_index_segment,
    is_index_segment,
)
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.container_storage import ContainerStorage
from penstock.segmentstore.layout_settings import LayoutSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import StoredSegment
from penstock.segmentstore.tier2.rolling_layout import RollingLayout, read_layout

logger: logging.Logger = logging.getLogger(__name__)


def is_adoptable(name: str) -> bool:
    """Return whether a segment of that name may be adopted: only segments of a stream's events or bytes.

    Only the older controller knows the segments of transactions and large events; tables and indexes have another
    format.
    """
    scope, _, rest = name.partition("/")
    stream = rest.partition("/")[0]
    return (
        scope != SYSTEM_SCOPE
        and "$" not in name
        and has_index_segment(name)
        and not is_index_segment(name)
        and not stream.endswith((KEY_VALUE_TABLE_SUFFIX, READER_GROUP_TABLE_SUFFIX))
    )


class Adoptions:
    """Adopts segments.

    Attributes:
        progress: called with the number of bytes read.
        given: segments to be adopted under names other than those in their headers; these names are reserved.
        adopted_count: segments adopted by this incarnation.
    """

    def __init__(
        self, chunks: ChunkStorage, state: ContainerState, storage: ContainerStorage, settings: LayoutSettings
    ) -> None:
        self.progress: Callable[[int], None] = lambda count: None
        self.given: dict[str, RollingLayout] = {}
        self.adopted_count: int = 0
        self._chunks = chunks
        self._state = state
        self._storage = storage
        self._settings = settings

    async def adopt(self, name: str) -> StoredSegment | None:
        """Store records of a segment the container has none of; return its state, or None if there is none to adopt.

        The caller makes it a segment of the container, and prevents concurrent creation of the same segment.

        Raises `CorruptionError` when header or chunks are damaged, `AdoptionError`, `StorageError`.
        """
        if not is_adoptable(name) or any(segment.name == name for segment in self._state.metadata.gone_segments()):
            return None
        try:
            try:
                async with asyncio.timeout(self._settings.lookup_timeout_s) as deadline:
                    layout = self.given.get(name) or await read_layout(self._chunks, name)
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                raise StorageNotRespondingError(
                    f"{name}: long-term storage did not answer within {self._settings.lookup_timeout_s:g} s whether an "
                    "older store left it"
                ) from error
            if layout is None:
                return None
            bytes_max = self._settings.adopted_bytes_max
            length = layout.length - layout.start_offset
            if length > bytes_max:
                raise AdoptionError(
                    name,
                    f"it has {length} bytes, and at most {bytes_max} are read during a request "
                    "(segment_store.container.layout.adopted_bytes_max): import it with `penstock storage import`",
                )
            stored = await self._storage.adopt(layout, self.progress)
        except UnreadableDataError as error:
            await self._storage.judge(error)
            raise
        if stored is not None:
            self.adopted_count += 1
            logger.info("imported segment %s of an older store: bytes %d to %d in %d chunks", name,
                        stored.start_offset, stored.length, len(layout.chunks))  # fmt: skip
        return stored
