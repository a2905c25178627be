"""`AccountsFile`: changes an accounts file: one change at a time, each complete or not made at all.

Lines that are not changed stay as they are, comments included. The server reads a changed file again by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.security.access_list import AccessEntry, AccessList
from penstock.security.accounts import NAME_LENGTH_MAX, Account, Accounts, parse_accounts
from penstock.security.errors import AccountsError, SecurityFileError
from penstock.security.passwords import SALT_LENGTH, hash_password
from penstock.security.secrets_directory import read_accounts


class AccountsFile:
    """See the module. `random_bytes` returns random bytes of a length."""

    def __init__(self, path: Path, random_bytes: Callable[[int], bytes]) -> None:
        self.path = path
        self._random_bytes = random_bytes

    def read(self) -> Accounts:
        """Return the accounts. Raises `SecurityFileError`."""
        return read_accounts(self.path)

    def add(self, name: str, password: str | None, entries: Sequence[AccessEntry]) -> None:
        """Add an account; without a password it can only log in with a client certificate. Makes the file if needed.

        Raises `AccountsError` for a bad name, or one that exists.
        """
        _check_name(name)
        with self._changing(is_made=True) as lines:
            if name in parse_accounts("\n".join(lines)).by_name:
                raise AccountsError(f"account {name!r} exists: set its password with penstock user passwd {name}")
            lines.append(self._account(name, password, entries).line())

    def set_password(self, name: str, password: str) -> None:
        """Change the password of an account. Raises `AccountsError` without one."""
        with self._changing() as lines:
            number, account = _find(lines, name)
            lines[number] = self._account(name, password, account.access.entries).line()

    def remove(self, name: str) -> None:
        """Remove an account. Raises `AccountsError` without one."""
        with self._changing() as lines:
            number, _ = _find(lines, name)
            del lines[number]

    def grant(self, name: str, entry: AccessEntry) -> None:
        """Put an entry before the others of an account, so that it decides; one with the same pattern is replaced."""
        with self._changing() as lines:
            number, account = _find(lines, name)
            others = [each for each in account.access.entries if each.pattern != entry.pattern]
            lines[number] = Account(name, account.password, AccessList((entry, *others))).line()

    def revoke(self, name: str, pattern: str) -> None:
        """Remove the entries with this pattern. Raises `AccountsError` if the account has none."""
        with self._changing() as lines:
            number, account = _find(lines, name)
            left = tuple(each for each in account.access.entries if each.pattern != pattern)
            if len(left) == len(account.access.entries):
                known = ", ".join(each.pattern for each in account.access.entries) or "none"
                raise AccountsError(f"account {name!r} has no entry {pattern!r}; its entries are: {known}")
            lines[number] = Account(name, account.password, AccessList(left)).line()

    def _account(self, name: str, password: str | None, entries: Sequence[AccessEntry]) -> Account:
        hashed = None if password is None else hash_password(password, self._random_bytes(SALT_LENGTH))
        return Account(name, hashed, AccessList(tuple(entries)))

    @contextmanager
    def _changing(self, *, is_made: bool = False) -> Iterator[list[str]]:
        """Lock the file, yield its lines, and write them in its place unless the block raises."""
        import fcntl

        if is_made:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not self.path.exists():
            raise SecurityFileError(f"{self.path} is missing: add a first account with penstock user add")
        lock = self.path.with_name(self.path.name + ".lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = self.path.read_text() if self.path.exists() else ""
            parse_accounts(text)  # A file that cannot be used is not changed.
            lines = text.splitlines()
            # Reading ends at the first empty line: what is added after one would have no effect.
            end = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
            if any(line.strip() for line in lines[end:]):
                raise AccountsError(
                    f"{self.path}: line {end + 1} is empty, and the lines after it are ignored: remove it"
                )
            lines = lines[:end]
            yield lines
            self._replace("".join(f"{line}\n" for line in lines))
        finally:
            os.close(descriptor)

    def _replace(self, text: str) -> None:
        draft = self.path.with_name(self.path.name + ".new")
        mode = self.path.stat().st_mode & 0o777 if self.path.exists() else 0o600
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.fchmod(descriptor, mode)
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(self.path)


def _find(lines: Sequence[str], name: str) -> tuple[int, Account]:
    """Return the line number and the account. Raises `AccountsError`."""
    for number, line in enumerate(lines):
        if not line.startswith("#") and line.split(":", 1)[0].strip() == name:
            return number, parse_accounts(line).by_name[name]
    known = ", ".join(sorted(parse_accounts("\n".join(lines)).by_name)) or "none"
    raise AccountsError(f"there is no account {name!r}; the accounts are: {known}")


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_LENGTH_MAX or ":" in name or name.startswith("#") or name != name.strip():
        raise InvalidArgumentError(
            f"account {name!r}: a name has 1 to {NAME_LENGTH_MAX} characters, no colon, no spaces around it, and does "
            "not begin with #"
        )
    if not name.isprintable():
        raise InvalidArgumentError(f"account {name!r}: a name has printable characters")
