"""`GrpcServer`: the gRPC server of the controller service. Tracebacks are never sent to clients."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from penstock.controller.grpc.access import AccessOf
from penstock.controller.grpc.call import Front, principal, refusal_reason
from penstock.controller.grpc.call_counts import CallCounts
from penstock.controller.grpc.slots import CallSlots, subject_of
from penstock.controller.grpc.status import Metadata, metadata_of, status_of
from penstock.controller.grpc.table import access_table, call_table, services
from penstock.controller.locator import ContainerLocator
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import ControllerUnavailableError, PenstockError, ReplyTooLongError
from penstock.rpc import REFUSAL_REASON_KEY
from penstock.runtime.log_context import log_context, request_id_of
from penstock.runtime.sockets import check_port_is_unused
from penstock.wire.request_ids import request_tag, tag_of, tag_text

# Imported where they are used: most servers neither check their callers nor write an audit log.
if TYPE_CHECKING:
    from penstock.controller.grpc.call_audit import CallRecord
    from penstock.controller.grpc.guard import CallGuard
    from penstock.security.audit_log import AuditLog
    from penstock.security.client_certificates import CertificatePort

if TYPE_CHECKING:
    from penstock.controller.cluster.control import ClusterControl

_logger = logging.getLogger(__name__)

#: Maximum length of the value of `REFUSAL_REASON_KEY`: gRPC limits the metadata of a call to 8 KiB.
_REASON_BYTES_MAX = 2000
#: Minimum interval of a client's pings while no data is sent.
_PING_INTERVAL_MS_MIN = 1000

#: Time for the handshakes of a connection.
_HANDSHAKE_TIMEOUT_MS = 10_000

#: Number of connections whose further calls are not logged, and maximum length of a client's program name in the log.
_REMEMBERED_MAX = 1024
_PROGRAM_LENGTH_MAX = 200

_Context = grpc.aio.ServicerContext[bytes, bytes]
_Call = Callable[[bytes, _Context], Awaitable[bytes]]
_Answer = Callable[[Message], Awaitable[Message]]
#: Returns the function that answers the call of a client. The record of the call: None without an audit log.
_CheckedAnswer = Callable[[_Context, "CallRecord | None"], Awaitable[_Answer]]


class GrpcServer:
    """Serves a started `ControllerService` on `host`:`port`; port 0 takes a free one.

    `published_host` and `published_port` are returned to clients that request the list of controllers; `settings`
    limits concurrent calls and message sizes; at most `connections_max` connections are served at once (None: no
    limit), further ones are closed. `guard` checks callers; None: every caller may do everything. `audit` is the log of
    changes and refusals; None: there is none.
    `credentials` encrypt the port; None: it is not encrypted. `certificate_port`: a further port.
    `controllers` returns the addresses of all live
    controllers for these clients, and `locator` those of segment stores; None: this controller is the only one, and
    the service's locator. `cluster` changes the cluster for administrators; None: the server is a cluster of its own.

    Attributes:
        slots: limits the calls that are served.
        calls: counts the calls that were answered.
        certificate_port: the further port, from `start` on; 0: there is none.
    """

    def __init__(
        self,
        service: ControllerService,
        host: str = "0.0.0.0",
        port: int = 9090,
        *,
        published_host: str | None = None,
        published_port: int | None = None,
        settings: ControllerSettings | None = None,
        connections_max: int | None = None,
        guard: CallGuard | None = None,
        audit: AuditLog | None = None,
        credentials: grpc.ServerCredentials | None = None,
        certificate_port: CertificatePort | None = None,
        controllers: Callable[[], list[tuple[str, int]]] | None = None,
        locator: ContainerLocator | None = None,
        cluster: ClusterControl | None = None,
    ) -> None:
        self._connections_max = connections_max
        self._guard = guard
        self._audit_log = audit
        self._credentials = credentials
        self._certificate_port = certificate_port
        self._host = host
        self._wanted_port = port
        self._published_host = published_host
        self._published_port = published_port
        self._controllers = controllers
        self._settings = settings or service.settings
        self._front = Front(service, self._server_list, locator, cluster, audit)
        self._clients = _Clients()
        self.slots: CallSlots = CallSlots(self._settings, service.container_count)
        self.calls: CallCounts = CallCounts()
        self._server: grpc.aio.Server | None = None
        self._port = 0
        self.certificate_port: int = 0

    @property
    def port(self) -> int:
        """The listening port; 0 before `start`."""
        return self._port

    def _server_list(self) -> list[tuple[str, int]]:
        if self._controllers is not None and (found := self._controllers()):
            return found
        host = self._published_host or ("localhost" if self._host in ("0.0.0.0", "::", "") else self._host)
        return [(host, self._published_port or self._port)]

    async def start(self) -> None:
        """Listen and serve. Raises `ControllerUnavailableError` when the port is not available."""
        host = self._host or "::"  # As elsewhere: an empty host means all addresses.
        if self._wanted_port:
            try:
                # gRPC would detect it as well, but print a line about its own source to standard error.
                await check_port_is_unused(host, self._wanted_port)
            except OSError as error:
                raise self._cannot_listen(error) from error
        limit = self._settings.message_bytes_max
        bounds: list[tuple[str, int]] = []
        if self._connections_max is not None:
            bounds.append(("grpc.max_allowed_incoming_connections", self._connections_max))
        probe_after_ms = round(1000 * self._settings.dead_peers.probe_after_s)
        answer_ms = round(1000 * self._settings.dead_peers.timeout_s) - probe_after_ms
        # More than slots and waiting room together: `CallSlots` refuses calls with a reason.
        calls_max = 2 * self._settings.rpc_concurrency_max + self._settings.rpc_waiting_max
        server = grpc.aio.server(
            maximum_concurrent_rpcs=calls_max,
            options=[
                *bounds,
                # Without these gRPC randomly cancels some calls of a burst of more than 1 000.
                ("grpc.server.max_pending_requests", calls_max),
                ("grpc.server.max_pending_requests_hard_limit", 2 * calls_max),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                # Otherwise two servers on one port would share its connections unnoticed.
                ("grpc.so_reuseport", 0),
                # Clients ping during calls, to detect connections that a firewall has dropped.
                ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
                ("grpc.http2.max_ping_strikes", 0),
                # The server pings as well, also between calls: HTTP/2 requires every client to answer.
                ("grpc.keepalive_time_ms", probe_after_ms),
                ("grpc.keepalive_timeout_ms", answer_ms),
                ("grpc.keepalive_permit_without_calls", 1),
                # Of TLS and HTTP/2; gRPC's own limit is 120 s.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
                # A bandwidth-measuring ping delays the keep-alive ping.
                ("grpc.http2.ping_timeout_ms", answer_ms),
            ],
        )
        server.add_generic_rpc_handlers(self._handlers())
        address = f"[{host}]" if ":" in host else host
        try:
            if self._credentials is None:
                self._port = server.add_insecure_port(f"{address}:{self._wanted_port}")
            else:
                self._port = server.add_secure_port(f"{address}:{self._wanted_port}", self._credentials)
        except RuntimeError as error:
            raise self._cannot_listen(error) from error
        self._listen_for_certificates(server, address)
        await server.start()
        self._server = server
        _logger.info("controller listens on %s:%d", self._host, self._port)

    def _listen_for_certificates(self, server: grpc.aio.Server, address: str) -> None:
        further = self._certificate_port
        if further is None:
            return
        try:
            self.certificate_port = server.add_secure_port(f"{address}:{further.port}", further.credentials)
        except RuntimeError as error:
            raise ControllerUnavailableError(
                f"cannot listen on {self._host}:{further.port} for client certificates: {error}; choose another "
                "security.certificate_port"
            ) from error

    def _cannot_listen(self, error: Exception) -> ControllerUnavailableError:
        return ControllerUnavailableError(
            f"cannot listen on {self._host}:{self._wanted_port}: {error}; is another controller running?"
        )

    async def stop(self, grace_s: float = 1.0) -> None:
        """Accept no new calls; let running ones finish for `grace_s` seconds, then cancel them."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)

    async def __aenter__(self) -> GrpcServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _handlers(self) -> list[grpc.GenericRpcHandler[bytes, bytes]]:
        built, accesses = call_table(self._front), access_table()
        audit = None
        if self._audit_log is not None:
            from penstock.controller.grpc.call_audit import CallAudit

            audit = CallAudit(self._audit_log, built)
        reply_bytes_max = self._settings.message_bytes_max
        found = []
        for described in services():
            handlers = {}
            for method in described.methods:
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    # Bytes at this interface: gRPC's own messages about malformed requests do not help clients.
                    _guarded(
                        method.name,
                        GetMessageClass(method.input_type),
                        self._checked(method.name, accesses[method.name], built[method.name]),
                        reply_bytes_max,
                        self._clients.note,
                        self.slots,
                        self.calls,
                        None if audit is None else partial(audit.begin, method.name, accesses[method.name]),
                    )
                )
            found.append(grpc.method_handlers_generic_handler(described.full_name, handlers))
        return found

    def _checked(self, name: str, access_of: AccessOf, answer: _Answer) -> _CheckedAnswer:
        """Return a function that answers a call of a client, after the check of its credentials and permissions."""
        guard, service = self._guard, self._front.service

        async def unchecked(context: _Context, record: CallRecord | None) -> _Answer:
            return answer if record is None else partial(_recorded, record, answer)

        async def checked(context: _Context, record: CallRecord | None) -> _Answer:
            assert guard is not None
            caller = await guard.caller(
                _authorization(context), peer_address(context.peer() or ""), context.auth_context()
            )
            if caller.account is not None:
                principal.set(caller.account.name)
            allowed = await unchecked(context, record)
            return partial(guard.serve, name, access_of, allowed, service, caller)

        return unchecked if guard is None else checked


