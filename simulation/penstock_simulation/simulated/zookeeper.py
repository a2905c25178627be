"""`SimulatedZooKeeper`: an ensemble of ZooKeeper servers in memory, with the weaknesses of the real one.

- Changes go to the leader, which needs a quorum, and get a zxid. Other servers apply them later, each at its own pace;
  reads are answered by the server that a client is connected to, from what that server has applied.
- Sessions are timed by the leader's clock. A new leader gives every session its whole timeout again. Without a leader
  no session ends, and no server accepts clients.
- When the leader is lost, every server drops its clients. A change may be made and its answer lost.
- A client behind a cut link is not notified: it is CONNECTED until it notices the silence.
- A server that is behind what a client has seen refuses that client.

Everything happens at instants of the running loop's time, outside the processes of a simulation, and every choice comes
from the injected generator. Clients: `penstock_simulation.simulated.zookeeper_client`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from penstock.model.errors.coordination import SessionExpiredError
from penstock.runtime.coordination import CreateNode, DeleteNode, NodeChange
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.zookeeper_tree import NodeTree, Transaction, Watched


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Figures of the ensemble. Times are drawn evenly between a minimum and a maximum.

    Attributes:
        server_count: number of servers; a quorum is more than half.
        latency_s_min, latency_s_max: time of a message in one direction.
        lag_s_max: longest time until another server applies a change.
        election_s_min, election_s_max: time from the loss of the leader to the next one, while there is a quorum.
        lost_reply_rate: probability that the answer to a change is lost, and the connection with it.
    """

    server_count: int = 3
    latency_s_min: float = 0.0005
    latency_s_max: float = 0.003
    lag_s_max: float = 0.02
    election_s_min: float = 0.3
    election_s_max: float = 1.5
    lost_reply_rate: float = 0.0


class Connection(Protocol):
    """A client's side of a connection to a server. Each method is called at an instant outside all processes."""

    host: str
    session_id: int

    def closed(self) -> None:
        """The server has closed the connection."""

    def expired(self) -> None:
        """The session has ended."""

    def fired(self, watched: Watched) -> None:
        """A watch has fired."""


