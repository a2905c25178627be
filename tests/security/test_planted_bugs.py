"""Each bug that is planted in the access checks is found by the tests of all access."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.controller.grpc import grants
from penstock.controller.grpc.guard import Caller, CallGuard
from penstock.model.permissions import Permission
from penstock.security import sessions, tokens
from penstock.security.accounts import Accounts
from penstock.security.authenticator import Authenticator
from penstock.security.tokens import Claim, TokenGrant
from penstock.segmentstore import token_access
from penstock.wire.commands import GetStreamSegmentInfo, SealSegment
from security.test_access_matrix import (
    KINDS,
    TOKENS,
    Desk,
    test_every_call_with_every_kind_of_credential,
    test_every_command_with_every_kind_of_token,
)

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    made.authenticator.close()
    await made.runtime.work.close()


def _claim_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim covers every name that begins alike."""

    def covers(claim: Claim, segment: str) -> bool:
        name = claim.name.removeprefix("prn::/scope:").replace("stream:", "", 1)
        return claim.name == "*" or segment.startswith(name)

    monkeypatch.setattr(Claim, "covers", covers)


def _any_audience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_OPTIONS", {**tokens._OPTIONS, "verify_aud": False})


def _master_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that covers everything is one of a server, whatever it permits."""
    monkeypatch.setattr(TokenGrant, "is_master", lambda grant: any(claim.name == "*" for claim in grant.claims))


def _no_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LEEWAY_S", 10**9)


def _read_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {**token_access.RULES, SealSegment: token_access.RULES[GetStreamSegmentInfo]}
    monkeypatch.setattr(token_access, "RULES", rules)


COMMAND_BUGS: dict[str, Plant] = {
    "a claim without its end": _claim_without_end,
    "any audience": _any_audience,
    "a token to read everything counts as a server's": _master_to_read,
    "no expiry": _no_expiry,
    "READ suffices to seal": _read_suffices,
}


@pytest.mark.parametrize("bug", COMMAND_BUGS)
def test_bugs_in_the_access_to_segments_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    COMMAND_BUGS[bug](monkeypatch)

    def run_all() -> None:
        for name in TOKENS:
            for kind in (GetStreamSegmentInfo, SealSegment):
                test_every_command_with_every_kind_of_token(kind, name)

    with pytest.raises(AssertionError):
        run_all()


def _session_of_any_audience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token for stores is taken for a session, where it has what a session has."""
    monkeypatch.setattr(sessions, "_OPTIONS", {"verify_exp": False, "verify_iat": False, "verify_aud": False})
    monkeypatch.setattr(
        sessions, "_session",
        lambda content, key: sessions.Session("everything", 1 << 40, 0, "", key),
    )  # fmt: skip
    monkeypatch.setattr(sessions, "_password_mark", lambda key, account: "")


def _endless_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LEEWAY_S", 10**9)


def _unknown_callers_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    permits = Caller.permits
    monkeypatch.setattr(Caller, "permits", lambda caller, needed: caller.account is None or permits(caller, needed))


def _read_for_write(monkeypatch: pytest.MonkeyPatch) -> None:
    permission = Caller.permission
    monkeypatch.setattr(
        Caller, "permission",
        lambda caller, resource: Permission.READ_UPDATE if permission(caller, resource) else Permission.NONE,
    )  # fmt: skip


def _scope_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern permits all names that begin with it."""
    from penstock.security import access_list

    def permission(entries: Any, resource: str) -> Permission:
        found = [each.permission for each in entries.entries if resource.startswith(each.pattern.rstrip("*"))]
        return found[0] if found else Permission.NONE

    monkeypatch.setattr(access_list.AccessList, "permission", permission)


def _checked_after_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(guard: CallGuard, call: str, access_of: Any, answer: Any, service: Any, caller: Caller,
                    request: Any) -> Any:  # fmt: skip
        return await answer(request)

    monkeypatch.setattr(CallGuard, "serve", serve)


CALL_BUGS: dict[str, Plant] = {
    "a session of any audience": _session_of_any_audience,
    "an endless session": _endless_session,
    "callers without an account pass": _unknown_callers_pass,
    "READ permits changes": _read_for_write,
    "a pattern permits names that begin with it": _scope_prefix,
    "no check before the answer": _checked_after_the_answer,
}


@pytest.mark.parametrize("bug", CALL_BUGS)
async def test_bugs_in_the_access_to_calls_are_found(desk: Desk, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CALL_BUGS[bug](monkeypatch)

    async def run_all() -> None:
        for kind in KINDS:
            await test_every_call_with_every_kind_of_credential(desk, kind)

    with pytest.raises(AssertionError):
        await run_all()


async def test_a_stale_cache_after_a_change_of_accounts_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords that were right before are verified again after the accounts have changed."""
    header = desk.headers["everything"]
    assert await desk.outcome("createScope", header) == "done"
    desk.authenticator.replace_accounts(Accounts())
    assert await desk.outcome("createScope", header) == "unauthenticated"
    other = Desk()
    try:
        assert await other.outcome("createScope", header) == "done"
        monkeypatch.setattr(other.authenticator, "_positive", _Sticky(other.authenticator._positive))
        Authenticator.replace_accounts(other.authenticator, Accounts())
        assert await other.outcome("createScope", header) == "done"  # The planted bug has an effect.
    finally:
        other.authenticator.close()
        await other.runtime.work.close()


class _Sticky(dict[Any, Any]):
    """Remembers although it is cleared."""

    def clear(self) -> None:
        """Do nothing."""

    def move_to_end(self, key: object) -> None:
        """Do nothing."""


def test_names_of_tokens_are_checked() -> None:
    """See `test_secured_server`: a name with a slash would be another stream's segment."""
    assert not grants._NAME.fullmatch("orders/0.#epoch.0")
