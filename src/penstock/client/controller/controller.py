"""`ControllerClient`: the controller's gRPC calls as typed methods.

Transient errors are retried with bounded back-off (controller-api 1), until the deadline of the
enclosing call. A change without a reply may have been carried out: when the time limit expires, it raises
`OutcomeUnknownError`, never a plain failure. A request that was never sent, because there was no connection, was not
carried out: it raises `ControllerUnavailableError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from random import Random
from typing import Protocol, cast

import grpc
import grpc.aio

from penstock.client.common.deadline import Deadline, within
from penstock.client.common.waits import DISK_FULL, NO_ANSWER, REFUSED, UNREACHABLE, Wait, Waits
from penstock.client.controller.addition_calls import AdditionCalls, AdditionStub
from penstock.client.controller.controller_channels import ControllerChannels, SignStub
from penstock.client.controller.exhaustion import Exhaustion, cause_of, final_error, full_error
from penstock.client.controller.first_contact import describe_address
from penstock.client.controller.mark_calls import MarkCalls, MarkStub
from penstock.client.controller.reader_group_calls import ReaderGroupCalls, ReaderGroupStub
from penstock.client.controller.scale_calls import ScaleCalls, ScaleStub
from penstock.client.controller.scope_calls import ScopeCalls, ScopeStub
from penstock.client.controller.segment_calls import SegmentCalls, SegmentStub
from penstock.client.controller.stream_calls import StreamChangeCalls, StreamStub
from penstock.client.controller.table_calls import TableCalls, TableStub
from penstock.client.controller.transaction_calls import TransactionCalls, TransactionStub
from penstock.client.controller.unary_call import Reply, Request, UnaryCall, answered
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    AccessDeniedError,
    AuthenticationError,
    ControllerUnavailableError,
    ForkedError,
    InvalidArgumentError,
    NoSuchStreamError,
    OutcomeUnknownError,
    PenstockError,
    ReplyTooLongError,
    StreamError,
    StreamExistsError,
    UnsupportedOperationError,
)
from penstock.model.times import seconds_text
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.additions_pb2_grpc import PenstockControllerServiceStub
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.runtime.client_security import ClientSecurity
from penstock.runtime.log_context import REQUEST_ID_KEY
from penstock.runtime.pacing import GrowingDelay
from penstock.runtime.program import survives_here
from penstock.runtime.version import penstock_version
from penstock.wire.request_ids import TAG_BITS

#: Status codes for which a retry is useless.
_FINAL_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
#: Ends the text of a refused change after an attempt without a reply. The refusal may be its consequence.
_UNSURE = "; an earlier attempt, whose reply was lost, may have taken effect"
#: A controller has no status code for a lease outside its bounds, or cuts in the wrong order: it uses this message.
_BAD_LEASE = "lease value too"
#: Where UNKNOWN means that a request is invalid: it is accepted after this many replies.
_UNKNOWN_COUNT_MAX = 2
_RETRY_DELAY_INITIAL_S = 0.01
#: Decimal numbers, as Pravega's clients send; so short that a controller passes the whole id on to stores.
_REQUEST_ID_BITS = TAG_BITS
_RETRY_DELAY_FACTOR = 4.0


class ControllerStub(
    AdditionStub,
    MarkStub,
    ReaderGroupStub,
    ScaleStub,
    ScopeStub,
    SegmentStub,
    SignStub,
    StreamStub,
    TableStub,
    TransactionStub,
    Protocol,
):
    """The RPCs that the client uses. Implemented by generated stubs, or by a controller in the same process."""


def parse_controller_uri(uri: str) -> tuple[tuple[str, ...], bool]:
    """Split a controller URI into its addresses, each ``host:port``, and "use TLS".

    Accepts ``tcp://host:port``, ``tls://``, ``pravega://``, ``pravegas://`` and bare ``host:port``; several
    addresses are separated by commas.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "tcp", uri
    if scheme not in ("tcp", "tls", "pravega", "pravegas"):
        raise InvalidArgumentError(f"controller {uri!r}: the scheme must be tcp or tls, as in tcp://localhost:9090")
    addresses = tuple(address.strip() for address in rest.rstrip("/").split(","))
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidArgumentError(f"controller {uri!r}: write each address as host:port, found {address!r}")
    return addresses, scheme in ("tls", "pravegas")