class Server:
    """One server. Its methods are called at instants.

    Attributes:
        number: from 0.
        tree: what it has applied.
        is_up: it runs.
        is_held: it applies nothing yet, and answers from what it has.
        connections: of clients.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.tree: NodeTree = NodeTree()
        self.is_up: bool = True
        self.is_held: bool = False
        self.connections: list[Connection] = []
        self.behind: deque[tuple[float, Transaction]] = deque()
        self._watches: dict[Watched, list[Connection]] = {}
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def watch(self, watched: Watched, connection: Connection) -> None:
        """Set a watch; a second one of the same client changes nothing."""
        listed = self._watches.setdefault(watched, [])
        if connection not in listed:
            listed.append(connection)

    def when_applied(self, zxid: int, then: Callable[[], None]) -> None:
        """Call `then` once this transaction is applied here."""
        if self.tree.zxid >= zxid:
            then()
        else:
            self._waiting.append((zxid, then))

    def apply_due(self, now_s: float) -> None:
        """Apply the transactions that have arrived."""
        while self.behind and not self.is_held and self.behind[0][0] <= now_s:
            self.apply(self.behind.popleft()[1])

    def apply(self, transaction: Transaction) -> None:
        """Apply a transaction; notify watches, ended sessions and waiting answers."""
        for watched in self.tree.apply(transaction):
            for connection in self._watches.pop(watched, ()):
                connection.fired(watched)
        if transaction.ended_session:
            for connection in [each for each in self.connections if each.session_id == transaction.ended_session]:
                self.drop(connection)
                connection.expired()
        ready = [then for zxid, then in self._waiting if zxid <= self.tree.zxid]
        self._waiting = [each for each in self._waiting if each[0] > self.tree.zxid]
        for then in ready:
            then()

    def drop(self, connection: Connection) -> None:
        """Forget a connection and its watches."""
        if connection in self.connections:
            self.connections.remove(connection)
        for listed in self._watches.values():
            if connection in listed:
                listed.remove(connection)

    def drop_all(self) -> None:
        """Close all connections; nothing that was in progress is answered."""
        dropped, self.connections = self.connections, []
        self._watches.clear()
        self._waiting.clear()
        for connection in dropped:
            connection.closed()


class SimulatedZooKeeper:
    """See the module.

    Attributes:
        servers: all servers.
        leader: the server that leads; None: there is none at the moment.
        sessions: timeout in seconds of each session that has not ended.
        connection_of: the connection that each session uses now. Changes that come over an earlier one are refused.
    """

    def __init__(self, rng: random.Random, settings: ZooKeeperSettings | None = None) -> None:
        self.rng: random.Random = rng
        self.settings: ZooKeeperSettings = settings or ZooKeeperSettings()
        self.servers: list[Server] = [Server(number) for number in range(self.settings.server_count)]
        self.leader: Server | None = self.servers[rng.randrange(len(self.servers))]
        self.sessions: dict[int, float] = {}
        self.connection_of: dict[int, Connection] = {}
        self._deadlines_s: dict[int, float] = {}
        self._last_session = 0x1000000
        self._zxid = 0
        self._election = 0
        #: (host, server) whose messages in this direction are lost.
        self._cut_to: set[tuple[str, int]] = set()
        self._cut_from: set[tuple[str, int]] = set()
        self._replies_to_lose: dict[str, int] = {}

    # -- faults -------------------------------------------------------------------------------------------------

    def stop(self, number: int) -> None:
        """End a server's process. Its clients' connections are closed."""
        server = self.servers[number]
        server.is_up = False
        server.drop_all()
        if server is self.leader or not self._has_quorum():
            self._lose_leader()

    def start(self, number: int) -> None:
        """Start a server that was stopped. It gets what it has missed from the leader."""
        server = self.servers[number]
        if server.is_up:
            return
        server.is_up = True
        server.is_held = False
        if self.leader is not None:
            self._catch_up(server, self.leader)
        elif self._has_quorum():
            self._elect_later()

    def hold(self, number: int) -> None:
        """Make a server apply nothing until `release`; it answers reads from what it has. Not for the leader."""
        assert self.servers[number] is not self.leader, "the leader makes the changes itself"
        self.servers[number].is_held = True

    def release(self, number: int) -> None:
        """End `hold`."""
        self.servers[number].is_held = False
        self.servers[number].apply_due(self._now_s())

    def cut(
        self, host: str, numbers: Sequence[int] | None = None, *, to_server: bool = True, from_server: bool = True
    ) -> None:
        """Lose the messages between a host and servers (None: all), silently, in the given directions."""
        for number in range(len(self.servers)) if numbers is None else numbers:
            if to_server:
                self._cut_to.add((host, number))
            if from_server:
                self._cut_from.add((host, number))

    def mend(self, host: str) -> None:
        """End the cuts of a host."""
        self._cut_to = {each for each in self._cut_to if each[0] != host}
        self._cut_from = {each for each in self._cut_from if each[0] != host}

    def lose_replies(self, host: str, count: int = 1) -> None:
        """Make the next changes of a host, and lose their answers and the connection with them."""
        self._replies_to_lose[host] = self._replies_to_lose.get(host, 0) + count

    def expire(self, session_id: int) -> None:
        """End a session now, as if its timeout had passed. Needs a leader."""
        self._end_session(session_id)

    def expire_all(self) -> None:
        """End all sessions at once."""
        for session_id in list(self.sessions):
            self._end_session(session_id)

    # -- for clients --------------------------------------------------------------------------------------------

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Call a function later, outside all processes."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedLoop):
            loop.at(loop.time() + delay_s, event)
        else:
            loop.call_later(delay_s, event)

    def latency_s(self) -> float:
        """Draw the time of a message."""
        return self.rng.uniform(self.settings.latency_s_min, self.settings.latency_s_max)

    def reaches(self, host: str, number: int) -> bool:
        """Return whether messages of a host reach a server."""
        return (host, number) not in self._cut_to

    def is_reached(self, host: str, number: int) -> bool:
        """Return whether messages of a server reach a host."""
        return (host, number) not in self._cut_from

    def loses_reply(self, host: str) -> bool:
        """Draw whether the answer to a change is lost."""
        if self._replies_to_lose.get(host, 0) > 0:
            self._replies_to_lose[host] -= 1
            return True
        rate = self.settings.lost_reply_rate
        return rate > 0 and self.rng.random() < rate

    def accepts(self, server: Server, seen_zxid: int) -> bool:
        """Return whether a server accepts clients that have seen `seen_zxid`."""
        return server.is_up and self.leader is not None and server.tree.zxid >= seen_zxid

    def begin_session(self, timeout_s: float) -> int:
        """Begin a session, and return its number. Needs a leader."""
        self._last_session += 1
        self.sessions[self._last_session] = timeout_s
        self.touch(self._last_session)
        return self._last_session

    def touch(self, session_id: int) -> bool:
        """Note a sign of life; return whether the session is alive."""
        timeout_s = self.sessions.get(session_id)
        if timeout_s is None:
            return False
        deadline_s = self._deadlines_s[session_id] = self._now_s() + timeout_s
        self.at(timeout_s, lambda: self._time_out(session_id, deadline_s))
        return True

    def change(self, session_id: int, changes: Sequence[NodeChange], is_sequential: bool = False) -> tuple[int, str]:
        """Make changes at the leader; return their zxid and the path of the first one.

        Raises `SessionExpiredError`, or the `NodeError` of a change that is refused.
        """
        leader = self.leader
        assert leader is not None
        if not self.touch(session_id):
            raise SessionExpiredError(f"session {session_id:#x} has ended")
        if is_sequential:
            (create,) = changes
            assert isinstance(create, CreateNode)
            changes = (replace(create, path=leader.tree.number(create.path)),)
        leader.tree.check(session_id, changes)
        self._commit(Transaction(self._next_zxid(), session_id, tuple(changes)))
        return self._zxid, changes[0].path

    def close_session(self, session_id: int) -> None:
        """End a session because its client asks for it."""
        self._end_session(session_id)

    # -- leader -------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _has_quorum(self) -> bool:
        return 2 * sum(server.is_up for server in self.servers) > len(self.servers)

    def _next_zxid(self) -> int:
        self._zxid += 1
        return self._zxid

    def _others(self) -> Iterator[Server]:
        return (server for server in self.servers if server is not self.leader and server.is_up)

    def _commit(self, transaction: Transaction) -> None:
        assert self.leader is not None
        now_s = self._now_s()
        for server in self._others():
            earliest_s = server.behind[-1][0] if server.behind else now_s
            due_s = max(earliest_s, now_s + self.rng.uniform(0, self.settings.lag_s_max))
            server.behind.append((due_s, transaction))
            self.at(due_s - now_s, partial(self._apply_due, server, due_s))
        self.leader.apply(transaction)

    def _apply_due(self, server: Server, due_s: float) -> None:
        if server.is_up:
            server.apply_due(max(due_s, self._now_s()))

    def _end_session(self, session_id: int) -> None:
        if self.sessions.pop(session_id, None) is None:
            return
        self._deadlines_s.pop(session_id, None)
        self.connection_of.pop(session_id, None)
        assert self.leader is not None, "only a leader ends sessions"
        changes = tuple(DeleteNode(path) for path in self.leader.tree.owned_by(session_id))
        self._commit(Transaction(self._next_zxid(), session_id, changes, ended_session=session_id))

    def _time_out(self, session_id: int, deadline_s: float) -> None:
        if self.leader is not None and self._deadlines_s.get(session_id) == deadline_s:
            self._end_session(session_id)

    def _lose_leader(self) -> None:
        self.leader = None
        self._election += 1
        self._deadlines_s.clear()
        for server in self.servers:
            server.drop_all()
        if self._has_quorum():
            self._elect_later()

    def _elect_later(self) -> None:
        self._election += 1
        election = self._election
        self.at(
            self.rng.uniform(self.settings.election_s_min, self.settings.election_s_max), lambda: self._elect(election)
        )

    def _elect(self, election: int) -> None:
        if election != self._election or self.leader is not None or not self._has_quorum():
            return
        candidates = [server for server in self.servers if server.is_up]
        for server in candidates:
            # What was committed is in the logs of a quorum, applied or not.
            server.is_held = False
            while server.behind:
                server.apply(server.behind.popleft()[1])
        newest = max(server.tree.zxid for server in candidates)
        leader = self.rng.choice([server for server in candidates if server.tree.zxid == newest])
        self.leader = leader
        for server in self._others():
            self._catch_up(server, leader)
        for session_id in self.sessions:
            self.touch(session_id)

    def _catch_up(self, server: Server, leader: Server) -> None:
        server.behind.clear()
        if server.tree.zxid < leader.tree.zxid:
            server.tree = leader.tree.copy()
