"""Accounts files, password hashes and permissions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.permissions import ROOT, Permission, scope_resource, stream_resource
from penstock.security.access_list import AccessList, literal_pattern, parse_entry
from penstock.security.accounts import Account, format_accounts, parse_accounts
from penstock.security.errors import AccessEntryError, AccountsError, PasswordHashError
from penstock.security.passwords import ITERATIONS_MAX, PasswordHash, decode_hash, hash_password

SALT = bytes(range(32))
FAST = hash_password("1111_aaaa", SALT, 10)


def entry_line(entries: str, name: str = "ann") -> str:
    return f"{name}:{FAST.encode()}:{entries}"


def test_a_password_is_verified_by_its_hash() -> None:
    decoded = decode_hash(hash_password("secret", SALT, 5000).encode())
    assert decoded.verify("secret")
    assert not decoded.verify("Secret")
    assert not decoded.verify("")


def test_the_encoded_form_is_the_one_of_pravega() -> None:
    # Hexadecimal text of "iterations:salt:hash", each part hexadecimal too, with a hash of 512 bits.
    text = bytes.fromhex(hash_password("x", SALT, 5000).encode()).decode()
    iterations, salt, digest = text.split(":")
    assert (iterations, salt, len(digest)) == ("5000", SALT.hex(), 128)


@pytest.mark.parametrize(
    "text",
    ["", "xyz", "abc", b"1:2:3".hex(), b"a:00:00".hex(), b"0:00:00".hex(),
     f"{ITERATIONS_MAX + 1}:00:00".encode().hex(), b"5::00".hex(), b"5:00".hex(), "ff"],
)  # fmt: skip
def test_a_text_that_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(PasswordHashError):
        decode_hash(text)


def test_a_hash_is_not_in_its_representation() -> None:
    assert FAST.digest.hex() not in repr(FAST)
    assert FAST.salt.hex() not in repr(FAST)
    assert FAST.digest.hex() not in repr(Account("ann", FAST))


@pytest.mark.parametrize(
    ("entries", "resource", "permission"),
    [
        ("prn::*,READ_UPDATE", stream_resource("shop", "orders"), Permission.READ_UPDATE),
        ("prn::/,READ", ROOT, Permission.READ),
        ("prn::/,READ", scope_resource("shop"), Permission.NONE),
        ("prn::/scope:shop,READ", scope_resource("shopping"), Permission.NONE),
        ("prn::/scope:shop/*,READ", stream_resource("shop", "orders"), Permission.READ),
        ("prn::/scope:shop/*,READ", scope_resource("shop"), Permission.NONE),
        ("prn::/scope:shop/stream:a.b,READ", stream_resource("shop", "axb"), Permission.READ),
        (r"prn::/scope:shop/stream:a\.b,READ", stream_resource("shop", "axb"), Permission.NONE),
        # The first entry that matches decides.
        ("prn::/scope:shop,NONE;prn::*,READ_UPDATE", scope_resource("shop"), Permission.NONE),
        # A star becomes ".*" after a dot, too: "..*" needs one character more.
        ("prn::/scope:a.*,READ", scope_resource("a"), Permission.NONE),
        ("prn::/scope:a.*,READ", scope_resource("ab"), Permission.READ),
    ],
)
def test_the_first_matching_entry_decides(entries: str, resource: str, permission: Permission) -> None:
    account = parse_accounts(entry_line(entries)).by_name["ann"]
    assert account.access.permission(resource) is permission


@pytest.mark.parametrize("text", ["prn::*", ",READ", "prn::*,WRITE", "prn::(,READ", "a" * 2000 + ",READ"])
def test_an_entry_that_cannot_be_used_is_reported_and_ignored(text: str) -> None:
    with pytest.raises(AccessEntryError):
        parse_entry(text)
    found = parse_accounts(entry_line(f"{text};prn::/,READ"))
    assert found.by_name["ann"].access.permission(ROOT) is Permission.READ
    assert "line 1" in found.warnings[0]


def test_reading_ends_at_the_first_empty_line_as_in_pravega() -> None:
    found = parse_accounts(f"# comment\n{entry_line('')}\n\n{entry_line('', 'bob')}\n")
    assert list(found.by_name) == ["ann"]
    assert "line 3 is empty" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{entry_line('')}\n{entry_line('')}", "line 2: account 'ann' occurs twice"),
        ("ann:zz:", "line 1, account 'ann'"),
        ("ann", "line 1: write it as"),
        (":zz:", "line 1: the name"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_line(text: str, reason: str) -> None:
    with pytest.raises(AccountsError, match=reason) as refused:
        parse_accounts(text)
    assert FAST.digest.hex() not in str(refused.value)


def test_an_account_without_password_is_kept() -> None:
    account = parse_accounts("tool:!:prn::/,READ").by_name["tool"]
    assert account.password is None
    assert parse_accounts(format_accounts([account])).by_name["tool"] == account


NAMES = st.from_regex(r"[A-Za-z0-9_\-.]{1,20}", fullmatch=True)


@given(st.lists(st.tuples(NAMES, st.sampled_from(list(Permission))), max_size=5), NAMES)
def test_accounts_survive_writing_and_reading(entries: list[tuple[str, Permission]], name: str) -> None:
    access = AccessList(tuple(
        parse_entry(f"{literal_pattern(scope_resource(scope))},{permission.name}") for scope, permission in entries
    ))  # fmt: skip
    account = Account(name, PasswordHash(7, SALT, SALT * 2), access)
    assert parse_accounts(format_accounts([account])).by_name == {name: account}


@given(NAMES, NAMES)
def test_a_literal_pattern_matches_only_its_resource(scope: str, other: str) -> None:
    access = AccessList((parse_entry(f"{literal_pattern(scope_resource(scope))},READ"),))
    assert (access.permission(scope_resource(other)) is Permission.READ) is (scope == other)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused_with_the_typed_error(text: str) -> None:
    try:
        parse_accounts(text)
    except AccountsError:
        pass
