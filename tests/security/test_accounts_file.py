"""Changes of an accounts file, and the commands that make them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.security import passwords
from penstock.security.access_list import parse_entry
from penstock.security.accounts_file import AccountsFile
from penstock.security.errors import AccountsError, SecurityFileError

READ_SHOP = parse_entry("prn::/scope:shop,READ")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AccountsFile:
    """A file with the account ``ann``. Hashing is fast."""
    monkeypatch.setattr(passwords, "ITERATIONS", 10)
    monkeypatch.setattr("penstock.security.accounts_file.hash_password", lambda text, salt: passwords.hash_password(
        text, salt, 10
    ))  # fmt: skip
    made = AccountsFile(tmp_path / "security" / "passwd", os.urandom)
    made.add("ann", "secret", [READ_SHOP])
    return made


def test_a_new_file_is_readable_by_its_owner_only(file: AccountsFile) -> None:
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


def test_accounts_are_added_changed_and_removed(file: AccountsFile) -> None:
    file.add("bob", None, [])
    accounts = file.read().by_name
    assert accounts["ann"].password is not None
    assert accounts["ann"].password.verify("secret")
    assert accounts["bob"].password is None
    file.set_password("ann", "new")
    changed = file.read().by_name["ann"]
    assert changed.password is not None
    assert changed.password.verify("new")
    assert changed.access == accounts["ann"].access
    file.remove("bob")
    assert list(file.read().by_name) == ["ann"]


def test_a_granted_entry_decides_before_the_others(file: AccountsFile) -> None:
    file.grant("ann", parse_entry("prn::/scope:shop/stream:orders,READ_UPDATE"))
    file.grant("ann", parse_entry("prn::/scope:shop,NONE"))
    entries = [str(entry) for entry in file.read().by_name["ann"].access.entries]
    assert entries == ["prn::/scope:shop,NONE", "prn::/scope:shop/stream:orders,READ_UPDATE"]
    file.revoke("ann", "prn::/scope:shop")
    with pytest.raises(AccountsError, match="has no entry"):
        file.revoke("ann", "prn::/scope:shop")


def test_unchanged_lines_are_preserved(file: AccountsFile) -> None:
    text = file.path.read_text()
    file.path.write_text(f"# who may do what\n{text}")
    file.add("bob", "secret", [])
    assert file.path.read_text().startswith(f"# who may do what\n{text}")


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a\n", "x" * 300])
def test_a_name_that_the_file_cannot_hold_is_refused(file: AccountsFile, name: str) -> None:
    before = file.path.read_bytes()
    with pytest.raises(InvalidArgumentError):
        file.add(name, "secret", [])
    assert file.path.read_bytes() == before


def test_a_refused_change_writes_nothing(file: AccountsFile, tmp_path: Path) -> None:
    before = file.path.read_bytes()
    with pytest.raises(AccountsError, match="exists"):
        file.add("ann", "other", [])
    with pytest.raises(AccountsError, match="no account 'bob'; the accounts are: ann"):
        file.remove("bob")
    assert file.path.read_bytes() == before
    file.path.write_text("broken\n")
    with pytest.raises(AccountsError, match="line 1"):
        file.add("bob", "secret", [])
    assert file.path.read_text() == "broken\n"
    with pytest.raises(SecurityFileError, match="is missing"):
        AccountsFile(tmp_path / "none", os.urandom).remove("ann")


def test_accounts_after_an_empty_line_are_not_lost_silently(file: AccountsFile) -> None:
    file.path.write_text(file.path.read_text() + "\nbob:!:\n")
    with pytest.raises(AccountsError, match="line 2 is empty"):
        file.add("carl", "secret", [])


def test_a_file_that_others_may_write_is_refused(file: AccountsFile) -> None:
    file.path.chmod(0o660)
    with pytest.raises(SecurityFileError, match="chmod go-w"):
        file.read()
