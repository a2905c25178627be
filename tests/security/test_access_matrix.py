"""Every call of the controller and every command of the wire protocol with every kind of credential.

What each needs comes from the tables of the specification, and not from the code that enforces it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import jwt
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.controller.grpc.guard import CallGuard
from penstock.controller.grpc.table import access_table, services
from penstock.controller.service import ControllerService
from penstock.model.errors import AccessDeniedError, AuthenticationError, NoSuchReaderGroupError, NoSuchTableError
from penstock.model.permissions import Permission
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.client_security import Credentials
from penstock.runtime.runtime import real_runtime
from penstock.security.access_list import AccessList, parse_entry
from penstock.security.accounts import Account, Accounts
from penstock.security.authenticator import AuthenticationSettings, Authenticator
from penstock.security.passwords import hash_password
from penstock.security.sessions import TTL_S, Sessions
from penstock.security.tokens import TokenKeys, TokenSigner, TokenVerifier
from penstock.segmentstore.token_access import TokenAccess
from penstock.wire import commands as wire
from penstock.wire.commands import AuthTokenCheckFailed, WireCommand
from security.test_token_access import command_of, requests, token

NOW_S = 1_000_000
KEYS = TokenKeys((b"k" * 64,))
SPECIFICATION = Path(__file__).resolve().parents[2] / "docs" / "spec" / "controller-api.md"
#: What calls of Penstock's own need, by their documentation.
OWN_CALLS = {
    "prepareTransaction": "RU", "describeTransaction": "R", "listOpenTransactions": "R", "explainRetention": "R",
    "describeReaderGroups": "R", "findWholeTail": "R", "describeStream": "R", "describeHistory": "R",
    "openSession": "account", "describeCaller": "account", "describeMembers": "R", "changeAssignment": "RU",
    "describeAccounts": "account", "readAudit": "RU",
}  # fmt: skip


def needs_of_calls() -> dict[str, str]:
    """Return what each call needs: R, RU, an account, or nothing. Groups are written by readers (lenient)."""
    found = dict(OWN_CALLS)
    for row in re.findall(r"^\| \d+ \| (\w+) \|.*\| ([^|]+) \|$", SPECIFICATION.read_text(), re.MULTILINE):
        name, text = row[0], row[1].strip()
        if text.startswith("none"):
            found[name] = "nothing"
        elif text.startswith(("as 11", "see 12.4")):
            found[name] = "R"
        else:
            found[name] = "RU" if re.match(r"RU\b", text) or "else RU" in text else "R"
    return found


NEEDS = needs_of_calls()
#: Accounts, by the kind of permission.
ACCOUNTS = {
    "read": "prn::/,READ;prn::/scope:shop,READ;prn::/scope:shop/*,READ",
    "update": "prn::/,READ_UPDATE;prn::/scope:shop,READ_UPDATE;prn::/scope:shop/*,READ_UPDATE",
    # Everything whose names are prefixes of the right ones, or begin with them.
    "neighbour": ";".join(
        f"prn::/scope:{scope},READ_UPDATE" for scope in (
            "sho", "shop/stream:order", "shop/stream:orders2", "shop/reader-group:grou", "shop/key-value-table:price",
            "shopping", "shopping/stream:orders",
        )
    ),
    "everything": "prn::*,READ_UPDATE",
}  # fmt: skip
KINDS = ["none", "malformed", "wrong", "expired", "wrong audience", *ACCOUNTS]


class Desk:
    """A guard with accounts, and the credentials of each kind."""

    def __init__(self) -> None:
        self.runtime = real_runtime(1)
        self.now_s = NOW_S
        accounts = Accounts({
            name: Account(name, hash_password("secret", bytes(32), 10),
                          AccessList(tuple(map(parse_entry, entries.split(";")))))
            for name, entries in ACCOUNTS.items()
        })  # fmt: skip
        sessions = Sessions(KEYS, lambda: self.now_s)
        signer = TokenSigner(KEYS, 600, lambda: self.now_s)
        settings = AuthenticationSettings(failures_max=1_000_000)
        self.authenticator = Authenticator(accounts, self.runtime.work, bytes, settings, sessions=sessions)
        self.guard = CallGuard(self.authenticator, signer)
        expired, _ = sessions.open(accounts.by_name["everything"])
        self.now_s += 2 * TTL_S
        self.headers: dict[str, str | None] = {
            "none": None, "malformed": "Basic !!!", "wrong": Credentials("everything", "wrong").header(),
            "expired": f"Bearer {expired}", "wrong audience": f"Bearer {signer.master()}",
            **{name: Credentials(name, "secret").header() for name in ACCOUNTS},
        }  # fmt: skip

    async def outcome(self, call: str, header: str | None) -> str:
        """Return "done", or how a call is refused."""
        method = next(each for service in services() for each in service.methods if each.name == call)

        async def answer(request: Message) -> Message:
            return GetMessageClass(method.output_type)()

        request = filled(GetMessageClass(method.input_type)())
        try:
            caller = await self.guard.caller(header, "peer")
            service = cast(ControllerService, _NoTables())
            await self.guard.serve(call, access_table()[call], answer, service, caller, request)
        except AuthenticationError:
            return "unauthenticated"
        except AccessDeniedError:
            return "denied"
        return "done"


class _NoTables:
    """A service without tables and groups."""

    @property
    def key_value_tables(self) -> _NoTables:
        return self

    reader_groups = key_value_tables

    async def configuration(self, scope: str, table: str) -> None:
        raise NoSuchTableError(table)

    async def get(self, scope: str, group: str) -> None:
        raise NoSuchReaderGroupError(group)


_VALUES = {
    "scope": "shop", "stream": "orders", "readerGroup": "group", "readerGroupName": "group", "kvtName": "prices",
}  # fmt: skip


def filled(message: Message) -> Message:
    """Fill in the names of a scope, a stream, a group and a table, and ask for a token that permits writes."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            filled(getattr(message, field.name)).SetInParent()
        elif field.type == FieldDescriptor.TYPE_STRING and field.name in _VALUES:
            setattr(message, field.name, _VALUES[field.name])
    if isinstance(message, pb.StreamInfo):
        message.accessOperation = pb.StreamInfo.READ
    return message


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    made.authenticator.close()
    await made.runtime.work.close()


