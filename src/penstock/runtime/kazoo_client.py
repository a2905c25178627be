"""`started_client`: a client of kazoo with the connection rules of `penstock.runtime.zookeeper`.

This is the only module that uses private parts of kazoo, because kazoo has no public ones for two things. It publishes
neither the session timeout that the servers grant nor the moment at which a session opens: `_connect` of its connection
returns both. It has no call that drops a connection whose server is silent: its own test harness sends
`_CONNECTION_DROP`. Both exist in each release that the extra ``zookeeper`` allows.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.coordination import CoordinationAccess, CoordinationPlace, CoordinationSettings
from penstock.runtime.extras import missing_extra

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler

_log = logging.getLogger("penstock.runtime.zookeeper")

#: Pauses of kazoo between two rounds over all hosts.
_RECONNECT_DELAY_S = 0.05
_RECONNECT_DELAY_S_MAX = 1.0
_CONNECT_TIMEOUT_S_MIN = 0.1


class SessionEvents(Protocol):
    """What the client reports, in kazoo's threads."""

    def connected(self, session_id: int, timeout_s: float) -> None:
        """A session is open at a server; `timeout_s` is the timeout that the servers granted."""

    def suspended(self) -> None:
        """The connection is lost; the session may continue."""

    def ended(self, is_refused: bool) -> None:
        """The session has expired, or the servers refuse the credentials."""


def started_client(
    place: CoordinationPlace,
    settings: CoordinationSettings,
    access: CoordinationAccess,
    is_over: threading.Event,
    events: SessionEvents,
) -> KazooClient:
    """Return a client that connects in threads of its own. When its session ends it sets `is_over`, and stays closed.

    Raises `InvalidArgumentError` if kazoo is not installed.
    """
    try:
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry
    except ImportError as error:
        raise InvalidArgumentError(missing_extra("a cluster", "zookeeper", error)) from error
    is_opening = threading.Event()
    connect_timeout_s = max(settings.session_timeout_s / (3 * len(place.hosts)), _CONNECT_TIMEOUT_S_MIN)
    handler = _handler(is_over, is_opening, connect_timeout_s)
    client = KazooClient(
        hosts=place.servers,
        timeout=settings.session_timeout_s,
        handler=handler,
        connection_retry=KazooRetry(
            max_tries=-1, delay=_RECONNECT_DELAY_S, max_delay=_RECONNECT_DELAY_S_MAX,
            sleep_func=handler.sleep_func,
        ),
        command_retry=KazooRetry(max_tries=0, sleep_func=handler.sleep_func),
        logger=_log.getChild("kazoo"), **_access_options(access),
    )  # fmt: skip
    _report(client, len(place.hosts), is_over, is_opening, events)
    client.start_async()
    return client


def drop_connection(client: KazooClient) -> None:
    """Let the client close its connection and connect again. The session continues."""
    from kazoo.protocol.connection import _CONNECTION_DROP

    client._call(_CONNECTION_DROP, client.handler.async_result())


def _handler(
    is_over: threading.Event, is_opening: threading.Event, connect_timeout_s: float
) -> SequentialThreadingHandler:
    """Return the threads of a client: they connect only before `is_over`, and to each host for a limited time."""
    from kazoo.handlers.threading import SequentialThreadingHandler

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def create_connection(self, *args: object, **kwargs: object) -> object:
            if is_over.is_set():
                raise ConnectionRefusedError("the session has ended, and this client opens no other one")
            kwargs["timeout"] = connect_timeout_s
            is_opening.set()
            return super().create_connection(*args, **kwargs)

        def select(self, reads: object, writes: object, errors: object, timeout: float) -> object:
            limit_s = min(timeout, connect_timeout_s) if is_opening.is_set() else timeout
            return super().select(reads, writes, errors, limit_s)

    return Handler()


def _report(
    client: KazooClient,
    host_count: int,
    is_over: threading.Event,
    is_opening: threading.Event,
    events: SessionEvents,
) -> None:
    """Let a client report its events from now on."""
    from kazoo.protocol.states import KazooState, KeeperState

    def state_changed(state: str) -> None:
        if state == KazooState.LOST:
            is_over.set()
            events.ended(client.client_state == KeeperState.AUTH_FAILED)
        elif state == KazooState.SUSPENDED:
            events.suspended()

    connection = client._connection
    connect = connection._connect

    def connected(host: str, address: str, port: int) -> tuple[float, float]:
        # kazoo reports CONNECTED within this call.
        read_timeout_ms, share_ms = connect(host, address, port)
        is_opening.clear()
        events.connected(client.client_id[0], share_ms * host_count / 1000)
        return read_timeout_ms, share_ms

    connection._connect = connected
    client.add_listener(state_changed)


def _access_options(access: CoordinationAccess) -> dict[str, object]:
    """Return the options of kazoo's client for credentials and encryption."""
    from kazoo.security import CREATOR_ALL_ACL

    options: dict[str, object] = {}
    if access.user:
        options |= {"auth_data": [("digest", f"{access.user}:{access.password}")], "default_acl": CREATOR_ALL_ACL}
    if access.has_tls:
        options |= {
            "use_ssl": True, "check_hostname": True, "ca": access.authority or None,
            "certfile": access.certificate or None, "keyfile": access.private_key or None,
        }  # fmt: skip
    return options
