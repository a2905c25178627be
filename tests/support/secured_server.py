"""`SecuredServer`: a server in memory with TLS and accounts, and gRPC stubs for its users."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.runtime.client_security import Credentials
from penstock.security.access_list import AccessList, parse_entry
from penstock.security.accounts import Account, format_accounts
from penstock.security.audit_log import AuditSettings
from penstock.security.passwords import hash_password
from penstock.security.settings import SecuritySettings
from penstock.security.tokens import TokenGrant
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from penstock.wire.commands import Hello
from support.raw_wire import RawWire

PASSWORD = "secret"
#: Name -> entries of the account.
USERS = {
    "root": "prn::*,READ_UPDATE",
    "none": "",
    "reader": "prn::/scope:shop,READ;prn::/scope:shop/stream:orders,READ",
    "writer": "prn::/scope:shop/stream:orders,READ_UPDATE",
    "neighbour": "prn::/scope:shop/stream:order,READ_UPDATE",
    "member": "prn::/scope:shop,READ;prn::/scope:shop/stream:orders,READ;prn::/scope:shop/reader-group:g,READ",
    "all-but-orders": "prn::/scope:shop/stream:orders,NONE;prn::/scope:shop/*,READ_UPDATE",
    "tables": "prn::/scope:shop,READ;prn::/scope:shop/key-value-table:prices,READ_UPDATE",
}


def accounts() -> str:
    """Return an accounts file. Few iterations: tests hash often."""
    return format_accounts([
        Account(name, hash_password(PASSWORD, bytes(32), 10),
                AccessList(tuple(map(parse_entry, filter(None, entries.split(";"))))))
        for name, entries in USERS.items()
    ])  # fmt: skip


class SecuredServer:
    """A server with TLS and accounts, and stubs for its users: in memory, or with several segment store processes."""

    def __init__(
        self, directory: Path, *, segment_stores: int = 1, audit: AuditSettings | None = None, **changes: Any
    ) -> None:
        (directory / "passwd").write_text(accounts())
        self.settings = StandaloneSettings(
            is_memory=segment_stores == 1,
            data_dir=str(directory / "data"),
            segment_stores=segment_stores,
            audit=audit or AuditSettings(),
            controller_port=0,
            segment_store_port=0,
            security=SecuritySettings(
                tls="on", auth="on", makes_missing_files=True, accounts=str(directory / "passwd"),
                certificate=str(directory / "server.crt"), private_key=str(directory / "server.key"),
                token_key_file=str(directory / "token.key"), **changes,
            ),
        )  # fmt: skip
        self.server = Standalone(self.settings)
        self._channels: list[grpc.aio.Channel] = []

    @property
    def authority(self) -> bytes:
        assert self.server.security is not None
        return self.server.security.paths.authority.read_bytes()

    def stub(self, user: str | None, password: str = PASSWORD) -> ControllerServiceStub:
        """Return a stub that sends the credentials of a user."""
        channel = grpc.aio.secure_channel(
            f"localhost:{self.server.controller_port}",
            grpc.ssl_channel_credentials(self.authority),
            interceptors=[] if user is None else [_Credentials(Credentials(user, password).header())],
        )
        self._channels.append(channel)
        return ControllerServiceStub(channel)

    def call(self, user: str | None, method: str, request: Message, reply: type[Message]) -> Awaitable[Message]:
        """Send any call of the services."""
        channel = grpc.aio.secure_channel(
            f"localhost:{self.server.controller_port}", grpc.ssl_channel_credentials(self.authority)
        )
        self._channels.append(channel)
        multi = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        metadata = () if user is None else (("authorization", Credentials(user, PASSWORD).header()),)
        return multi(request, metadata=metadata, timeout=60)

    def grant(self, token: str) -> TokenGrant:
        """Return what a token grants."""
        assert self.server.security is not None
        assert self.server.security.verifier is not None
        return self.server.security.verifier.verify(token)

    async def wire(self) -> RawWire:
        """Connect to the segment store."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        connection = RawWire(*await asyncio.open_connection("localhost", self.server.segment_store_port, ssl=context))
        await connection.ask(Hello(16, 5), Hello)
        return connection

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await self.server.stop()


class _Credentials(grpc.aio.UnaryUnaryClientInterceptor):
    """Adds credentials to each call."""

    def __init__(self, header: str) -> None:
        self._header = header

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(("authorization", self._header))
        return await continuation(details._replace(metadata=metadata), request)
