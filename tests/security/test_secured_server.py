"""A secured server, driven over gRPC and the wire protocol: every call with every kind of caller."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from penstock.controller.grpc.table import services
from penstock.model.permissions import Permission
from penstock.rpc import controller_pb2 as pb
from penstock.wire.commands import AuthTokenCheckFailed, GetStreamSegmentInfo, StreamSegmentInfo
from support.secured_server import PASSWORD, SecuredServer, accounts


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    """A secured server with scope ``shop``, streams ``orders`` and ``clicks``, table ``prices``, group ``g``."""
    running = SecuredServer(tmp_path)
    await running.server.start()
    root = running.stub("root")
    await root.createScope(pb.ScopeInfo(scope="shop"))
    for stream in ("orders", "clicks"):
        await root.createStream(
            pb.StreamConfig(
                streamInfo=pb.StreamInfo(scope="shop", stream=stream),
                scalingPolicy=pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=1),
            )
        )
    await root.createKeyValueTable(pb.KeyValueTableConfig(
        scope="shop", kvtName="prices", partitionCount=1, primaryKeyLength=4, secondaryKeyLength=0
    ))  # fmt: skip
    yield running
    await running.close()


async def code_of(call: Awaitable[object]) -> str:
    """Return the status code that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if PASSWORD in (error.details() or ""):
            pytest.fail("the reply has the password")
        return str(error.code().name)
    return "OK"


ORDERS = pb.StreamInfo(scope="shop", stream="orders")
CALLS = [
    (f"/{service.full_name}/{method.name}", GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for service in services()
    for method in service.methods
]
#: Calls that need no permission.
OPEN = {"getControllerServerList"}
#: Calls about the caller itself: any account may make them.
OWN = {"openSession", "describeCaller", "describeAccounts"}


async def test_every_call_needs_an_account_and_a_permission(secured: SecuredServer) -> None:
    for path, request, reply in CALLS:
        name = path.rpartition("/")[2]
        found = {
            user: await code_of(secured.call(user, path, request(), reply)) for user in (None, "none", "neighbour")
        }
        if name in OPEN:
            assert set(found.values()) == {"OK"}, name
        elif name in OWN:
            assert found == {None: "UNAUTHENTICATED", "none": "OK", "neighbour": "OK"}, name
        else:
            denied = "PERMISSION_DENIED"
            if name == "getDelegationToken":
                denied = "INVALID_ARGUMENT"  # An empty request names no stream.
            expected = "UNAUTHENTICATED" if denied == "PERMISSION_DENIED" else denied
            assert found == {None: expected, "none": denied, "neighbour": denied}, name


async def test_wrong_credentials_are_refused_for_every_call(secured: SecuredServer) -> None:
    for stub in (secured.stub("root", "wrong"), secured.stub("unknown")):
        assert await code_of(stub.getControllerServerList(pb.ServerRequest())) == "UNAUTHENTICATED"


async def test_refusals_do_not_reveal_whether_a_name_exists(secured: SecuredServer) -> None:
    stub = secured.stub("neighbour")
    codes = {
        await code_of(stub.getStreamConfiguration(pb.StreamInfo(scope=scope, stream=stream)))
        for scope, stream in (("shop", "orders"), ("shop", "none"), ("none", "none"))
    }
    assert codes == {"PERMISSION_DENIED"}


async def test_readers_read_and_writers_write(secured: SecuredServer) -> None:
    reader, writer = secured.stub("reader"), secured.stub("writer")
    assert await code_of(reader.getStreamConfiguration(ORDERS)) == "OK"
    assert await code_of(reader.sealStream(ORDERS)) == "PERMISSION_DENIED"
    assert await code_of(writer.createTransaction(pb.CreateTxnRequest(streamInfo=ORDERS, lease=10_000))) == "OK"
    assert await code_of(reader.createTransaction(pb.CreateTxnRequest(streamInfo=ORDERS))) == "PERMISSION_DENIED"
    assert await code_of(writer.createScope(pb.ScopeInfo(scope="x"))) == "PERMISSION_DENIED"


async def test_listings_show_what_the_caller_may_read(secured: SecuredServer) -> None:
    async def streams(user: str) -> list[str]:
        reply = await secured.stub(user).listStreamsInScope(pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="shop")))
        return sorted(info.stream for info in reply.streams if not info.stream.startswith("_"))

    assert await streams("root") == ["clicks", "orders"]
    assert await streams("reader") == ["orders"]
    assert await streams("tables") == []
    tables = await secured.stub("tables").listKeyValueTablesInScope(
        pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="shop"))
    )
    assert [table.kvtName for table in tables.kvtables] == ["prices"]


@pytest.mark.parametrize(
    ("scope", "stream"),
    [
        ("shop", ""), ("", "orders"), ("shop", "orders/0.#epoch.0"), ("shop/orders", "0.#epoch.0"), ("shop", "a/b"),
        ("shop", "orders/"), ("shop", "stream:orders"), ("shop", "*"), ("*", "*"),
    ],
)  # fmt: skip
async def test_no_token_names_anything_but_one_stream(secured: SecuredServer, scope: str, stream: str) -> None:
    """An entry for one stream may come before one with a pattern, which such a name would match instead."""
    for user in ("root", "all-but-orders"):
        for operation in (pb.StreamInfo.READ, pb.StreamInfo.READ_WRITE):
            request = pb.StreamInfo(scope=scope, stream=stream, accessOperation=operation)
            assert await code_of(secured.stub(user).getDelegationToken(request)) == "INVALID_ARGUMENT"


