"""`BucketSpace`: whether the bucket of a log has space, and a reserve for what frees space when it has none.

A bucket does not report its free space: the refusal of an object shows that a quota is reached, or a disk is full.
Then users' writes are held (`container/space.py`), and the rest continues: truncations, deletions, changes of records.
Those are small objects, but the bucket takes none at all. So some objects without meaning are kept in it, the reserve.
Each refusal deletes one of them, and the refused request is repeated. The bucket has space again when all of them could
be created again: that is the distance between a full bucket and one with space.

Keys: `<prefix>/reserve/<number>`, docs/formats.md. All processes of a log share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.errors import NoSuchObjectError, ObjectExistsError, StorageError, StorageFullError
from penstock.runtime.disk import DiskSpace
from penstock.runtime.objects import ObjectStore
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings

_log = logging.getLogger(__name__)

#: Begin of the keys of the reserve, below the log's prefix.
RESERVE_PREFIX: str = "reserve/"
#: What a bucket that refuses objects seems to have: none free, of very much.
_NONE_FREE = DiskSpace(0, 1 << 62)


class BucketSpace:
    """See the module.

    Attributes:
        is_full: whether the bucket has refused an object since it had space for the whole reserve.
        on_full: called when `is_full` becomes true.
    """

    def __init__(self, objects: ObjectStore, settings: ObjectLogSettings, prefix: str, place: str) -> None:
        self.is_full: bool = False
        self.on_full: Callable[[], None] = lambda: None
        self._objects = objects
        self._settings = settings
        self._place = place
        part_bytes = min(settings.reserve_bytes, settings.batch_bytes_max)
        self._part = bytes(part_bytes)
        count = -(-settings.reserve_bytes // part_bytes) if part_bytes else 0
        start = f"{prefix}/" if prefix else ""
        self._keys = [f"{start}{RESERVE_PREFIX}{number}" for number in range(count)]
        #: Keys of the reserve that may be in the bucket: deleted by the next refusals, the last one first.
        self._left = list(self._keys)
        self._lock = asyncio.Lock()
        #: Loop times of the last refusal, and of the last attempt to create the reserve again.
        self._refused_s = float("-inf")
        self._tried_s = float("-inf")

    async def refused(self, error: StorageFullError) -> bool:
        """Note that the bucket has refused an object, and free a part of the reserve. Return whether there was one.

        Raises nothing of the bucket's: a part whose deletion fails is tried again with the next refusal.
        """
        self._refused_s = asyncio.get_running_loop().time()
        if not self.is_full:
            self.is_full = True
            self._tried_s = self._refused_s  # The next call of `ask` answers at once.
            self.on_full()
            _log.error("%s is full: users' writes wait until it has space: %s", self._place, error)
        async with self._lock:
            while self._left:
                key = self._left[-1]
                try:
                    await self._objects.head(key)
                    await self._objects.delete(key)
                except NoSuchObjectError:
                    self._left.pop()
                    continue
                except StorageError as failed:
                    _log.warning("the reserve in %s cannot be freed: %s", self._place, failed)
                    return False
                self._left.pop()
                _log.warning("%s: %d bytes of the reserve were freed", self._place, len(self._part))
                return True
        return False

    async def fill(self) -> bool:
        """Create what is missing of the reserve. Return whether all of it is there. Raises nothing of the bucket's."""
        async with self._lock:
            for key in self._keys:
                try:
                    await self._objects.head(key)
                except NoSuchObjectError:
                    try:
                        await self._objects.put_new(key, self._part, "reserve")
                    except ObjectExistsError:
                        pass
                    except StorageError as error:
                        _log.info("the reserve in %s is not complete: %s", self._place, error)
                        return False
                except StorageError as error:
                    _log.info("the reserve in %s is unknown: %s", self._place, error)
                    return False
                if key not in self._left:
                    self._left.append(key)
            return True

    async def ask(self) -> DiskSpace | None:
        """Return the free space of the bucket: none while it is full, otherwise unknown.

        At most every `full_retry_s` a full bucket is tried: it has space if it takes the whole reserve.
        """
        if not self.is_full:
            return None
        now_s = asyncio.get_running_loop().time()
        if now_s - self._tried_s >= self._settings.full_retry_s:
            self._tried_s = now_s
            if await self._takes_the_reserve(now_s):
                self.is_full = False
                _log.warning("%s has space again", self._place)
                return None
        return _NONE_FREE

    async def _takes_the_reserve(self, now_s: float) -> bool:
        if self._keys:
            return await self.fill()
        # Without a reserve only the next object shows it.
        return now_s - self._refused_s >= self._settings.full_retry_s
