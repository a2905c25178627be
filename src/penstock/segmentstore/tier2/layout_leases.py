"""`LayoutLeases`: readers that use an earlier layout and may continue for a while although its chunks are unlinked.

A lease is a record, so that the next owner of the container finds it. It has a place in the order in which garbage
tasks are created: chunks unlinked after it are kept until it ends. It ends when its holder releases it, or its time is
over; a new owner restarts its full time, since no clock is shared. Leases cannot be prolonged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.model.errors import InvalidArgumentError, TooManyLeasesError
from penstock.model.segments import VERSION_ABSENT, TableRemoval, TableUpdate
from penstock.segmentstore.container_settings import GarbageSettings
from penstock.segmentstore.tier2.garbage_records import (
    LEASE_PREFIX,
    CreationOrder,
    LayoutLease,
    decode_lease,
    encode_lease,
)
from penstock.segmentstore.tier2.metadata import MetadataTable

_PAGE_LENGTH = 256


class LayoutLeases:
    """Leases of one table, all of them in memory: at most `leases_max`. All methods run on the event loop."""

    def __init__(
        self,
        table: MetadataTable,
        settings: GarbageSettings,
        *,
        next_place: Callable[[], CreationOrder],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._settings = settings
        self._next_place = next_place
        self._wall_clock_ms = wall_clock_ms
        #: When each ends, in the loop's time.
        self._ends_s: dict[CreationOrder, float] = {}
        self._is_loaded = False
        self._load_lock = asyncio.Lock()

    def __len__(self) -> int:
        """Return how many leases are known."""
        return len(self._ends_s)

    @property
    def oldest(self) -> CreationOrder | None:
        """The place from which on everything is held back; None for nothing. Call `load` first."""
        return min(self._ends_s, default=None)

    async def load(self) -> None:
        """Load the leases granted by earlier owners, once. Raises `CorruptionError`."""
        async with self._load_lock:
            if self._is_loaded:
                return
            token = LEASE_PREFIX
            found: dict[CreationOrder, float] = {}
            while entries := (
                await self._table.page(limit=_PAGE_LENGTH, first=token, last=LEASE_PREFIX + b"\xff" * 17)
            ).entries:
                for entry in entries:
                    lease = decode_lease(entry.key, entry.value)
                    found[lease.place] = asyncio.get_running_loop().time() + lease.duration_ms / 1000
                token = entries[-1].key + b"\0"
            self._ends_s = found | self._ends_s
            self._is_loaded = True

    async def grant(self, duration_s: float, holder: str) -> CreationOrder:
        """Grant a lease; it lasts from the return of this call, if not a little shorter. Read the layout after that.

        Raises `TooManyLeasesError`, `InvalidArgumentError` for more than `lease_s_max`. After any other error the lease
        may exist until its time is over.
        """
        if not 0 < duration_s <= self._settings.lease_s_max:
            raise InvalidArgumentError(f"a lease of {duration_s} s: at most {self._settings.lease_s_max} are given")
        await self.load()
        if len(self._ends_s) >= self._settings.leases_max:
            raise TooManyLeasesError(f"{len(self._ends_s)} leases already hold chunks; wait for one to end")
        place = self._next_place()
        lease = LayoutLease(place, self._wall_clock_ms(), round(duration_s * 1000), holder)
        # In memory first, so that nothing is collected meanwhile.
        self._ends_s[place] = asyncio.get_running_loop().time() + duration_s
        await self._table.commit([TableUpdate(place.key(LEASE_PREFIX), encode_lease(lease), VERSION_ABSENT)], [])
        return place

    async def release(self, place: CreationOrder) -> None:
        """Release a lease. No error if it has ended."""
        await self.load()
        self._ends_s.pop(place, None)
        await self._table.commit([], [TableRemoval(place.key(LEASE_PREFIX))])

    async def end_due(self) -> None:
        """End expired leases."""
        await self.load()
        now_s = asyncio.get_running_loop().time()
        ended = [place for place, end_s in self._ends_s.items() if end_s <= now_s]
        if ended:
            for place in ended:
                del self._ends_s[place]
            await self._table.commit([], [TableRemoval(place.key(LEASE_PREFIX)) for place in ended])
