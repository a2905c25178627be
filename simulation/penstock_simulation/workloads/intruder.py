"""`Intruder`: an account whose password and permissions change, and a peer that tries more than they permit.

It logs in with passwords that are right, were right, or never were; asks for tokens; and sends requests to stores with
tokens that are valid, expired, for other streams, for controllers, or changed, for streams that exist and streams that
do not. A small model knows each answer: while no process has yet to read a change, by the account; at a store, by the
age of the token and what it permits. What is refused must not depend on what exists.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import grpc
from google.protobuf.message import Message

from penstock.model.errors import PenstockError
from penstock.model.permissions import ROOT, Permission, stream_resource
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.client_security import Credentials, SessionCredentials
from penstock.security.access_list import AccessEntry
from penstock.security.tokens import LEEWAY_S, SUBJECT
from penstock.wire.commands import (
    AppendSetup,
    AuthTokenCheckFailed,
    DeleteSegment,
    GetStreamSegmentInfo,
    SealSegment,
    SetupAppend,
    UpdateSegmentAttribute,
    WireCommand,
)
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import SCOPE, Workload, World

#: The subject of delegation tokens is a possible name of an account.
GUEST = SUBJECT
#: The second begins with the name of the first; the last is never created.
STREAMS = ("guarded", "guarded2", "absent")
_SETTINGS = ConnectionSettings(connect_timeout_s=2.0, request_timeout_s=2.0, close_timeout_s=0.1)
_CALL_TIMEOUT_S = 3.0
#: Ages of tokens within this of a bound are not judged: replies take time.
_SLACK_S = 3.0
_POLL_S = 0.2
#: Attempts between two changes of the account.
_ATTEMPTS = 10
_TOKENS_MAX = 40
_PERMISSIONS = tuple(Permission)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, the time at which it was requested, and what it permits. `is_none`: it is none for stores."""

    text: str
    made_s: float
    permissions: Mapping[str, Permission]
    is_none: bool = False


@dataclass(frozen=True, slots=True)
class _Account:
    """The account as an administrator has written it. `password` empty: it does not exist."""

    password: str
    permissions: Mapping[str, Permission]
    root: Permission