async def _recorded(record: CallRecord, answer: _Answer, request: Message) -> Message:
    await record.note_permitted(request)
    return await answer(request)


def peer_address(peer: str) -> str:
    """Return the address in gRPC's name of a peer, as ``ipv4:10.0.0.7:40112``: each connection has another port."""
    return peer.rpartition(":")[0]


def _authorization(context: _Context) -> str | None:
    """Return the ``authorization`` header of a call, the first of several; None without one."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


class _Clients:
    """Logs each connection of a client once, with the program name that the client sends.

    gRPC exposes calls, not connections. The latest `_REMEMBERED_MAX` connections are remembered.
    """

    def __init__(self) -> None:
        self._peers: OrderedDict[str, None] = OrderedDict()

    def note(self, context: _Context) -> None:
        """Note a call."""
        peer = context.peer()
        if peer in self._peers:
            self._peers.move_to_end(peer)
            return
        self._peers[peer] = None
        if len(self._peers) > _REMEMBERED_MAX:
            self._peers.popitem(last=False)
        program = next((value for key, value in context.invocation_metadata() or () if key == "user-agent"), "unknown")
        _logger.info("client %s connects, program %s", peer, str(program)[:_PROGRAM_LENGTH_MAX])


def _refusal(name: str, kind: type[Message], error: Exception) -> tuple[grpc.StatusCode, str, Metadata]:
    """Return the status that a failed call ends with, and log an unexpected error."""
    if isinstance(error, DecodeError):
        return grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.name}", ()
    if isinstance(error, PenstockError):
        code, text = status_of(error)
        _logger.debug("%s: %s (%s)", name, text, code.name)
        return code, text, metadata_of(error)
    # Last resort: the log gets the details, the client only the fact that there was an error.
    _logger.error("%s failed with an unexpected error", name, exc_info=error)
    return grpc.StatusCode.INTERNAL, f"{name} failed; see the controller's log for the reason", ()


def _set_context(call: str, peer: str, request_id: str) -> None:
    """Set what log lines about a call have, and the tag of the requests to stores that it makes."""
    tag = tag_of(request_id)
    request_tag.set(tag)
    fields = {"call": call, "peer": peer, "request_id": request_id}
    if tag and (text := tag_text(tag)) != request_id:
        fields["request_tag"] = text
    log_context.set(fields)


def _guarded(
    name: str,
    kind: type[Message],
    answer_for: _CheckedAnswer,
    reply_bytes_max: int,
    note_client: Callable[[_Context], None],
    slots: CallSlots,
    calls: CallCounts,
    begin_record: Callable[[str, str], CallRecord] | None,
) -> _Call:
    async def serve(request: bytes, context: _Context) -> bytes:
        note_client(context)
        request_id = request_id_of(context.invocation_metadata() or ())
        _set_context(name, context.peer() or "", request_id)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        record = None if begin_record is None else begin_record(context.peer() or "", request_id)
        failure: Exception
        try:
            # Before anything else: a client without credentials must not cost more than that.
            answer = await answer_for(context, record)
            message = kind.FromString(request)
            if record is not None:
                record.note_request(message)
            async with slots.hold(subject_of(message)):
                answered = await answer(message)
            reply = answered.SerializeToString()
            if len(reply) > reply_bytes_max:
                # gRPC would answer RESOURCE_EXHAUSTED, and clients would retry repeatedly.
                raise ReplyTooLongError(
                    f"the reply to {name} has {len(reply)} bytes, at most {reply_bytes_max} may be sent "
                    "(message_bytes_max of the controller): there are too many segments with long names"
                )
            if reason := refusal_reason.get():
                # One value of the reply's enum covers many reasons.
                encoded = reason.encode()[:_REASON_BYTES_MAX]
                context.set_trailing_metadata(((REFUSAL_REASON_KEY, encoded),))
            calls.note(name, "OK", loop.time() - begun_s)
            if record is not None:
                record.end(answered, loop.time() - begun_s)
            return reply
        except asyncio.CancelledError:
            if record is not None:
                record.cancel(loop.time() - begun_s)
            raise
        except Exception as error:  # noqa: BLE001  # the client gets the status, the log the rest
            failure = error
        code, text, metadata = _refusal(name, kind, failure)
        calls.note(name, code.name, loop.time() - begun_s)
        if record is not None:
            record.fail(failure, code.name, loop.time() - begun_s)
        await context.abort(code, text, metadata)
        raise AssertionError("abort raises")

    return serve
