"""`StoreHost`: the parent of one or several segment stores of a cluster, each in a child process.

A child that ends is started again under the same name, with a new incarnation. The parent has waited for its end, so it
records the proof in ``ends`` and deletes the child's nodes: other stores take over at once, without a wait for its
session and its lease. The start of a store takes a second of CPU or more, which the others need first if they share its
machine: a child begins after ``take_over_s`` if others are live.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.model.cluster_nodes import HOSTS_PATH, Endpoint, split_host_node_name
from penstock.model.errors import ProtocolError
from penstock.model.errors.coordination import CoordinationError
from penstock.runtime.coordination import Session
from penstock.runtime.kept_session import KeptSession
from penstock.runtime.pacing import GrowingDelay
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.settings import settings_values
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.cluster.ends import write_end
from penstock.server.cluster.identity import cluster_settings, read_identity, wait_for_session
from penstock.server.cluster.machine import HostedProcess, LocalMachine, Machine
from penstock.server.cluster.messages import MemberOrder, MemberReady, decode_from_member
from penstock.server.cluster.store import store_names
from penstock.server.errors import StoreProcessError, StoreRefusedError
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.messages import Refusal

logger: logging.Logger = logging.getLogger(__name__)

#: How long a stop waits until the ends of the children are recorded.
_RECORD_S = 3.0
#: Pause between checks whether others are live, while a child is not started yet.
_OTHERS_POLL_S = 0.25
#: Added to the time that children may take to drain and stop, before they are killed.
_STOP_SLACK_S = 5.0


class HostedStore:
    """One segment store: its name, and its current process.

    Attributes:
        number: in this parent, from 0.
        name: in the cluster.
        incarnation: of its process; empty before the first start.
        endpoints: given to clients, by listener; empty while it is not ready.
        pid: of its process; 0 before the first start.
        is_heard: whether it has sent a sign of life since the last check.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.incarnation: str = ""
        self.endpoints: dict[str, Endpoint] = {}
        self.pid: int = 0
        self.is_heard: bool = False
        self.process: HostedProcess | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.code is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; no effect if there is no process."""
        if self.process is not None:
            self.process.signal(number)


class StoreHost:
    """See the module. `settings`: with the place of the cluster. `runtime`, `machine`: the real ones by default.

    Attributes:
        stores: by number.
    """

    def __init__(
        self, settings: StandaloneSettings, runtime: Runtime | None = None, machine: Machine | None = None
    ) -> None:
        self.settings: StandaloneSettings = settings
        self._machine = machine or LocalMachine()
        self.runtime: Runtime = runtime if runtime is not None else real_runtime(settings.blocking_thread_count_max)
        name = settings.cluster.name or self._machine.name
        self.stores: Sequence[HostedStore] = [
            HostedStore(number, each) for number, each in enumerate(store_names(name, settings.segment_stores))
        ]
        self._watch = settings.store_processes
        self._child_settings: dict[str, object] = {}
        self._cluster_id = ""
        self._keepers: list[asyncio.Task[None]] = []
        self._records: set[asyncio.Task[None]] = set()
        self._sessions: KeptSession
        self._is_stopping = False
        self._stops = AsyncExitStack()

    async def start(self) -> None:
        """Find the cluster, start all stores, and wait until they are announced in it.

        Raises `CoordinationError`, `ClusterMismatchError`, `StoreProcessError`; nothing is left running then.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self.settings
        self._stops.push_async_callback(self.runtime.work.close)
        service = self._machine.coordination(settings.cluster)
        session = await wait_for_session(service, settings.cluster.connect_timeout_s)
        try:
            identity = await read_identity(session, service.place)
        finally:
            await session.close()
        self.settings = settings = cluster_settings(settings, identity, service.place)
        self._cluster_id = identity.cluster_id
        cache = settings.segment_store.cache
        share = replace(cache, bytes_max=cache.bytes_max // len(self.stores))
        self._child_settings = settings_values(
            replace(settings, segment_store=replace(settings.segment_store, cache=share), segment_stores=1)
        )
        loop = asyncio.get_running_loop()
        self._sessions = KeptSession(service, "the parent of segment stores")
        keeper = loop.create_task(self._sessions.run())
        self._stops.push_async_callback(cancel_and_wait, keeper)
        begun = await asyncio.gather(*(self._begin(store) for store in self.stores), return_exceptions=True)
        for result in begun:
            if isinstance(result, BaseException):
                raise result
        self._keepers = [loop.create_task(self._keep(store)) for store in self.stores]

    async def _begin(self, store: HostedStore) -> None:
        """Start a process; return when it is announced. Raises `StoreProcessError`; its end is recorded then."""
        store.incarnation = self.runtime.random_id().hex()
        store.endpoints = {}
        order = MemberOrder(
            parent_pid=os.getpid(),
            name=store.name,
            incarnation=store.incarnation,
            port_offset=store.number,
            settings=self._child_settings,
            cluster_id=self._cluster_id,
        )
        process = store.process = await self._machine.begin_store(order)
        store.pid = process.pid
        try:
            message = await self._next_message(store)
            match message:
                case MemberReady():
                    store.endpoints = message.endpoints
                case Refusal():
                    raise StoreRefusedError(store.number, message.kind, message.message)
                case _:
                    raise StoreProcessError(
                        f"segment store {store.name} exited before it was ready; see its log for the reason"
                    )
        except BaseException:
            await asyncio.shield(self._ended(store, process))
            self._record_end(store)
            raise

    async def _ended(self, store: HostedStore, process: HostedProcess) -> None:
        """End a process that is not ready: it may have announced itself already, and releases what it holds."""
        store.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.settings.stop_timeout_s):
                await process.wait()
        except TimeoutError:
            logger.warning("segment store %s (pid %d) does not end: killing it", store.name, store.pid)
            store.signal(signal.SIGKILL)
            await process.wait()

    async def _next_message(self, store: HostedStore) -> object:
        """Return the next message; None at the end of the process."""
        assert store.process is not None
        line = await store.process.next_line()
        return decode_from_member(line) if line.endswith(b"\n") else None

    async def _keep(self, store: HostedStore) -> None:
        """Follow a store's running process, and start another one when it has ended."""
        loop = asyncio.get_running_loop()
        delay = GrowingDelay(self._watch.restart_delay_s, self._watch.restart_delay_s_max)
        while True:
            began_s = loop.time()
            await self._follow(store)
            assert store.process is not None
            code = await store.process.wait()
            store.endpoints = {}
            self._record_end(store)
            if self._is_stopping:
                return
            logger.warning("segment store %s (pid %d) exited with code %d: restarting it", store.name, store.pid, code)
            if loop.time() - began_s > self._watch.restart_window_s:
                delay.reset()
            await self._leave_time_to_others()
            while not store.endpoints and not self._is_stopping:
                await delay.sleep()
                await self._begin_again(store)

    async def _leave_time_to_others(self) -> None:
        """Wait `take_over_s`; no longer than others are live, and their coordination service shows it."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.settings.cluster.member.take_over_s
        while loop.time() < end_s and not self._is_stopping:
            if not await self._has_others(end_s):
                return
            await asyncio.sleep(min(_OTHERS_POLL_S, max(end_s - loop.time(), 0.0)))

    async def _has_others(self, until_s: float) -> bool:
        """Return whether a store is live besides those of this parent that do not run. False if it is not known."""
        session = self._sessions.store
        if session is None or session.session is not Session.CONNECTED:
            return False
        try:
            async with asyncio.timeout_at(until_s):
                nodes = (await session.children(HOSTS_PATH)).names
                live = {split_host_node_name(node)[0] for node in nodes}
        except (TimeoutError, CoordinationError):
            return False
        return not live <= {store.name for store in self.stores if not store.is_running}

    async def _begin_again(self, store: HostedStore) -> None:
        """Start a process in the place of one that has ended, unless this one stops."""
        if self._is_stopping:
            return
        try:
            await self._begin(store)
        except (StoreProcessError, ProtocolError, OSError) as error:
            logger.warning("%s", error)

    async def _follow(self, store: HostedStore) -> None:
        """Read messages until the process ends; kill it if it sends none for `health_timeout_s`."""
        checking = asyncio.get_running_loop().create_task(self._check(store))
        try:
            while await self._next_message(store) is not None:
                store.is_heard = True
        except ProtocolError as error:
            logger.warning("killing segment store %s: %s", store.name, error)
            store.signal(signal.SIGKILL)
        finally:
            checking.cancel()

    async def _check(self, store: HostedStore) -> None:
        """Count rounds without a message, instead of time: after a pause of this process, no child counts as hung."""
        silent_s = 0.0
        while True:
            store.is_heard = False
            await asyncio.sleep(self._watch.health_interval_s)
            silent_s = 0.0 if store.is_heard else silent_s + self._watch.health_interval_s
            if silent_s >= self._watch.health_timeout_s:
                logger.warning("segment store %s has not answered for %g s: killing it", store.name, silent_s)
                store.signal(signal.SIGKILL)
                return

    def _record_end(self, store: HostedStore) -> None:
        task = asyncio.get_running_loop().create_task(self._recorded(store.name, store.incarnation))
        self._records.add(task)
        task.add_done_callback(self._records.discard)

    async def _recorded(self, name: str, incarnation: str) -> None:
        """Record the end of a process, as soon as the coordination service is reached."""
        while True:
            session = await self._sessions.connected()
            try:
                await write_end(session, name, incarnation, by="parent")
            except CoordinationError as error:
                logger.info("the end of segment store %s is not recorded yet: %s", name, error)
                await asyncio.sleep(self._watch.health_interval_s)
            else:
                return

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all stores. A second SIGTERM ends their drain."""
        for store in self.stores:
            store.signal(number)

    async def stop(self) -> None:
        """Drain and stop all stores, one after the other; kill what takes too long.

        Raises `StoreProcessError` if one has not stopped cleanly.
        """
        self._is_stopping = True
        member = self.settings.cluster.member
        limit_s = member.drain_timeout_s + member.stop_timeout_s + self.settings.stop_timeout_s + _STOP_SLACK_S
        codes: dict[str, int | None] = {}
        try:
            # One that is being started again is stopped, too: it may hold containers before it is ready.
            ready = {store.name for store in self.stores if store.endpoints}
            running = {store.name: store.process for store in self.stores if store.is_running and store.process}
            self.signal_all(signal.SIGTERM)
            ends = [asyncio.ensure_future(process.wait()) for process in running.values()]
            if ends:
                await asyncio.wait(ends, timeout=limit_s)
            codes = {
                name: process.code
                for name, process in running.items()
                # A signal may end it before it has handlers.
                if name in ready or process.code != -signal.SIGTERM
            }
        finally:
            self.signal_all(signal.SIGKILL)
            for task in self._keepers:
                if not task.done() and all(store.process is None for store in self.stores):
                    task.cancel()
            if self._keepers:
                await asyncio.wait(self._keepers, timeout=_STOP_SLACK_S)
            await cancel_and_wait(*self._keepers)
            if self._records:
                await asyncio.wait(self._records, timeout=_RECORD_S)
            await cancel_and_wait(*self._records)
            await self._stops.aclose()
        if self._keepers and any(code != 0 for code in codes.values()):
            raise StoreProcessError(f"segment stores did not shut down cleanly: exit codes {codes}")
