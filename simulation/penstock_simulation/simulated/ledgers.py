"""`SimulatedLedgers`: the twin of `penstock.runtime.bookkeeper`: a process's client of `SimulatedBookies`.

It does what the official client does: entries go to all bookies of the ensemble and are confirmed in order, a bookie is
replaced only when an entry could not be confirmed otherwise, recovery fences first and reads on to the end. Entries
that were given up may be stored later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from penstock.model.errors.ledgers import LedgerError, LedgerMetadataError, ledger_error
from penstock.runtime.ledgers import LedgerEntry, LedgerObserver, LedgerQuorum
from penstock_simulation.simulated.bookies import (
    NO_ENTRY,
    OK,
    Bookie,
    LedgerMetadata,
    LedgerState,
    SimulatedBookies,
    worst,
)

T = TypeVar("T")


class SimulatedLedgers:
    """See the module.

    Attributes:
        cut: bookies that this process does not reach. Requests are lost without an error.
        is_metadata_cut: it does not reach the metadata.
        is_dead: the process has ended: nothing it has not sent yet is sent, and it receives nothing.
        paused_until_s: the process is suspended until this loop time.
        fail_next: codes with which the next appends fail, in order, after their bookies have them.
    """

    def __init__(self, cluster: SimulatedBookies, rng: random.Random) -> None:
        self.cluster: SimulatedBookies = cluster
        self.rng: random.Random = rng
        self.cut: set[str] = set()
        self.is_metadata_cut: bool = False
        self.is_dead: bool = False
        self.paused_until_s: float = 0.0
        self.fail_next: list[int] = []
        self.writers: list[SimulatedWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> str:
        """See `LedgerStore.place`."""
        return "bookkeeper://simulated/ledgers"

    async def start(self) -> None:
        """See `LedgerStore.start`."""

    def heal(self) -> None:
        """End what separates this process from the cluster."""
        self.cut.clear()
        self.is_metadata_cut = False
        self.paused_until_s = 0.0

    # -- messages ---------------------------------------------------------------------------------------------------

    def latency_s(self) -> float:
        """Return the time of a message in one direction."""
        settings = self.cluster.settings
        return self.rng.uniform(settings.latency_s_min, settings.latency_s_max)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a part of the client in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_while_paused(self) -> None:
        """Return when the process runs; never if it is dead."""
        loop = asyncio.get_running_loop()
        while self.is_dead or self.paused_until_s > loop.time():
            if self.is_dead:
                await loop.create_future()
            await asyncio.sleep(self.paused_until_s - loop.time())

    async def ask(self, name: str, effect: Callable[[Bookie], T]) -> T:
        """Send a request to a bookie. Raises `LedgerSilentError`; then it may be handled later."""
        settings, bookie = self.cluster.settings, self.cluster.bookies[name]
        await self.wait_while_paused()
        await asyncio.sleep(self.latency_s() + bookie.delay_s)
        if not bookie.is_up:
            raise ledger_error(-8, f"{name} refuses connections")
        if name in self.cut or bookie.is_held:
            await asyncio.sleep(settings.request_timeout_s)
            raise ledger_error(-23, f"{name} does not answer")
        result = effect(bookie)
        await asyncio.sleep(self.latency_s())
        await self.wait_while_paused()
        return result

    async def metadata_call(self, effect: Callable[[], T], *, is_change: bool = False) -> T:
        """Send a request to the metadata. Raises `LedgerMetadataError`; then a change may have been made."""
        cluster = self.cluster
        await self.wait_while_paused()
        await asyncio.sleep(self.latency_s())
        if cluster.is_metadata_away or self.is_metadata_cut:
            await asyncio.sleep(cluster.settings.request_timeout_s)
            raise ledger_error(-9, "the metadata are not reached")
        result = effect()
        await asyncio.sleep(self.latency_s())
        await self.wait_while_paused()
        if is_change and self.rng.random() < cluster.settings.lost_reply_rate:
            raise ledger_error(-9, "the answer was lost")
        return result

    # -- ledgers ----------------------------------------------------------------------------------------------------

    async def bookies(self) -> Collection[str]:
        """See `LedgerStore.bookies`."""
        return await self.metadata_call(self.cluster.registered)

    async def reach(self, bookies: Collection[str]) -> Collection[str]:
        """See `LedgerStore.reach`. The kernel of a bookie that is held accepts connections."""
        await self.wait_while_paused()
        await asyncio.sleep(2 * self.latency_s())
        return [name for name in bookies if name not in self.cut and self.cluster.bookies[name].is_up]

    async def create(
        self, quorum: LedgerQuorum, labels: Mapping[str, bytes], observer: LedgerObserver
    ) -> SimulatedWriter:
        """See `LedgerStore.create`."""
        made = await self.metadata_call(lambda: self.cluster.create(quorum, labels), is_change=True)
        self.writers.append(SimulatedWriter(self, made, observer))
        return self.writers[-1]

    async def open(self, ledger_id: int, *, is_fencing: bool) -> SimulatedReader:
        """See `LedgerStore.open`."""
        while True:
            seen = await self.metadata_call(lambda: self.cluster.metadata(ledger_id))
            if seen.state is LedgerState.CLOSED:
                return SimulatedReader(self, seen, seen.last_entry, seen.length_bytes)
            if not is_fencing:
                lac, _ = await self._last_confirmed(seen, is_fencing=False)
                return SimulatedReader(self, seen, lac, self._length(seen, lac))
            try:
                if seen.state is LedgerState.OPEN:
                    seen = await self._changed(seen, lambda each: replace(each, state=LedgerState.IN_RECOVERY))
                last = await self._recovered_end(seen)
                length = self._length(seen, last)
                await self._changed(
                    seen,
                    lambda each, last=last, length=length: replace(  # type: ignore[misc]
                        each, state=LedgerState.CLOSED, last_entry=last, length_bytes=length
                    ),
                )
            except LedgerMetadataError as error:
                if error.code != -17:
                    raise

    async def _changed(
        self, seen: LedgerMetadata, change: Callable[[LedgerMetadata], LedgerMetadata]
    ) -> LedgerMetadata:
        return await self.metadata_call(lambda: self.cluster.change(seen, change), is_change=True)

    async def _recovered_end(self, seen: LedgerMetadata) -> int:
        """Fence the ledger, and return its last entry, which enough bookies have then."""
        lac, answers = await self._last_confirmed(seen, is_fencing=True)
        enough = seen.quorum.ensemble - seen.quorum.ack + 1
        if answers < enough:
            raise ledger_error(-10, f"ledger {seen.ledger_id}: {answers} bookies answer, and {enough} are needed")
        entry = max(lac, seen.ensembles[-1][0] - 1) + 1
        ensemble = seen.ensembles[-1][1]
        while True:
            read = [
                self.ask(name, lambda bookie, entry=entry: bookie.read(seen.ledger_id, entry, is_fencing=True))  # type: ignore[misc]
                for name in ensemble
            ]
            found = await asyncio.gather(*read, return_exceptions=True)
            data = next((each for each in found if isinstance(each, bytes)), None)
            if data is None:
                if sum(each == NO_ENTRY for each in found) >= enough:
                    return entry - 1
                raise ledger_error(-10, f"ledger {seen.ledger_id}: it is not known whether entry {entry} exists")
            write = [
                self.ask(
                    name,
                    lambda bookie, entry=entry, data=data: bookie.add(  # type: ignore[misc]
                        seen.ledger_id, entry, data, entry - 1, is_recovery=True
                    ),
                )
                for name in ensemble
            ]
            written = await asyncio.gather(*write, return_exceptions=True)
            if sum(each == OK for each in written) < seen.quorum.ack:
                raise ledger_error(-10, f"ledger {seen.ledger_id}: entry {entry} could not be stored on enough bookies")
            entry += 1

    async def _last_confirmed(self, seen: LedgerMetadata, *, is_fencing: bool) -> tuple[int, int]:
        """Return the last confirmed entry that bookies know, and how many have answered."""
        asked = [
            self.ask(name, lambda bookie: bookie.last_confirmed(seen.ledger_id, is_fencing=is_fencing))
            for name in seen.ensembles[-1][1]
        ]
        found = [each for each in await asyncio.gather(*asked, return_exceptions=True) if isinstance(each, int)]
        return max(found, default=-1), len(found)

    def _length(self, seen: LedgerMetadata, last: int) -> int:
        entries: dict[int, int] = {}
        for name in seen.all_bookies:
            for entry, (data, _) in self.cluster.bookies[name].entries.get(seen.ledger_id, {}).items():
                entries[entry] = len(data)
        return sum(length for entry, length in entries.items() if entry <= last)

    async def delete(self, ledger_id: int) -> None:
        """See `LedgerStore.delete`."""
        await self.metadata_call(lambda: self.cluster.delete(ledger_id), is_change=True)

    async def ledger_ids(self) -> AsyncIterator[int]:
        """See `LedgerStore.ledger_ids`."""
        for ledger_id in await self.metadata_call(lambda: sorted(self.cluster.ledgers)):
            yield ledger_id

    async def labels(self, ledger_id: int) -> Mapping[str, bytes]:
        """See `LedgerStore.labels`."""
        return (await self.metadata_call(lambda: self.cluster.metadata(ledger_id))).labels

    async def close(self) -> None:
        """See `LedgerStore.close`."""
        for writer in self.writers:
            writer.end()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SimulatedWriter:
    """`LedgerWriter` of a ledger in `SimulatedBookies`."""

    def __init__(self, client: SimulatedLedgers, metadata: LedgerMetadata, observer: LedgerObserver) -> None:
        self._client = client
        self._metadata = metadata
        self._observer = observer
        self._ensemble = list(metadata.ensembles[-1][1])
        self._lost: set[str] = set()
        self._entries: dict[int, bytes] = {}
        self._acks: dict[int, set[str]] = {}
        self._next = 0
        self._last_confirmed = -1
        self._arrivals: dict[str, float] = {}
        self._is_over = False
        self._is_changing = False
        self._to_confirm = -1
        #: From this entry on nothing is answered, and nothing fails.
        is_stuck = client.rng.random() < client.cluster.settings.stuck_rate
        self.stuck_from: int | None = client.rng.randint(0, 20) if is_stuck else None

    @property
    def ledger_id(self) -> int:
        """See `LedgerWriter.ledger_id`."""
        return self._metadata.ledger_id

    @property
    def quorum(self) -> LedgerQuorum:
        """See `LedgerWriter.quorum`."""
        return self._metadata.quorum

    @property
    def bookies(self) -> Collection[str]:
        """See `LedgerWriter.bookies`."""
        return tuple(self._ensemble)

    def append(self, entry: LedgerEntry) -> None:
        """See `LedgerWriter.append`."""
        if self._is_over:
            raise ledger_error(-11, f"ledger {self.ledger_id} is closed")
        number = self._next
        self._next += 1
        self._entries[number] = b"".join(entry.parts())
        self._acks[number] = set()
        for name in self._ensemble:
            self._send(name, number)

    def end(self) -> None:
        """Append no more, and report nothing."""
        self._is_over = True

    def _send(self, name: str, number: int) -> None:
        """Have an entry arrive at a bookie, after those sent before, as on one connection."""
        client = self._client
        if client.is_dead:
            return
        loop = asyncio.get_running_loop()
        bookie = client.cluster.bookies[name]
        starts_s = max(loop.time(), client.paused_until_s)
        arrives_s = max(self._arrivals.get(name, 0.0), starts_s + client.latency_s() + bookie.delay_s)
        self._arrivals[name] = arrives_s
        loop.call_at(arrives_s, self._arrive, name, number, self._entries[number], self._last_confirmed)
        loop.call_at(starts_s + client.cluster.settings.add_timeout_s, self._timed_out, name, number)

    def _arrive(self, name: str, number: int, data: bytes, lac: int) -> None:
        client, bookie = self._client, self._client.cluster.bookies[name]
        loop = asyncio.get_running_loop()
        if not bookie.is_up:
            loop.call_later(client.latency_s(), self._answered, name, number, -8)
            return
        if name in client.cut or bookie.is_held:
            return
        code = bookie.add(self.ledger_id, number, data, lac)
        loop.call_later(client.latency_s(), self._answered, name, number, code)

    def _answered(self, name: str, number: int, code: int) -> None:
        client, loop = self._client, asyncio.get_running_loop()
        if self._is_over or client.is_dead or (self.stuck_from is not None and number >= self.stuck_from):
            return
        if client.paused_until_s > loop.time():
            loop.call_at(client.paused_until_s, self._answered, name, number, code)
            return
        if name in client.cut:
            return
        if code == OK:
            if number in self._acks and name in self._ensemble:
                self._acks[number].add(name)
                self._confirm()
        elif code == -101:
            self._fail(-101, f"ledger {self.ledger_id} is fenced")
        else:
            self._lose(name)

    def _confirm(self) -> None:
        last = self._last_confirmed
        while len(self._acks.get(last + 1, ())) >= self.quorum.ack:
            last += 1
            if self._client.fail_next:
                self._fail(self._client.fail_next.pop(0), "a fault of the test")
                return
            del self._acks[last], self._entries[last]
        if last > self._last_confirmed:
            self._last_confirmed = last
            self._observer.confirmed(last)

    def _timed_out(self, name: str, number: int) -> None:
        is_open = number in self._acks and name not in self._acks[number] and name in self._ensemble
        is_stuck = self.stuck_from is not None and number >= self.stuck_from
        if is_open and not is_stuck and not self._is_over and not self._client.is_dead:
            self._lose(name)

    def _lose(self, name: str) -> None:
        """Note that a bookie fails; replace the lost ones if an entry cannot be confirmed without."""
        if name not in self._ensemble or name in self._lost:
            return
        self._lost.add(name)
        if len(self._ensemble) - len(self._lost) < self.quorum.ack and not self._is_changing:
            self._is_changing = True
            self._client.spawn(self._change_ensemble())

    async def _change_ensemble(self) -> None:
        client = self._client
        try:
            registered = await client.bookies()
            lost = [name for name in self._ensemble if name in self._lost]
            spare = [name for name in registered if name not in self._ensemble and name not in self._lost]
            if len(spare) < len(lost):
                self._fail(-6, f"ledger {self.ledger_id} has lost {', '.join(lost)}, and {len(spare)} can replace them")
                return
            chosen = dict(zip(lost, client.rng.sample(spare, len(lost)), strict=True))
            ensemble = tuple(chosen.get(name, name) for name in self._ensemble)
            first = self._last_confirmed + 1
            kept = tuple(each for each in self._metadata.ensembles if each[0] < first)
            seen = self._metadata
            self._metadata = await client.metadata_call(
                lambda: client.cluster.change(seen, lambda each: replace(each, ensembles=(*kept, (first, ensemble)))),
                is_change=True,
            )
        except LedgerError as error:
            # Another client has changed the metadata: it recovers the ledger.
            self._fail(error.code if error.code != -17 else -11, str(error))
            return
        finally:
            self._is_changing = False
        self._ensemble = list(ensemble)
        self._lost.clear()
        for number in sorted(self._entries):
            self._acks[number] &= set(ensemble)
            for name in chosen.values():
                self._send(name, number)

    def _fail(self, code: int, message: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._observer.failed(ledger_error(code, message))

    async def close(self) -> None:
        """See `LedgerWriter.close`."""
        client, last = self._client, self._last_confirmed
        if not self._is_over:
            self._is_over = True
            if self._acks:
                self._observer.failed(ledger_error(-11, f"ledger {self.ledger_id} was closed"))
        length = client._length(self._metadata, last)

        def closed() -> None:
            seen = client.cluster.metadata(self.ledger_id)
            if seen.state is LedgerState.CLOSED:
                if seen.last_entry != last:
                    raise ledger_error(-17, f"ledger {self.ledger_id} was closed at {seen.last_entry}, not at {last}")
                return
            client.cluster.change(
                seen, lambda each: replace(each, state=LedgerState.CLOSED, last_entry=last, length_bytes=length)
            )

        await client.metadata_call(closed, is_change=True)


class SimulatedReader:
    """`LedgerReader` of a ledger in `SimulatedBookies`."""

    def __init__(self, client: SimulatedLedgers, metadata: LedgerMetadata, last_entry: int, length_bytes: int) -> None:
        self.ledger_id: int = metadata.ledger_id
        self.labels: Mapping[str, bytes] = metadata.labels
        self.last_entry: int = last_entry
        self.length_bytes: int = length_bytes
        self.bookies: Collection[str] = metadata.all_bookies
        self._client = client
        self._metadata = metadata

    async def read(self, first: int, last: int) -> Sequence[bytes]:
        """See `LedgerReader.read`."""
        if not 0 <= first <= last <= self.last_entry:
            raise ledger_error(
                -14, f"entries {first} to {last} of ledger {self.ledger_id}, which has {self.last_entry}"
            )
        return [await self._entry(entry) for entry in range(first, last + 1)]

    async def _entry(self, entry: int) -> bytes:
        codes = []
        for name in self._metadata.bookies_of(entry):
            try:
                found = await self._client.ask(name, lambda bookie: bookie.read(self.ledger_id, entry))
            except LedgerError as error:
                codes.append(error.code)
                continue
            if isinstance(found, bytes):
                return found
            codes.append(found)
        raise worst(codes, f"entry {entry} of ledger {self.ledger_id}")

    async def read_unconfirmed(self, entry: int) -> bytes | None:
        """See `LedgerReader.read_unconfirmed`."""
        try:
            return await self._entry(entry)
        except LedgerError:
            return None

    async def close(self) -> None:
        """See `LedgerReader.close`."""
