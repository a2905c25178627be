"""`MemberSteering`: the `ClusterFaults` of a `MemberCluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from penstock.model.errors import PenstockError
from penstock.server.cluster.administration import ClusterAdministration
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.member_cluster import MemberCluster
from penstock_simulation.simulated.member_faults import ALL, ALL_SERVERS

#: Time for one request of an administrator.
_ADMINISTRATOR_S = 20.0
_RETRY_S = 0.5


class MemberSteering:
    """See the module and `member_faults`."""

    def __init__(self, cluster: MemberCluster) -> None:
        self._cluster = cluster
        self._under_way: set[asyncio.Task[None]] = set()

    async def settled(self) -> None:
        """Return when all that was started has ended."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def kill_store(self, store: str, down_s: float) -> None:
        """See `ClusterFaults.kill_store`."""
        host = self._host(store)
        if down_s:
            parent = self._cluster.parents[self._cluster.stores.index(host)]
            parent.crash(Death.KILL)
            self._after(down_s, parent.restart)
        host.crash(Death.KILL)

    def pause_machine(self, store: str, duration_s: float) -> None:
        """See `ClusterFaults.pause_machine`."""
        host = self._host(store)
        for each in (host, self._cluster.parents[self._cluster.stores.index(host)]):
            each.pause()
            self._after(duration_s, each.resume)

    def lose_machine(self, store: str, down_s: float) -> None:
        """See `ClusterFaults.lose_machine`."""
        host = self._host(store)
        parent = self._cluster.parents[self._cluster.stores.index(host)]
        for each in (parent, host):
            each.crash(Death.POWER)
        self._after(down_s, parent.restart)

    def cut_coordination(self, host: str, duration_s: float, *, to_server: bool, from_server: bool) -> None:
        """See `ClusterFaults.cut_coordination`. A cut ends all cuts of its host."""
        ensemble = self._cluster.ensemble
        ensemble.cut(host, to_server=to_server, from_server=from_server)
        self._after(duration_s, partial(ensemble.mend, host))

    def stop_coordination(self, server: int, duration_s: float) -> None:
        """See `ClusterFaults.stop_coordination`."""
        ensemble = self._cluster.ensemble
        numbers = [each.number for each in ensemble.servers] if server == ALL_SERVERS else [server]
        for number in numbers:
            if ensemble.servers[number].is_up:
                ensemble.stop(number)
                self._after(duration_s, partial(ensemble.start, number))

    def hold_coordination(self, server: int, duration_s: float) -> None:
        """See `ClusterFaults.hold_coordination`. No effect on the server that leads."""
        ensemble = self._cluster.ensemble
        if ensemble.servers[server] is not ensemble.leader:
            ensemble.hold(server)
            self._after(duration_s, partial(ensemble.release, server))

    def expire(self, host: str) -> None:
        """See `ClusterFaults.expire`. No effect while the service has no leader."""
        ensemble = self._cluster.ensemble
        if ensemble.leader is None:
            return
        if host == ALL:
            ensemble.expire_all()
            return
        for session, connection in list(ensemble.connection_of.items()):
            if connection.host == host:
                ensemble.expire(session)

    def expire_for_client(self, host: str) -> None:
        """See `ClusterFaults.expire_for_client`."""
        for connection in list(self._cluster.ensemble.connection_of.values()):
            if connection.host == host:
                connection.expired()

    def lose_answers(self, host: str, count: int) -> None:
        """See `ClusterFaults.lose_answers`."""
        self._cluster.ensemble.lose_replies(host, count)

    def drain(self, store: str, duration_s: float) -> None:
        """See `ClusterFaults.drain`."""
        self._begin(self._drain(store, duration_s))

    def stop(self, host: str, down_s: float) -> None:
        """See `ClusterFaults.stop`."""
        self._begin(self._stop(self._host(host), down_s))

    def move(self, container: int, store: str) -> None:
        """See `ClusterFaults.move`."""
        self._begin(self._move(container, store))

    # -- parts --------------------------------------------------------------------------------------------------

    def _host(self, name: str) -> Host:
        return self._cluster.simulation.hosts[name]

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        loop = self._cluster.simulation.loop
        loop.at(loop.now_s + delay_s, event)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        loop = self._cluster.simulation.loop
        task = loop.spawn(loop.driver, work, "an operator")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _administer(self, act: Callable[[ClusterAdministration], Awaitable[object]]) -> None:
        """Carry out an administrator's request, which may fail with or without an effect."""
        cluster = self._cluster
        try:
            async with asyncio.timeout(_ADMINISTRATOR_S):
                await cluster.administrator.run(cluster.administer(act))
        except (PenstockError, TimeoutError):
            pass

    async def _drain(self, store: str, duration_s: float) -> None:
        # If the answer was lost, the drain may have begun.
        await self._administer(lambda each: each.drain(store, is_dry=False))
        await asyncio.sleep(duration_s)
        while store in self._cluster.names("/drains"):
            await self._administer(lambda each: each.undrain(store, is_dry=False))
            await asyncio.sleep(_RETRY_S)

    async def _move(self, container: int, store: str) -> None:
        await self._administer(lambda each: each.move(container, store, is_dry=False))

    async def _stop(self, host: Host, down_s: float) -> None:
        life = host.life
        try:
            await self._cluster.shut_down(host)
        except (HostDownError, PenstockError):
            if host.life == life:
                host.crash(Death.KILL)
        await asyncio.sleep(down_s)
        host.restart()