class _GeneratedStub(ControllerServiceStub, PenstockControllerServiceStub):
    """Pravega's calls and Penstock's, over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        ControllerServiceStub.__init__(self, channel)
        PenstockControllerServiceStub.__init__(self, channel)


class _CurrentStub:
    """The calls of the controller that is in use when a request is sent."""

    def __init__(self, channels: ControllerChannels) -> None:
        self._channels = channels

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        return self._channels.call(name)


class ControllerClient(
    SegmentCalls,
    MarkCalls,
    TransactionCalls,
    StreamChangeCalls,
    ScaleCalls,
    ScopeCalls,
    TableCalls,
    AdditionCalls,
    ReaderGroupCalls,
):
    """Typed controller calls. Scopes, streams and names are checked by the controller."""

    _stub: ControllerStub

    def __init__(
        self,
        stub: ControllerStub,
        settings: ClientSettings,
        rng: Random,
        *,
        address: str = "controller",
        channels: ControllerChannels | None = None,
    ) -> None:
        self._stub = stub
        self._settings = settings
        self._rng = rng
        self._address = address
        self._channels = channels
        self._security = ClientSecurity()
        #: Sent with each call: the credentials, if there are any.
        self._metadata: tuple[tuple[str, str], ...] = ()
        #: Where calls register their waits; None: they are not reported.
        self.waits: Waits | None = None
        #: Whether there ever was a connection: until then, `first_contact_timeout_s` applies instead of
        #: `retry_time_max_s`.
        self._was_reached = False

    @classmethod
    def connect(
        cls, uri: str, settings: ClientSettings, rng: Random, security: ClientSecurity | None = None
    ) -> ControllerClient:
        """Make a client of the controllers at `uri`. Connects at the first call. `security`: by default no account."""
        addresses, use_tls = parse_controller_uri(uri)
        security = security or ClientSecurity()
        if not survives_here("grpc"):
            raise ForkedError(
                f"cannot connect to controller {uri}: this process was forked from one that had a client, and gRPC "
                "does not survive a fork; start processes by 'spawn' or 'forkserver', or connect only in the child"
            )
        # Pings are sent only during calls: Pravega's controller ends connections that ping more than it permits.
        keepalive_ms = round(settings.keepalive_interval_s * 1000)
        options = [
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            # A ping that measures the bandwidth delays the keep-alive ping, and is waited for 60 s.
            ("grpc.http2.ping_timeout_ms", keepalive_ms),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            # In fact the minimum time-out of one attempt to connect; gRPC's own 20 s would stall a fail-over.
            ("grpc.min_reconnect_backoff_ms", round(settings.connect_timeout_s * 1000)),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", settings.controller_reply_bytes_max),
            # Servers log it.
            ("grpc.primary_user_agent", f"penstock/{penstock_version().replace(' ', '-')}"),
        ]
        if use_tls:
            encryption = grpc.ssl_channel_credentials(security.ca, *security.key_and_chain())
            opened = [grpc.aio.secure_channel(address, encryption, options=options) for address in addresses]
        else:
            opened = [grpc.aio.insecure_channel(address, options=options) for address in addresses]
        make_stub = cast(Callable[[grpc.aio.Channel], ControllerStub], _GeneratedStub)
        channels = ControllerChannels(opened, make_stub, silent_last_s=settings.connect_timeout_s)
        client = cls(cast(ControllerStub, _CurrentStub(channels)), settings, rng, address=uri, channels=channels)
        client._security = security
        if security.credentials is not None:
            client._metadata = (("authorization", security.credentials.header()),)
        return client

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
        if self._channels is not None:
            await self._channels.close()

    async def _ask(self, call: UnaryCall[Request, Reply], request: Request, what: str) -> Reply:
        reply, _ = await self._attempt(call, request, what, is_change=False)
        return reply

    async def _change(self, call: UnaryCall[Request, Reply], request: Request, what: str) -> tuple[Reply, bool]:
        """Return the reply, and whether an earlier attempt may have been carried out already."""
        return await self._attempt(call, request, what, is_change=True)

    async def _attempt(
        self,
        call: UnaryCall[Request, Reply],
        request: Request,
        what: str,
        *,
        is_change: bool,
        on_internal: Callable[[], Awaitable[None]] | None = None,
        unknown_means: type[PenstockError] | None = None,
        on_refused: Callable[[str], None] | None = None,
    ) -> tuple[Reply, bool]:
        limit_s = self._settings.retry_time_max_s
        with (
            within(what, limit_s, "retry_time_max_s") as deadline,
            nullcontext() if self.waits is None else self.waits.during(what, deadline.at_s) as wait,
        ):
            delay = GrowingDelay(_RETRY_DELAY_INITIAL_S, self._settings.retry_delay_max_s, _RETRY_DELAY_FACTOR)
            is_unsure = False
            exhausted: Exhaustion | None = None
            attempt = unknown_count = 0
            request_id = self._new_request_id()
            while True:
                await self._connected(what, deadline, wait, is_unsure=is_unsure and is_change)
                attempt += 1
                try:
                    timeout_s = deadline.bounded_s(self._settings.controller_request_timeout_s)
                    reply = await self._answered(self._send(call, request, timeout_s, request_id))
                    return reply, is_unsure
                except grpc.RpcError as error:
                    code = error.code()
                    details = f"{what}: controller {self._address} answered {code.name}: {error.details()}"
                    # Not chained: the text contains all of gRPC's information, and its own error is a page of channel
                    # state.
                    if code in _FINAL_CODES:
                        raise _final_error(code, details + _doubt(is_unsure, is_change)) from None
                    cause = cause_of(error)
                    if (final := final_error(cause, details)) is not None:
                        raise final from None
                    if code == grpc.StatusCode.UNKNOWN and _BAD_LEASE in (error.details() or ""):
                        raise InvalidArgumentError(f"{details} (in ms)") from None
                    if code == grpc.StatusCode.UNKNOWN and unknown_means is not None:
                        # A single one may be a transient error: gRPC uses this code for some of its own.
                        unknown_count += 1
                        if unknown_count == _UNKNOWN_COUNT_MAX:
                            raise unknown_means(details) from None
                    if code == grpc.StatusCode.INTERNAL and on_internal is not None:
                        check, on_internal = on_internal, None
                        await check()
                    if cause is not Exhaustion.TOO_MANY_CALLS:
                        is_unsure = True
                    if code != grpc.StatusCode.DEADLINE_EXCEEDED:
                        # An attempt that the deadline cancels must not hide the reason of the previous one.
                        exhausted = cause
                    if exhausted is Exhaustion.DISK_FULL and on_refused is not None:
                        on_refused(details)
                    if wait is not None:
                        wait.why = _reason_of_wait(code, exhausted)
                        wait.detail = f"{code.name}: {error.details()}"
                    if attempt == self._settings.controller_attempt_count_max or not deadline.left_s():
                        if exhausted is Exhaustion.TOO_MANY_CALLS:
                            details += "; it serves its maximum number of calls (rpc_concurrency_max of the controller)"
                        details += (
                            f" ({attempt} attempts in {seconds_text(deadline.elapsed_s())}, {deadline.limit_name}: "
                            f"{deadline.limit_s:g} s{_id_text(request_id)})"
                        )
                        if exhausted is Exhaustion.DISK_FULL:
                            raise full_error(details, is_change=is_change) from None
                        if is_change and is_unsure:
                            raise OutcomeUnknownError(f"{details}; the call may have taken effect") from None
                        raise ControllerUnavailableError(details) from None
                await asyncio.sleep(deadline.bounded_s(delay.take() * (0.5 + 0.5 * self._rng.random())))

    def _new_request_id(self) -> str:
        """Return the id of a call and its repetitions in the logs of controllers; empty without a channel."""
        return "" if self._channels is None else str(self._rng.getrandbits(_REQUEST_ID_BITS))

    def _send(
        self, call: UnaryCall[Request, Reply], request: Request, timeout_s: float, request_id: str
    ) -> Awaitable[Reply]:
        if not request_id:
            return call(request, timeout=timeout_s)
        # Only the stubs of a channel take metadata.
        metadata = (*self._metadata, (REQUEST_ID_KEY, request_id))
        return cast(Callable[..., Awaitable[Reply]], call)(request, timeout=timeout_s, metadata=metadata)

    async def _answered(self, call: Awaitable[Reply]) -> Reply:
        """Wait for a reply. Raises `grpc.RpcError`, also if the controller is silent and there is another one."""
        channels = self._channels
        if channels is None or not channels.has_several:
            return await answered(call)
        silence = asyncio.get_running_loop().create_task(
            self._end_if_silent(cast(grpc.aio.Call, call), channels, channels.current)
        )
        try:
            return await answered(call)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is None or this.cancelling() or not silence.done() or silence.cancelled():
                raise
            text = f"it gave no sign of life for {2 * self._settings.controller_silence_s:g} s (controller_silence_s)"
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, text, "") from None
        finally:
            silence.cancel()

    async def _end_if_silent(self, call: grpc.aio.Call, channels: ControllerChannels, index: int) -> None:
        """Cancel a call when its controller is silent."""
        limit_s, request_id = self._settings.controller_silence_s, self._new_request_id()
        is_alive = True
        while is_alive:
            await asyncio.sleep(limit_s)
            is_alive = await channels.is_alive(
                index, lambda stub: self._send(stub.getControllerServerList, pb.ServerRequest(), limit_s, request_id)
            )
        call.cancel()

    async def _describe_address(self) -> str:
        addresses, use_tls = parse_controller_uri(self._address)
        tls = self._security.tls_context() if use_tls else None
        return await describe_address(addresses, self._settings, tls)

    async def _connected(self, what: str, deadline: Deadline, wait: Wait | None, *, is_unsure: bool) -> None:
        """Wait for a connection: a request that was never sent was certainly not carried out.

        Raises `ControllerUnavailableError`, or `OutcomeUnknownError` if `is_unsure`: an earlier attempt was sent.
        """
        channels = self._channels
        if channels is None or channels.is_connected:
            self._was_reached = True
            return
        if wait is not None:
            wait.why, wait.detail = UNREACHABLE, f"controller {self._address}"
        limit_s, limit_name = deadline.limit_s, deadline.limit_name
        timeout_s = deadline.left_s()
        if not self._was_reached and self._settings.first_contact_timeout_s < timeout_s:
            limit_s, limit_name = self._settings.first_contact_timeout_s, "first_contact_timeout_s"
            timeout_s = limit_s
        try:
            async with asyncio.timeout(timeout_s):
                await channels.connect()
        except TimeoutError:
            text = f"{what}: no connection to controller {self._address} within {limit_s:g} s ({limit_name})"
            if is_unsure:
                raise OutcomeUnknownError(f"{text}; an earlier attempt may have been carried out") from None
            text += "; nothing was done"
            if not self._was_reached:
                text += f"; {await self._describe_address()}"
            raise ControllerUnavailableError(text, was_reached=self._was_reached) from None
        self._was_reached = True
        if wait is not None:
            wait.why = NO_ANSWER


def _reason_of_wait(code: grpc.StatusCode, exhausted: Exhaustion | None) -> str:
    """Return why a failed attempt is repeated, in the words of `penstock.client.common.waits`."""
    if exhausted is Exhaustion.DISK_FULL:
        return DISK_FULL
    if exhausted is not None:
        return REFUSED
    return UNREACHABLE if code == grpc.StatusCode.UNAVAILABLE else NO_ANSWER


def _id_text(request_id: str) -> str:
    return f", request {request_id}" if request_id else ""


def _doubt(is_unsure: bool, is_change: bool) -> str:
    return _UNSURE if is_unsure and is_change else ""


def _final_error(code: grpc.StatusCode, details: str) -> PenstockError:
    if code == grpc.StatusCode.NOT_FOUND:
        return NoSuchStreamError(details)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return AuthenticationError(
            f"{details}; give the client an account: credentials=Credentials(user, password), or the variables "
            "PENSTOCK_USER and PENSTOCK_PASSWORD_FILE; or certificate= and private_key="
        )
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return AccessDeniedError(details)
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return StreamExistsError(details)
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgumentError(details)
    if code == grpc.StatusCode.OUT_OF_RANGE:
        return ReplyTooLongError(details)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedOperationError(details)
    return StreamError(details)
