"""Planted bugs in the security of whole clusters, found by an account that tries more than it may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from google.protobuf.message import Message

from penstock.controller.grpc import guard
from penstock.controller.grpc.access import AccessOf
from penstock.controller.grpc.grants import Claims, PermissionOf, claims_of
from penstock.controller.grpc.guard import Caller, CallGuard
from penstock.controller.service import ControllerService
from penstock.model.errors import AuthenticationError
from penstock.model.permissions import ROOT, Permission
from penstock.security import sessions, tokens
from penstock.security.accounts import Account, Accounts
from penstock.security.authenticator import Authenticator
from penstock.security.server_security import ServerSecurity
from penstock.security.sessions import Session
from penstock.security.tokens import Claim, TokenGrant, TokenKeys, TokenVerifier
from penstock.segmentstore.writer_tokens import WriterTokens
from penstock_simulation.mutations.members import CLUSTER
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

SECURED = Profile(
    name="secured",
    plan=PlanSettings(
        duration_s=34.0, lasts_s_max=2.0, mean_gap_s_min=3.0, mean_gap_s_max=8.0,
        kinds=("Crash", "CrashAtDiskCall", "Partition", "Reset", "Pause"),
    ),
    workloads=("events", "readers", "transactions", "trimmed", "user tables", "key rotation", "intruder"),
    share=1.0, writing_s=40.0, memory_flip_rate=0.0, takeover_gap_s=0.0, controller_count_max=2, is_secured=True,
)  # fmt: skip
"""Accounts change, keys are rotated and tokens expire, while servers die and links fail."""

SECURED_CLUSTER = replace(
    CLUSTER, name="secured cluster", is_secured=True, member_fault_gap_s=8.0, log_fault_rates=(0.0,), share=1.0,
    workloads=("events", "readers", "key rotation", "intruder"), store_count_max=3, controller_count_max=2,
    plan=replace(CLUSTER.plan, duration_s=40.0), writing_s=46.0, scale_rate=0.0,
)  # fmt: skip
"""The same on several machines: each has files of its own, which an administrator copies to one after another."""

GUEST = replace(
    SECURED,
    name="guest",
    plan=replace(SECURED.plan, duration_s=10.0),
    workloads=("events", "intruder"),
    writing_s=12.0,
    store_count_max=1,
    controller_count_max=1,
    scale_rate=0.0,
)
"""One store and no other load, shorter than tokens live."""


def _read_before_the_check() -> AbstractContextManager[None]:
    original = CallGuard.serve

    async def serve(
        self: CallGuard,
        call: str,
        access_of: AccessOf,
        answer: Callable[[Message], Awaitable[Message]],
        service: ControllerService,
        caller: Caller,
        request: Message,
    ) -> Message:
        if call == "getCurrentSegments":
            await answer(request)
        return await original(self, call, access_of, answer, service, caller, request)

    return patched(CallGuard, "serve", serve)


def _give_readers_of_the_root_a_token_of_servers() -> AbstractContextManager[None]:
    async def claims(
        call: str, request: Message, service: ControllerService, permission: PermissionOf, *, is_strict: bool
    ) -> Claims:
        found = await claims_of(call, request, service, permission, is_strict=is_strict)
        return {tokens.MASTER_CLAIM: Permission.READ_UPDATE} if found and permission(ROOT) else found

    return patched(guard, "claims_of", claims)


def _cover_names_that_begin_alike() -> AbstractContextManager[None]:
    def covers(self: Claim, segment: str) -> bool:
        name = self.name.removeprefix("prn::/scope:").replace("stream:", "", 1)
        return self.name == tokens.MASTER_CLAIM or segment.startswith(name)

    return patched(Claim, "covers", covers)


@contextmanager
def _accept_sessions_for_any_audience() -> Iterator[None]:
    def decode(self: sessions.Sessions, token: str) -> Session:
        import jwt

        for key in self._keys.all:
            try:
                content: Mapping[str, str] = jwt.decode(
                    token, key, algorithms=[tokens.ALGORITHM], options={"verify_aud": False, "verify_exp": False}
                )
            except jwt.PyJWTError:
                continue
            return Session(content["sub"], 1 << 40, 0, content.get("pw", ""), key)
        raise AuthenticationError("not accepted")

    original = sessions._password_mark

    def mark(key: bytes, account: Account) -> str:
        return "" if account.name == tokens.SUBJECT else original(key, account)

    with patched(sessions.Sessions, "_decode", decode), patched(sessions, "_password_mark", mark):
        yield


def _keep_verified_passwords() -> AbstractContextManager[None]:
    def replace_accounts(self: Authenticator, accounts: Accounts) -> None:
        self._accounts = accounts
        self._negative.clear()

    return patched(Authenticator, "replace_accounts", replace_accounts)


def _verify_with_the_first_key() -> AbstractContextManager[None]:
    return patched(TokenKeys, "all", property(lambda keys: keys._keys[:1]))


def _check_the_expiry_once() -> AbstractContextManager[None]:
    original = TokenVerifier.verify

    def verify(self: TokenVerifier, token: str) -> TokenGrant:
        return self._accepted.get(token) or original(self, token)

    return patched(TokenVerifier, "verify", verify)


def _let_writers_outlive_their_tokens() -> AbstractContextManager[None]:
    return patched(WriterTokens, "note", lambda self, writer_id, left_s: None)


def _keep_the_first_keys_of_one_store() -> AbstractContextManager[None]:
    original = ServerSecurity._load_keys

    def load(self: ServerSecurity) -> None:
        if self.keys is None or "store-1" not in self.paths.token_keys.parts:
            original(self)

    return patched(ServerSecurity, "_load_keys", load)


SECURITY_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "read before the permission is checked", "refusals do not depend on what exists",
        GUEST, _read_before_the_check,
    ),
    Mutation(
        "give readers of the root a token of servers", "no token permits more than its account",
        GUEST, _give_readers_of_the_root_a_token_of_servers,
    ),
    Mutation(
        "cover names that begin alike", "a token for one stream permits nothing on another",
        GUEST, _cover_names_that_begin_alike,
    ),
    Mutation(
        "accept sessions for any audience", "a token for stores is no session",
        GUEST, _accept_sessions_for_any_audience,
    ),
    Mutation(
        "keep verified passwords over a change", "removed accounts and earlier passwords are refused",
        GUEST, _keep_verified_passwords,
    ),
    Mutation(
        "verify with the first key", "a rotation of keys invalidates no token",
        SECURED, _verify_with_the_first_key,
    ),
    Mutation(
        "keep the first keys of one store", "each machine reads the keys that are copied to it",
        SECURED_CLUSTER, _keep_the_first_keys_of_one_store,
    ),
    Mutation(
        "check the expiry once", "an expired token is refused",
        SECURED, _check_the_expiry_once,
    ),
    Mutation(
        "let writers outlive their tokens", "the connection of a writer ends with its token",
        SECURED, _let_writers_outlive_their_tokens,
    ),
)  # fmt: skip
"""Bugs of this kind."""
