"""`GroupHeartbeats`: heartbeats of a group's readers while their positions do not change.

Each reader has its own entry ``alive/<reader>`` in the group's table: its incarnation and a count. It is written
unconditionally, so there is no contention, and the shared record does not change. A late request restores an older
value, which counts as one more sign of life and delays an expulsion by a time-out.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from penstock.client.common.deadline import within
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import NoSuchSegmentError
from penstock.model.segments import VERSION_ANY, TableEntry, TableRemoval, TableUpdate

_PREFIX = b"alive/"
_PAGE_KEYS = 1000


def heartbeat_key(reader: str) -> bytes:
    """Return the key of a reader's entry."""
    return _PREFIX + reader.encode()


class GroupHeartbeats:
    """See the module. Shared by the readers that one client has in a group."""

    def __init__(self, cluster: Cluster, table: str) -> None:
        self._cluster = cluster
        self._table = table
        #: The values read last, and when their request was sent.
        self._found: dict[str, tuple[bytes, float]] = {}
        self._count = 0

    def stale(self, readers: Iterable[str], oldest_s: float) -> list[str]:
        """Return those of `readers` whose entry was not read since `oldest_s`, on the loop's clock."""
        return [name for name in readers if name not in self._found or self._found[name][1] < oldest_s]

    def take(self, readers: Sequence[str], entries: Sequence[TableEntry | None], asked_s: float) -> None:
        """Add entries that were requested at `asked_s`."""
        for name, entry in zip(readers, entries, strict=True):
            self._found[name] = b"" if entry is None else entry.value, asked_s

    def signs(self, readers: Iterable[str]) -> Mapping[str, bytes]:
        """Return the entries of readers as last read; empty for a reader without one."""
        return {name: self._found[name][0] if name in self._found else b"" for name in readers}

    def forget_absent(self, readers: Container[str], others: Container[str]) -> None:
        """Drop the cached entries of readers that are neither in `readers` nor in `others`."""
        # No set of all readers is made: few entries are cached, and this is part of each poll.
        for name in [name for name in self._found if name not in readers and name not in others]:
            del self._found[name]

    async def show(self, readers: Mapping[str, str], limit_s: float) -> None:
        """Write a heartbeat of each reader (name -> incarnation) within `limit_s`, in one request if it has room.

        Raises `NoSuchSegmentError` if the group was deleted.
        """
        self._count += 1
        updates = [
            TableUpdate(heartbeat_key(name), f"{incarnation} {self._count}".encode(), VERSION_ANY)
            for name, incarnation in readers.items()
        ]
        count_max = self._cluster.settings.table_batch_key_count_max
        with within(f"show that {len(readers)} readers are alive", limit_s, "a share of reader_timeout_s"):
            for start in range(0, len(updates), count_max):
                await self._cluster.segments.table_put(self._table, updates[start : start + count_max])

    async def forget(self, readers: Collection[str]) -> None:
        """Delete the entries of readers. The entry of a live reader is restored by its next heartbeat."""
        removals = [TableRemoval(heartbeat_key(name), VERSION_ANY) for name in readers]
        count_max = self._cluster.settings.table_batch_key_count_max
        for start in range(0, len(removals), count_max):
            try:
                await self._cluster.segments.table_remove(self._table, removals[start : start + count_max])
            except NoSuchSegmentError:
                return  # The group was deleted with its entries.

    async def sweep(self, readers: Collection[str]) -> None:
        """Delete the entries of all but `readers`: of those that died, or whose entry arrived late."""
        left: list[str] = []
        token = b""
        while True:
            page = await self._cluster.segments.table_keys(self._table, limit=_PAGE_KEYS, token=token)
            names = [key[len(_PREFIX) :].decode(errors="replace") for key, _ in page.keys if key.startswith(_PREFIX)]
            left += [name for name in names if name not in readers]
            if not page.keys or page.token == token:
                break
            token = page.token
        await self.forget(left)