def expected(needed: str, kind: str, call: str) -> str:
    """Return the outcome of a call by the tables."""
    if kind in ("malformed", "wrong", "expired", "wrong audience"):
        return "unauthenticated"
    if needed == "nothing":
        return "done"
    if kind == "none":
        return "unauthenticated"
    if needed == "account":
        return "done"
    level = {"read": 1, "update": 2, "everything": 2, "neighbour": 0}[kind]
    if call == "getDelegationToken":
        needed = "R"  # The request asks for a token that permits reads.
    return "done" if level >= {"R": 1, "RU": 2}[needed] else "denied"


def test_the_tables_have_every_call() -> None:
    assert set(NEEDS) == set(access_table())
    assert {"R", "RU", "account", "nothing"} == set(NEEDS.values())


@pytest.mark.parametrize("kind", KINDS)
async def test_every_call_with_every_kind_of_credential(desk: Desk, kind: str) -> None:
    outcomes = {call: await desk.outcome(call, desk.headers[kind]) for call in access_table()}
    assert outcomes == {call: expected(NEEDS[call], kind, call) for call in access_table()}


def _signed(**changes: object) -> str:
    content: dict[str, object] = {
        "sub": "segmentstoreresource", "aud": "segmentstore", "iat": NOW_S, "exp": NOW_S + 600, "*": "READ_UPDATE",
    }  # fmt: skip
    return jwt.encode({**content, **changes}, KEYS.signing_key, algorithm="HS512")


STREAM = "prn::/scope:s/stream:orders"
SEGMENT = "s/orders/0.#epoch.0"
READ, UPDATE = Permission.READ, Permission.READ_UPDATE
#: Tokens, with the level that they have on the segment, or the code of the refusal.
TOKENS: dict[str, tuple[Callable[[], str], int | None, int]] = {
    "none": (lambda: "", None, 0),
    "malformed": (lambda: "not.a.token", None, 0),
    "expired": (lambda: _signed(exp=NOW_S - 3600), None, 1),
    "wrong audience": (lambda: _signed(aud="penstock-controller"), None, 0),
    "wrong subject": (lambda: _signed(sub="other"), None, 0),
    "not valid yet": (lambda: _signed(nbf=NOW_S + 3600), None, 0),
    "read": (lambda: token({STREAM: READ}), 1, 0),
    "update": (lambda: token({STREAM: UPDATE}), 2, 0),
    "neighbour": (lambda: token({
        "prn::/scope:s/stream:order": UPDATE, "prn::/scope:s/stream:orders2": UPDATE,
        "prn::/scope:s2/stream:orders": UPDATE, "prn::/scope:/stream:orders": UPDATE,
    }), 0, 0),
    "everything": (lambda: token({"*": UPDATE}), 3, 0),
    "everything, to read": (lambda: token({"*": READ}), 1, 0),
}  # fmt: skip
#: What each request needs: 1: READ, 2: READ_UPDATE on the segment, 3: a token of a server.
LEVELS: dict[str, int] = {
    **dict.fromkeys((
        "ReadSegment", "GetStreamSegmentInfo", "GetSegmentAttribute", "LocateOffset", "GetTableSegmentInfo",
        "ReadTable", "ReadTableKeys", "ReadTableEntries", "ReadTableEntriesDelta", "GetChunkLayout",
        "ReturnChunkLease",
    ), 1),
    **dict.fromkeys((
        "SetupAppend", "CreateTransientSegment", "MergeSegments", "UpdateSegmentAttribute", "SealSegment",
        "TruncateSegment", "UpdateTableEntries", "RemoveTableKeys", "CreateTableSegment", "DeleteTableSegment",
    ), 2),
}  # fmt: skip


def about_orders(command: WireCommand) -> WireCommand:
    """Return a command, about `SEGMENT`: its stream has a name with several characters."""
    for name in ("segment", "parent_segment", "target", "source"):
        if hasattr(command, name):
            object.__setattr__(command, name, SEGMENT)
    if hasattr(command, "sources"):
        object.__setattr__(command, "sources", [SEGMENT])
    return command


@pytest.mark.parametrize("kind", requests(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", TOKENS)
def test_every_command_with_every_kind_of_token(kind: type[WireCommand], name: str) -> None:
    make, level, code = TOKENS[name]
    access = TokenAccess(TokenVerifier(KEYS, lambda: NOW_S), lambda: NOW_S)
    refusal = access.check(about_orders(command_of(kind, make())))
    needed = LEVELS.get(kind.__name__, 3)
    if kind in (wire.MergeTableSegments, wire.SealTableSegment):
        needed = 4  # Not supported: refused for all, whatever the token is.
    if level is not None and level >= needed:
        assert refusal is None
    else:
        assert refusal == AuthTokenCheckFailed(7, "", code if level is None else 0)


def test_the_table_of_commands_names_requests() -> None:
    assert set(LEVELS) <= {kind.__name__ for kind in requests()}