async def test_tokens_grant_no_more_than_the_caller_has(secured: SecuredServer) -> None:
    segment, operation = "shop/orders/0.#epoch.0", pb.StreamInfo

    async def permission(user: str, access: int, stream: str = "orders", name: str = segment) -> Permission:
        reply = await secured.stub(user).getDelegationToken(
            pb.StreamInfo(scope="shop", stream=stream, accessOperation=access)
        )
        return secured.grant(reply.delegationToken).permission(name)

    assert await permission("reader", operation.READ) is Permission.READ
    assert await permission("writer", operation.READ) is Permission.READ
    assert await permission("writer", operation.WRITE) is Permission.READ_UPDATE
    assert await code_of(permission("reader", operation.WRITE)) == "PERMISSION_DENIED"
    assert await code_of(permission("reader", operation.UNSPECIFIED)) == "PERMISSION_DENIED"
    # Readers of a group may write its state, and may not write watermarks.
    group = "shop/_RGg/0.#epoch.0"
    assert await permission("member", operation.READ_WRITE, "_RGg", group) is Permission.READ_UPDATE
    marks = "shop/_MARKorders/0.#epoch.0"
    assert await permission("reader", operation.READ_WRITE, "_MARKorders", marks) is Permission.READ
    # Tables have segments of their own name.
    table = "shop/prices_kvtable/0.#epoch.0"
    for stream in ("prices", "prices_kvtable"):
        assert await permission("tables", operation.READ_WRITE, stream, table) is Permission.READ_UPDATE
        assert await permission("tables", operation.READ_WRITE, stream, "shop/prices/0.#epoch.0") is Permission.NONE
    assert await code_of(permission("tables", operation.READ_WRITE, "orders")) == "PERMISSION_DENIED"


async def test_replies_carry_tokens(secured: SecuredServer) -> None:
    segment = "shop/orders/0.#epoch.0"
    writer = secured.stub("writer")
    current = await writer.getCurrentSegments(ORDERS)
    assert secured.grant(current.delegationToken).permission(segment) is Permission.READ_UPDATE
    nothing = await writer.getCurrentSegments(
        pb.StreamInfo(scope="shop", stream="orders", accessOperation=pb.StreamInfo.NONE)
    )
    assert nothing.delegationToken == ""
    begun = await writer.createTransaction(pb.CreateTxnRequest(streamInfo=ORDERS, lease=10_000))
    assert secured.grant(begun.delegationToken).permission(segment) is Permission.READ_UPDATE


async def test_the_segment_store_accepts_tokens_of_the_controller(secured: SecuredServer) -> None:
    wire = await secured.wire()
    token = (await secured.stub("writer").getCurrentSegments(ORDERS)).delegationToken
    segment = "shop/orders/0.#epoch.0"
    await wire.ask(GetStreamSegmentInfo(1, segment, token), StreamSegmentInfo)
    await wire.ask(GetStreamSegmentInfo(2, segment, ""), AuthTokenCheckFailed)
    await wire.ask(GetStreamSegmentInfo(3, "shop/clicks/0.#epoch.0", token), AuthTokenCheckFailed)
    await wire.close()


async def test_a_client_without_tls_gets_no_answer(secured: SecuredServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.server.segment_store_port)
    writer.write(b"\0\0\0\x7f" + bytes(20))
    async with asyncio.timeout(60):
        # At most a TLS alert.
        assert len(await reader.read()) < 16
    writer.close()


async def test_changed_accounts_and_certificates_are_applied_without_a_restart(
    secured: SecuredServer, tmp_path: Path
) -> None:
    security = secured.server.security
    assert security is not None
    before = secured.authority
    stub = secured.stub("reader")
    assert await code_of(stub.getStreamConfiguration(ORDERS)) == "OK"
    (tmp_path / "passwd").write_text(accounts().replace("reader:", "renamed:"))
    security.reload_changed()
    assert await code_of(stub.getStreamConfiguration(ORDERS)) == "UNAUTHENTICATED"
    # A file that cannot be used changes nothing.
    (tmp_path / "passwd").write_text("broken")
    security.reload_changed()
    assert "line 1" in security.problem
    assert await code_of(secured.stub("renamed").getStreamConfiguration(ORDERS)) == "OK"
    (tmp_path / "passwd").write_text(accounts())
    # A new certificate of another authority.
    key, certificate = (tmp_path / "server.key").read_bytes(), (tmp_path / "server.crt").read_bytes()
    other = SecuredServer(tmp_path_of(tmp_path))
    await other.server.start()
    (tmp_path / "server.key").write_bytes(Path(other.settings.security.private_key).read_bytes())
    security.reload_changed()
    assert "server.crt" in security.problem
    await (await secured.wire()).close()
    (tmp_path / "server.crt").write_bytes(Path(other.settings.security.certificate).read_bytes())
    security.reload_changed()
    assert security.problem == ""
    assert secured.authority == before
    with pytest.raises(ssl.SSLCertVerificationError):
        await secured.wire()
    assert await code_of(secured.stub("root").listScopes(pb.ScopesRequest())) == "UNAVAILABLE"
    (tmp_path / "server.key").write_bytes(key)
    (tmp_path / "server.crt").write_bytes(certificate)
    security.reload_changed()
    await (await secured.wire()).close()
    assert await code_of(secured.stub("root").listScopes(pb.ScopesRequest())) == "OK"
    await other.close()


def tmp_path_of(parent: Path) -> Path:
    """Return a new directory."""
    found = parent / "other"
    found.mkdir()
    return found