class Intruder(Workload):
    """See the module. Of a secured cluster only."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        super().__init__(world, host, name, rng)
        files, security = world.cluster.security_files, world.cluster.settings.security
        assert files is not None
        assert security is not None
        self._files = files
        self._ttl_s = security.token_ttl_s
        self._changes = 0
        self._account = _Account("", {}, Permission.NONE)
        self._passwords: list[str] = []
        self._tokens: list[_Token] = []
        self._sessions: list[tuple[str, str, float]] = []
        #: Connections with a writer, and when the token of the writer was requested.
        self._held: list[tuple[WireConnection, float]] = []

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        for stream in STREAMS[:2]:  # The last one stays absent.
            name = f"{SCOPE}/{stream}"
            await self.world.insist(f"create {name}", partial(self.client.create_stream, name, exist_ok=True))

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            self._change_account()
            is_settled = await self._settled()
            for _ in range(_ATTEMPTS):
                if self.rng.random() < 0.5:
                    await self._call(is_settled=is_settled)
                else:
                    await self._request()
                await self._check_held()
                await self.rest(0.1)
        for connection, _ in self._held:
            await connection.close()

    # -- the account --------------------------------------------------------------------------------------------

    def _change_account(self) -> None:
        """Remove the account, or give it another password or other permissions."""
        rng, old = self.rng, self._account
        self._changes += 1
        self.world.counts["accounts changed"] += 1
        if old.password and rng.random() < 0.2:
            self._account = _Account("", {}, Permission.NONE)
            self._files.remove_account(GUEST)
            return
        password = old.password
        if not password or rng.random() < 0.4:
            password = f"password {self._changes}"
            self._passwords = [*self._passwords[-4:], password]
        permissions = {stream: rng.choice(_PERMISSIONS) for stream in STREAMS}
        root = rng.choice((Permission.NONE, Permission.READ))
        self._account = _Account(password, permissions, root)
        entries = [AccessEntry(stream_resource(SCOPE, stream), each) for stream, each in permissions.items()]
        self._files.set_account(GUEST, password, [*entries, AccessEntry(ROOT, root)])

    async def _settled(self) -> bool:
        """Return whether every process has read the account in a while; at times do not wait."""
        if self.rng.random() < 0.2:
            return False
        version = self._files.version
        for _ in range(round(10.0 / _POLL_S)):
            if self.world.cluster.have_read(version):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    # -- controllers --------------------------------------------------------------------------------------------

    async def _call(self, *, is_settled: bool) -> None:
        """Call a controller. The answer is judged if every process has read the account."""
        rng, account = self.rng, self._account
        password = account.password if rng.random() < 0.7 else rng.choice([*self._passwords, "wrong"])
        credentials: Credentials | SessionCredentials | None = Credentials(GUEST, password)
        is_caller = bool(account.password) and password == account.password
        kind = rng.random()
        if kind < 0.1:
            credentials, is_caller = None, False
        elif kind < 0.25 and self._tokens:
            # A token for stores is no session, whatever account has its name.
            credentials, is_caller = SessionCredentials(rng.choice(self._tokens).text), False
        elif kind < 0.4 and self._sessions:
            text, of_password, _ = rng.choice(self._sessions)
            credentials, is_caller = SessionCredentials(text), False
            if account.password == of_password:
                return  # It may have ended with its account, which then got the same password again.
        name, request, needed = self._draw_call()
        is_permitted = is_caller and self._has(needed)
        if is_permitted and name in ("sealStream", "deleteStream", "createScope"):
            return
        begun_s = self.world.now_s
        expected = "done" if is_permitted else "PERMISSION_DENIED" if is_caller else "UNAUTHENTICATED"
        reply, answer = await self._answer(name, request, credentials)
        if answer == "":
            return
        self.world.counts[f"calls of a guest: {answer}"] += 1
        # A stream that is permitted may be absent.
        is_right = answer not in ("PERMISSION_DENIED", "UNAUTHENTICATED") if is_permitted else answer == expected
        if is_settled and not is_right:
            self.world.problem(
                f"{self.name}: {name} of {request} with {type(credentials).__name__} was answered by {answer}, "
                f"expected {expected}: {account}"
            )
        if isinstance(reply, pb.DelegationToken) and isinstance(request, pb.StreamInfo):
            wanted = Permission.READ if request.accessOperation == pb.StreamInfo.READ else Permission.READ_UPDATE
            self._keep(_Token(reply.delegationToken, begun_s, {request.stream: wanted}))
        elif isinstance(reply, added.OpenSessionReply):
            self._sessions = [*self._sessions[-4:], (reply.token, password, begun_s)]

    def _draw_call(self) -> tuple[str, Message, tuple[str, Permission]]:
        """Return a call, its request, and what it needs: a stream, or empty for everything, and the permission."""
        stream = self.rng.choice(STREAMS)
        info = pb.StreamInfo(scope=SCOPE, stream=stream)
        none = pb.StreamInfo(scope=SCOPE, stream=stream, accessOperation=pb.StreamInfo.NONE)
        read = pb.StreamInfo(scope=SCOPE, stream=stream, accessOperation=pb.StreamInfo.READ)
        write = pb.StreamInfo(scope=SCOPE, stream=stream, accessOperation=pb.StreamInfo.READ_WRITE)
        calls: tuple[tuple[str, Message, tuple[str, Permission]], ...] = (
            ("getDelegationToken", read, (stream, Permission.READ)),
            ("getDelegationToken", write, (stream, Permission.READ_UPDATE)),
            ("getDelegationToken", write, (stream, Permission.READ_UPDATE)),
            ("getCurrentSegments", none, (stream, Permission.READ)),
            ("sealStream", info, (stream, Permission.READ_UPDATE)),
            ("deleteStream", info, (stream, Permission.READ_UPDATE)),
            ("createScope", pb.ScopeInfo(scope="made"), ("", Permission.READ_UPDATE)),
            ("openSession", added.OpenSessionRequest(), ("", Permission.NONE)),
        )
        return self.rng.choice(calls)

    def _has(self, needed: tuple[str, Permission]) -> bool:
        stream, permission = needed
        has = self._account.permissions.get(stream, Permission.NONE) if stream else self._account.root
        return has >= permission

    async def _answer(
        self, name: str, request: Message, credentials: Credentials | SessionCredentials | None
    ) -> tuple[Message | None, str]:
        """Return the reply and ``done``, or None and the status of a refusal; None and nothing: there is no answer."""
        stub, _ = self.world.cluster.stub(self.client.settings, credentials)
        try:
            return await getattr(stub, name)(request, timeout=_CALL_TIMEOUT_S), "done"
        except grpc.RpcError as error:
            status = error.code()
            if status in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return None, status.name
            if status in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None, "done"
            return None, ""

    # -- stores -------------------------------------------------------------------------------------------------

    def _keep(self, token: _Token) -> None:
        self._tokens = [*self._tokens[1 - _TOKENS_MAX :], token]

    def _draw_token(self) -> _Token:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1 or not self._tokens:
            return _Token("", 0.0, {}, is_none=True)
        if kind < 0.2 and self._sessions:
            return _Token(self._sessions[-1][0], 0.0, {}, is_none=True)
        token = rng.choice(self._tokens[-8:])
        if kind < 0.3:
            head, content, signature = token.text.split(".")
            at = rng.randrange(len(content))
            changed = f"{content[:at]}{'A' if content[at] != 'A' else 'B'}{content[at + 1 :]}"
            return _Token(f"{head}.{changed}.{signature}", 0.0, {}, is_none=True)
        return token

    async def _request(self) -> None:
        """Send a request to some store, with some token, and judge whether it is refused."""
        rng, token = self.rng, self._draw_token()
        stream = rng.choice((*token.permissions, *STREAMS))
        segment = f"{SCOPE}/{stream}/0.#epoch.0"
        needed, kind = rng.choice(
            (
                (Permission.READ, GetStreamSegmentInfo),
                (Permission.READ_UPDATE, UpdateSegmentAttribute),
                (Permission.READ_UPDATE, SetupAppend),
                (Permission.READ_UPDATE, SealSegment),
                (None, DeleteSegment),
            )
        )
        is_permitted = needed is not None and token.permissions.get(stream, Permission.NONE) >= needed
        if kind is SealSegment and is_permitted:
            return
        host, port = await self.world.cluster.locator.endpoint_of_segment(segment)
        if rng.random() < 0.2:
            host = rng.choice(self.world.cluster.stores).name
        try:
            connection = await open_connection(host, port, settings=_SETTINGS)
        except (PenstockError, OSError):
            return
        # From now on it takes at most the time of a request.
        age_s = self.world.now_s - token.made_s
        reply: WireCommand | None = None
        try:
            request_id = connection.next_request_id()
            reply = await connection.request(request_id, self._command(kind, request_id, segment, token.text))
        except PenstockError:
            pass
        if isinstance(reply, AppendSetup) and len(self._held) < 4:
            self._held.append((connection, token.made_s))
        else:
            await connection.close()
        if reply is not None:
            self._judge(reply, kind.__name__, stream, token, age_s, is_permitted=is_permitted)

    def _command(self, kind: type[WireCommand], request_id: int, segment: str, token: str) -> WireCommand:
        if kind is UpdateSegmentAttribute:
            return UpdateSegmentAttribute(request_id, segment, b"a" * 16, request_id, -(2**63), token)
        if kind is SetupAppend:
            return SetupAppend(request_id, self.rng.randbytes(16), segment, token)
        if kind is SealSegment:
            return SealSegment(request_id, segment, token)
        if kind is DeleteSegment:
            return DeleteSegment(request_id, segment, token)
        return GetStreamSegmentInfo(request_id, segment, token)

    def _judge(
        self, reply: WireCommand, kind: str, stream: str, token: _Token, age_s: float, *, is_permitted: bool
    ) -> None:
        is_refused = isinstance(reply, AuthTokenCheckFailed)
        if token.is_none or not is_permitted or age_s >= self._ttl_s + LEEWAY_S + _SLACK_S:
            expected = "a refusal"
        elif age_s <= self._ttl_s + LEEWAY_S - _SLACK_S:
            expected = "no refusal"
        else:
            return
        is_old = expected == "a refusal" and is_permitted and not token.is_none
        self.world.counts[f"requests of a guest: {'an expired token' if is_old else expected}"] += 1
        if is_refused != (expected == "a refusal"):
            self.world.problem(
                f"{self.name}: {kind} of {stream} with a token for {dict(token.permissions)}, {age_s:.1f} s old, was "
                f"answered by {reply}, expected {expected}"
            )

    async def _check_held(self) -> None:
        """A connection with a writer ends with the writer's token."""
        for held in list(self._held):
            connection, made_s = held
            is_over = self.world.now_s > made_s + self._ttl_s + LEEWAY_S + _SLACK_S + _CALL_TIMEOUT_S
            if connection.is_open and not is_over:
                continue
            self._held.remove(held)
            if not connection.is_open:
                self.world.counts["writers of a guest whose connection ended"] += 1
                continue
            # It may have been closed by a server that this host cannot reach now.
            await self._check_open(connection)
            await connection.close()

    async def _check_open(self, connection: WireConnection) -> None:
        """Find a problem if a server still answers over a connection, whose writer's token has expired."""
        for _ in range(2):  # A server that was paused answers once in the turn in which it closes the connection.
            request_id = connection.next_request_id()
            try:
                await connection.request(request_id, GetStreamSegmentInfo(request_id, f"{SCOPE}/absent/0.#epoch.0", ""))
            except PenstockError:
                return
            await asyncio.sleep(1.0)
        self.world.problem(f"{self.name}: the connection of a writer is open after its token has expired")
