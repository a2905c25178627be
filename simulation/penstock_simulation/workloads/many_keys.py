"""Clients of a table with many keys: batches, iterations, deltas."""

from __future__ import annotations

import random
from collections.abc import Sequence

from penstock.model.errors import PenstockError, SegmentExistsError, TableKeyMissingError, TableKeyVersionError
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableEntry, TableRemoval, TableUpdate, next_fixed_key
from penstock_simulation.checks.history import GetKey, Invocation, KeyValue, PutKey, RemoveKey
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

#: Length of the keys of fixed-key tables: two bytes of prefix, two of number.
KEY_LENGTH = 4
_BATCH_MAX = 5
_PAGE_MAX = 7


class ManyKeys(Workload):
    """Changes and reads one of the tables that several clients share.

    An iteration counts as a get of each key in its range, of the iteration's duration: a key that it does not return
    was absent at some moment during it. Deltas are applied to a replica.
    """

    #: (table, key, version) -> value, of all clients' acknowledged puts and reads.
    _Values = dict[tuple[str, bytes, int], bytes]

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, table: str, key_length: int, key_count: int,
        values: _Values, mean_gap_s: float,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._table = table
        self._key_length = key_length
        self._keys = sorted(_key(number, key_length) for number in range(key_count))
        self._values = values
        self._mean_gap_s = mean_gap_s
        self._number = 0
        self._versions: dict[bytes, int] = {}
        self._replica: dict[bytes, TableEntry] = {}
        self._position = 0

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_table(self._table, key_length=self._key_length)
        except SegmentExistsError:
            pass  # Another client of the same table has created it.

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await (self.meet() if self.rng.random() < 0.1 else self.rest(self._mean_gap_s))
            kind = self.rng.random()
            try:
                if kind < 0.45:
                    await self._put(self._some_keys())
                elif kind < 0.6:
                    await self._remove(self._some_keys())
                elif kind < 0.75:
                    await self._get(self._some_keys())
                elif kind < 0.9:
                    await self._iterate()
                elif not self._key_length:
                    await self._follow()
            except (TableKeyVersionError, TableKeyMissingError):
                continue
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: {self._table}: {error!r}")
                    return

    async def verify(self) -> None:
        """See `Workload.verify`."""
        await self.world.insist(f"keys of {self._table}", self._get_all)
        await self.world.insist(f"iteration of {self._table}", self._iterate_all)
        if not self._key_length:
            await self.world.insist(f"deltas of {self._table}", self._compare_replica)
        info = await self.world.insist(f"info of {self._table}", self._info)
        if info != len(self._versions):
            self.world.problem(f"{self._table}: it has {len(self._versions)} keys, its info says {info}")

    def _some_keys(self) -> list[bytes]:
        # Mostly neighbours, so that an index changes in few of its pages.
        first = self.rng.randrange(len(self._keys))
        count = self.rng.randint(1, _BATCH_MAX)
        if self.rng.random() < 0.7:
            return self._keys[first : first + count]
        return self.rng.sample(self._keys, count)

    # Writing.

    def _condition(self, key: bytes) -> int:
        known = self._versions.get(key, VERSION_ABSENT)
        return self.rng.choices((known, VERSION_ANY, VERSION_ABSENT), (12, 6, 1))[0]

    async def _put(self, keys: Sequence[bytes]) -> None:
        history, rng = self.world.history, self.rng
        updates: list[TableUpdate] = []
        calls: list[Invocation] = []
        for key in keys:
            self._number += 1
            value = f"{self.name}-{self._number}-".encode() + self.world.padding(rng)
            expected = self._condition(key)
            updates.append(TableUpdate(key, value, expected))
            calls.append(history.invoke(self.name, PutKey(self._table, key, value, expected)))
        try:
            versions = await self.client._segment_client.table_put(self._table, updates)
        except PenstockError as error:
            self._failed(calls, keys, error)
            raise
        for update, call, version in zip(updates, calls, versions, strict=True):
            self._versions[update.key] = version
            history.ok(call, version)
            self._saw(TableEntry(update.key, update.value, version))
        self.world.counts["table batches"] += 1

    async def _remove(self, keys: Sequence[bytes]) -> None:
        history = self.world.history
        removals: list[TableRemoval] = []
        for key in keys:
            known = self._versions.get(key)
            is_loose = known is None or self.rng.random() < 0.3
            removals.append(TableRemoval(key, VERSION_ANY if is_loose or known is None else known))
        calls = [history.invoke(self.name, RemoveKey(self._table, one.key, one.version)) for one in removals]
        try:
            await self.client._segment_client.table_remove(self._table, removals)
        except PenstockError as error:
            self._failed(calls, keys, error)
            raise
        for removal, call in zip(removals, calls, strict=True):
            self._versions.pop(removal.key, None)
            history.ok(call)

    def _failed(self, calls: Sequence[Invocation], keys: Sequence[bytes], error: PenstockError) -> None:
        history = self.world.history
        is_refused = isinstance(error, (TableKeyVersionError, TableKeyMissingError))
        for call, key in zip(calls, keys, strict=True):
            self._versions.pop(key, None)
            if not is_refused:
                history.unknown(call, error)
            elif len(calls) == 1:
                history.refuse(call, error)
            else:
                # The error does not name the key whose condition failed, but none was written.
                history.fail(call, error)

    # Reading.

    async def _get(self, keys: Sequence[bytes]) -> None:
        calls = self._begin_gets(keys)
        try:
            entries = await self.client._segment_client.table_get(self._table, keys)
        except PenstockError as error:
            self._end_gets(calls, error)
            raise
        self._found(calls, {entry.key: entry for entry in entries if entry is not None})

    async def _get_all(self) -> None:
        await self._get(self._keys)

    def _begin_gets(self, keys: Sequence[bytes]) -> dict[bytes, Invocation]:
        return {key: self.world.history.invoke(self.name, GetKey(self._table, key)) for key in keys}

    def _end_gets(self, calls: dict[bytes, Invocation], error: PenstockError) -> None:
        for call in calls.values():
            self.world.history.fail(call, error)

    def _found(self, calls: dict[bytes, Invocation], entries: dict[bytes, TableEntry]) -> None:
        for key, call in calls.items():
            entry = entries.get(key)
            if entry is None:
                self._versions.pop(key, None)
                self.world.history.ok(call)
            else:
                self._versions[key] = entry.version
                self.world.history.ok(call, KeyValue(entry.value, entry.version))
                self._saw(entry)

    async def _iterate(self) -> None:
        """Iterate over the whole table, or in a fixed-key table over a range or the keys of one prefix."""
        first, last = b"", None
        if self._key_length:
            kind = self.rng.random()
            if kind < 0.4:
                prefix = self.rng.choice(self._keys)[:2]
                first, last = prefix + b"\0\0", prefix + b"\xff\xff"
            elif kind < 0.8:
                first, last = sorted(self.rng.choices(self._keys, k=2))
        await self._iterate_range(first, last)

    async def _iterate_all(self) -> None:
        await self._iterate_range(b"", None)

    async def _iterate_range(self, first: bytes, last: bytes | None) -> None:
        segments, limit = self.client._segment_client, self.rng.randint(1, _PAGE_MAX)
        calls = self._begin_gets([key for key in self._keys if key >= first and (last is None or key <= last)])
        found: dict[bytes, TableEntry] = {}
        token, begin = b"", first
        try:
            while True:
                page = await segments.table_entries(self._table, limit=limit, token=token, first=begin, last=last)
                if not page.entries:
                    break
                for entry in page.entries:
                    if entry.key in found or entry.key not in calls:
                        self.world.problem(
                            f"{self.name}: {self._table}: iteration of [{first!r}, {last!r}] shows {entry.key!r} "
                            f"{'twice' if entry.key in found else 'although it is not in there'}"
                        )
                    found[entry.key] = entry
                if len(page.entries) > limit:
                    self.world.problem(
                        f"{self.name}: {self._table}: {len(page.entries)} entries, {limit} were asked for"
                    )
                token = page.token
                if self._key_length:
                    following = next_fixed_key(page.entries[-1].key)
                    if following is None:
                        break
                    begin = following
        except PenstockError as error:
            self._end_gets(calls, error)
            raise
        self._found(calls, found)
        self.world.counts["table iterations"] += 1

    # Deltas.

    async def _follow(self) -> bool:
        """Apply one page of deltas to the replica; return whether it was the last one yet."""
        delta = await self.client._segment_client.table_delta(
            self._table, position=self._position, limit=self.rng.randint(1, 3 * _PAGE_MAX)
        )
        if delta.should_clear:
            self._replica.clear()
        for entry in delta.entries:
            self._saw(entry)
            if entry.key not in self._replica or self._replica[entry.key].version <= entry.version:
                self._replica[entry.key] = entry
        if delta.last_position < self._position:
            self.world.problem(f"{self._table}: delta goes back from {self._position} to {delta.last_position}")
        self._position = delta.last_position
        self.world.counts["table deltas"] += 1
        return delta.reached_end

    async def _compare_replica(self) -> None:
        """Without faults and writes: the deltas must contain all live keys. They do not contain removals."""
        for _ in range(10_000):
            if await self._follow():
                break
        await self._get_all()
        for key, version in self._versions.items():
            entry = self._replica.get(key)
            if entry is None or entry.version != version:
                self.world.problem(
                    f"{self.name}: {self._table}: key {key!r} has version {version}, its deltas say {entry}"
                )

    def _saw(self, entry: TableEntry) -> None:
        """Check that each version of a key has the same value in all answers."""
        known = self._values.setdefault((self._table, entry.key, entry.version), entry.value)
        if known != entry.value:
            self.world.problem(
                f"{self._table}: key {entry.key!r}, version {entry.version}: {entry.value!r} and {known!r}"
            )

    async def _info(self) -> int:
        return (await self.client._segment_client.table_info(self._table)).entry_count


def _key(number: int, key_length: int) -> bytes:
    if not key_length:
        return f"key {number:04d}".encode() + b"." * (number % 7)
    return b"p%c" % (65 + number % 3) + number.to_bytes(KEY_LENGTH - 2, "big")
