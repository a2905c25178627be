"""`StoreProcesses`: runs the segment stores of a server in child processes, and distributes the containers.

The home of container ``i`` is store ``i % n``. A process that exits is restarted on the same port, after a pause that
grows. One that exits repeatedly, or hangs, is unavailable: its containers move to the other stores, and return after it
has been healthy for a while. A container is given to a store only when no other process may still hold it: that
process has released it, or has exited. (The exception is a hung process that must not be killed: the log fences it.)

Source: segment-store R1.4 to R1.10.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.controller.locator import AssignedLocator
from penstock.model.assignments import share_out
from penstock.model.errors import ProtocolError
from penstock.runtime.pacing import GrowingDelay
from penstock.runtime.runtime import Runtime
from penstock.runtime.settings import settings_values
from penstock.server.errors import StoreProcessError, StoreRefusedError
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.messages import (
    LINE_BYTES_MAX,
    Failure,
    FromChild,
    HealthCheck,
    Order,
    Ready,
    Refusal,
    State,
    decode_from_child,
    encode_message,
)

logger: logging.Logger = logging.getLogger(__name__)

_SOURCES = str(Path(__file__).parents[1])
#: Share of the stop timeout for the children; the rest is for the later steps of the stop.
_STOP_SHARE = 0.8


class StoreProcess:
    """One segment store: its current process and its last known state.

    Attributes:
        port: where it listens; 0 before the first start.
        is_up: it has reported that it is ready and has not exited.
        is_available: containers may be assigned to it.
        granted: ids of the containers of the last assignment sent to it.
        held: ids of the containers that it may have opened.
        failures: as last reported.
        running: ids of the containers that serve, as last reported.
        storage_problem, full_disk: see `State`, as last reported.
        silent_s: how long it has not answered a health check; 0 while it answers.
    """

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.is_up: bool = False
        self.is_available = True
        self.granted: frozenset[int] = frozenset()
        self.held: frozenset[int] = frozenset()
        self.failures: dict[int, Failure] = {}
        self.running: frozenset[int] = frozenset()
        self.storage_problem: str | None = None
        self.full_disk: str | None = None
        self.silent_s: float = 0.0
        #: The owner name under which its process opens logs; empty while there is none.
        self.owner: str = ""
        #: The socket that passes a data directory lock taken again to the process.
        self._lock_socket: socket.socket | None = None
        self._reader: asyncio.StreamReader
        self._pipe: asyncio.BaseTransport
        self._asked = 0
        self._answered = 0

    @property
    def pid(self) -> int:
        """The process id, 0 before the first start."""
        return 0 if self.process is None else self.process.pid

    async def spawn(self, order: Order) -> None:
        """Start a process and send its order, with `lock_socket` filled in. Raises `StoreProcessError`."""
        self._asked = self._answered = 0
        self.failures = {}
        self.granted = self.held = frozenset(order.containers)
        self.owner = order.owner
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), _SOURCES)))
        own_socket, child_socket = socket.socketpair()
        own_socket.setblocking(False)
        self._lock_socket = own_socket
        order = msgspec.structs.replace(order, lock_socket=child_socket.fileno())
        try:
            # A new interpreter and not a fork, so that it inherits no threads and sockets. -P: nothing is imported from
            # the current directory.
            self.process = subprocess.Popen(  # noqa: ASYNC220  # some ms, rarely; a loop's own forks with all threads
                [sys.executable, "-P", "-m", "penstock", "store-child", str(self.number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(order.lock_descriptor, order.lock_socket),
                env=environment,
                bufsize=0,
                # Ctrl-C in a terminal reaches this process only, which then stops the children cleanly.
                process_group=0,
            )
        except OSError as error:
            self._close_lock_socket()
            raise StoreProcessError(f"segment store {self.number} cannot be started: {error}") from error
        finally:
            child_socket.close()
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._reader = asyncio.StreamReader(LINE_BYTES_MAX)
        try:
            self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(self._reader), self.process.stdout
            )
        except BaseException:
            # It has no order yet, and no other part of the server refers to it.
            self._close_lock_socket()
            self.process.kill()
            self.process.wait()
            raise
        self._write(encode_message(order))

    def ask(self, containers: Sequence[int], living: Sequence[str]) -> None:
        """Send a health check with the assignment. The process may open these containers from now on."""
        self._asked += 1
        self.granted = frozenset(containers)
        self.held |= self.granted
        self._write(encode_message(HealthCheck(self._asked, tuple(containers), tuple(living))))

    def share_lock(self, descriptor: int) -> None:
        """Send a new lock of the data directory to the process. No effect if there is none, or it has exited."""
        if self._lock_socket is None:
            return
        try:
            socket.send_fds(self._lock_socket, [b"L"], [descriptor])
        except BlockingIOError:
            logger.warning("segment store %d does not accept a new lock of the data directory: killing it", self.number)
            self.signal(signal.SIGKILL)
        except (BrokenPipeError, ConnectionResetError):
            pass  # It has exited, which `listen` reports.

    @property
    def is_answered(self) -> bool:
        """Whether it has answered all health checks."""
        return self._answered == self._asked

    async def listen(self) -> FromChild | None:
        """Return its next message, None at its end. Raises `ProtocolError`."""
        try:
            line = await self._reader.readline()
        except ValueError as error:
            raise ProtocolError(f"segment store {self.number} sent a line above {LINE_BYTES_MAX} bytes") from error
        if not line.endswith(b"\n"):
            return None
        message = decode_from_child(line)
        if isinstance(message, State):
            self.failures = message.failures
            self.running = frozenset(message.running)
            self.storage_problem, self.full_disk = message.storage_problem, message.full_disk
            self._answered = message.number
            if self.is_answered:
                self.held = frozenset(message.held) | self.granted
        elif isinstance(message, Ready):
            self.failures = message.failures
            self.running = self.granted - self.failures.keys()
        return message

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; no effect if it has exited."""
        if self.process is not None:
            self.process.send_signal(number)

    def ended(self) -> None:
        """Record that the process has exited and holds no containers."""
        self.is_up = False
        self.owner = ""
        self.granted = self.held = self.running = frozenset()
        self.failures = {}
        self.storage_problem = self.full_disk = None
        self.silent_s = 0.0
        self._pipe.close()
        self._close_lock_socket()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def _close_lock_socket(self) -> None:
        if self._lock_socket is not None:
            self._lock_socket.close()
            self._lock_socket = None

    def _write(self, line: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            written = self.process.stdin.write(line)
        except BrokenPipeError:
            return  # It has exited, which `listen` reports.
        if written != len(line):
            # Many health checks fill the pipe: the process hangs, and a partial line must not remain.
            logger.warning("segment store %d does not accept requests: killing it", self.number)
            self.signal(signal.SIGKILL)


class StoreProcesses:
    """See the module. `lock_descriptor` is the data directory's lock, which this process holds.

    Attributes:
        stores: by number.
        locator: the current assignment of containers.
    """

    def __init__(self, settings: StandaloneSettings, lock_descriptor: int, runtime: Runtime) -> None:
        self._settings = settings
        self._watch = settings.store_processes
        self._lock_descriptor = lock_descriptor
        self._runtime = runtime
        self._container_count = settings.segment_store.container_count
        port = settings.segment_store_port
        self.stores: list[StoreProcess] = [
            StoreProcess(number, port + number if port else 0) for number in range(settings.segment_stores)
        ]
        assignment = share_out(self._container_count, len(self.stores), range(len(self.stores)))
        self.locator: AssignedLocator = AssignedLocator(assignment, len(self.stores))
        self._keepers: list[asyncio.Task[None]] = []
        self._is_stopping = False
        cache = settings.segment_store.cache
        share = replace(cache, bytes_max=cache.bytes_max // len(self.stores))
        self._child_settings = settings_values(
            replace(settings, segment_store=replace(settings.segment_store, cache=share), segment_stores=1)
        )

    @property
    def failures(self) -> dict[int, Failure]:
        """Why containers do not run, as last reported."""
        return {
            container_id: failure for store in self.stores for container_id, failure in sorted(store.failures.items())
        }

    def containers_of(self, store: StoreProcess) -> Sequence[int]:
        """Return the ids of the containers assigned to a store."""
        return self.locator.assignment.containers_of(store.number)

    async def start(self) -> None:
        """Start all processes and wait until each is ready. Raises `StoreProcessError`; call `stop` then, too."""
        try:
            async with asyncio.TaskGroup() as group:
                for store in self.stores:
                    group.create_task(self._begin(store, self.containers_of(store)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        loop = asyncio.get_running_loop()
        self._keepers = [loop.create_task(self._keep(store)) for store in self.stores]

    def share_lock(self, descriptor: int) -> None:
        """Replace the lock of the data directory in all processes, present and later ones."""
        self._lock_descriptor = descriptor
        for store in self.stores:
            store.share_lock(descriptor)

    async def _begin(self, store: StoreProcess, containers: Sequence[int]) -> None:
        """Start a process; return when it is ready."""
        owner = self._runtime.random_id().hex()
        order = Order(
            store.number,
            os.getpid(),
            self._lock_descriptor,
            store.port,
            tuple(containers),
            self._child_settings,
            owner,
            (*self._living(), owner),
        )
        await store.spawn(order)
        try:
            async with asyncio.timeout(self._watch.start_timeout_s):
                answer = await store.listen()
            match answer:
                case Ready():
                    store.port = answer.port
                case Refusal():
                    raise StoreRefusedError(store.number, answer.kind, answer.message)
                case _:
                    raise StoreProcessError(
                        f"segment store {store.number} exited before it was ready; see its log for the reason"
                    )
        except BaseException as error:
            store.signal(signal.SIGKILL)
            await asyncio.shield(self._bury(store))
            if isinstance(error, TimeoutError):
                raise StoreProcessError(
                    f"segment store {store.number} was not ready within {self._watch.start_timeout_s:g} s "
                    "(store_processes.start_timeout_s)"
                ) from error
            raise
        store.is_up = True
        settings = self._settings
        self.locator.set_endpoint(
            store.number, settings.advertised_host, store.port, local_host=settings.listening_host
        )

    def _living(self) -> list[str]:
        """Return the owner names of all processes that have not exited, hung ones included: their logs may be open."""
        return [store.owner for store in self.stores if store.owner]

    async def _bury(self, store: StoreProcess) -> int:
        """Wait for the exit of a process that is ending; return its exit code."""
        assert store.process is not None
        code = await self._runtime.work.run(store.process.wait)
        store.ended()
        return code

    # -- keeping them alive -------------------------------------------------------------------------------------

    async def _keep(self, store: StoreProcess) -> None:
        """Monitor a store's running process, and restart it when it exits."""
        loop = asyncio.get_running_loop()
        deaths: deque[float] = deque(maxlen=self._watch.restart_count_max + 1)
        delay = GrowingDelay(self._watch.restart_delay_s, self._watch.restart_delay_s_max)
        while True:
            began_s = loop.time()
            await self._watch_over(store)
            code = await self._bury(store)
            if self._is_stopping:
                return
            logger.warning("segment store %d (pid %d) exited with code %d: restarting it", store.number, store.pid,
                           code)  # fmt: skip
            if loop.time() - began_s > self._watch.restart_window_s:
                delay.reset()
            deaths.append(loop.time())
            while not store.is_up:
                is_often = len(deaths) > self._watch.restart_count_max
                if is_often and deaths[-1] - deaths[0] <= self._watch.restart_window_s:
                    self._send_away(store, f"it has exited {len(deaths)} times recently")
                # The containers that it held are free.
                self.arrange()
                await delay.sleep()
                late = loop.call_later(self._watch.health_timeout_s, self._is_late, store)
                try:
                    await self._begin(store, ())
                except (StoreProcessError, ProtocolError, OSError) as error:
                    logger.warning("%s; trying again", error)
                    deaths.append(loop.time())
                finally:
                    late.cancel()
            self.arrange()

    def _is_late(self, store: StoreProcess) -> None:
        """Mark a slow start as unavailable: the containers, which the process has not got yet, move to other stores."""
        self._send_away(store, f"it is not ready after {self._watch.health_timeout_s:g} s")
        self.arrange()

    async def _watch_over(self, store: StoreProcess) -> None:
        """Read the messages of a process and send it health checks, until it exits."""
        asking = asyncio.get_running_loop().create_task(self._ask(store))
        try:
            while await store.listen() is not None:
                self.arrange()
        except ProtocolError as error:
            logger.warning("killing segment store %d: %s", store.number, error)
            store.signal(signal.SIGKILL)
        finally:
            asking.cancel()

    async def _ask(self, store: StoreProcess) -> None:
        """Check whether a process answers.

        Missing answers are counted in rounds instead of time: after a pause of this process, children do not count as
        hung.
        """
        watch = self._watch
        silent_s = well_s = 0.0
        while not self._is_stopping:
            store.silent_s = silent_s
            if store.is_answered:
                store.silent_s = silent_s = 0.0
                store.ask(sorted(store.granted), self._living())
            await asyncio.sleep(watch.health_interval_s)
            if store.is_answered:
                well_s += watch.health_interval_s
                if not store.is_available and well_s >= watch.return_delay_s:
                    logger.warning("segment store %d is running again: it gets its containers back", store.number)
                    store.is_available = True
                    self.arrange()
                continue
            well_s = 0.0
            silent_s += watch.health_interval_s
            if silent_s < watch.health_timeout_s:
                continue
            if watch.is_hung_killed:
                logger.warning("segment store %d has not answered for %g s: killing it", store.number, silent_s)
                store.signal(signal.SIGKILL)
                return
            if store.is_available:
                self._send_away(store, f"it has not answered for {silent_s:g} s")
                # The first message that it reads when it resumes. Until then the next owner of its logs fences it.
                store.ask((), self._living())
                store.held = frozenset()
                self.arrange()

    def _send_away(self, store: StoreProcess, why: str) -> None:
        if store.is_available:
            store.is_available = False
            logger.warning("segment store %d is down, its containers move to other stores: %s", store.number, why)

    def arrange(self) -> None:
        """Compute the assignment, and send it to each store whose part changes and may change now."""
        if self._is_stopping:
            return
        available = [store.number for store in self.stores if store.is_available]
        self.locator.assignment = share_out(self._container_count, len(self.stores), available)
        for store in self.stores:
            if not store.is_up:
                continue
            elsewhere = frozenset[int]().union(*(other.held for other in self.stores if other is not store))
            granted = [
                container_id
                for container_id in self.containers_of(store)
                if container_id in store.granted or container_id not in elsewhere
            ]
            if store.granted != frozenset(granted):
                store.ask(granted, self._living())

    # -- the end ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop all processes, cleanly if possible within most of `stop_timeout_s`.

        Raises `StoreProcessError` when one could not be stopped cleanly. If cancelled, it kills the remaining ones.
        """
        self._is_stopping = True
        stopped = [store for store in self.stores if store.is_up]
        for keeper, store in zip(self._keepers, self.stores, strict=False):
            if not store.is_up:
                # Cancels a pending restart.
                keeper.cancel()
        ends: list[asyncio.Task[int]] | list[asyncio.Task[None]] = self._keepers
        if not self._keepers:
            # The failure of the start is reported elsewhere.
            ends = [asyncio.get_running_loop().create_task(self._bury(store)) for store in stopped]
        for store in stopped:
            store.signal(signal.SIGTERM)
        try:
            if ends:
                await asyncio.wait(ends, timeout=self._settings.stop_timeout_s * _STOP_SHARE)
        finally:
            late = [store.number for store in stopped if store.is_up]
            for store in self.stores:
                store.signal(signal.SIGKILL)
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        codes = {store.number: store.process.poll() for store in stopped if store.process is not None}
        if self._keepers and any(codes.values()):
            raise StoreProcessError(
                f"segment stores did not shut down cleanly: exit codes {codes}, of which {late} were killed because "
                "they took too long"
            )
