"""`Accounts`: the accounts file, in Pravega's format, which both systems read.

    user:<encoded hash>:<entry>;<entry>...

Lines that begin with ``#`` are comments. Reading ends at the first empty line, as it does in Pravega.

Source: controller-api 12.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.security.access_list import AccessEntry, AccessList, parse_entry
from penstock.security.errors import AccessEntryError, AccountsError, PasswordHashError
from penstock.security.passwords import NO_PASSWORD, PasswordHash, decode_hash

#: Length of the longest name of an account.
NAME_LENGTH_MAX = 255


@dataclass(frozen=True, slots=True)
class Account:
    """An account. `password` None: it cannot log in with a password."""

    name: str
    password: PasswordHash | None
    access: AccessList = field(default_factory=AccessList)

    def line(self) -> str:
        """Return the line of an accounts file."""
        encoded = NO_PASSWORD if self.password is None else self.password.encode()
        return f"{self.name}:{encoded}:{';'.join(map(str, self.access.entries))}"


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of a file, by name, and what is doubtful in it, a message each."""

    by_name: Mapping[str, Account] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def parse_accounts(text: str) -> Accounts:
    """Parse a file. Raises `AccountsError` for a name that occurs twice, or a password field that cannot be used.

    An entry that cannot be used is ignored, as Pravega does, and reported as a warning.
    """
    found: dict[str, Account] = {}
    warnings: list[str] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            if any(rest.strip() for rest in lines[number:]):
                warnings.append(f"line {number} is empty: reading ends there, and further lines are ignored")
            break
        if line.startswith("#"):
            continue
        account = _parse_line(number, line, warnings)
        if account.name in found:
            raise AccountsError(f"line {number}: account {account.name!r} occurs twice; remove one of its lines")
        found[account.name] = account
    return Accounts(found, warnings)


def _parse_line(number: int, line: str, warnings: list[str]) -> Account:
    parts = line.strip().split(":", 2)
    if len(parts) < 2:
        raise AccountsError(f"line {number}: write it as <user>:<password hash>:<entries>")
    name, encoded = parts[0].strip(), parts[1].strip()
    entries = parts[2] if len(parts) == 3 else ""
    if not name or len(name) > NAME_LENGTH_MAX:
        raise AccountsError(f"line {number}: the name has 1 to {NAME_LENGTH_MAX} characters")
    try:
        password = None if encoded == NO_PASSWORD else decode_hash(encoded)
    except PasswordHashError as error:
        raise AccountsError(f"line {number}, account {name!r}: {error}; set a new one: penstock user passwd") from None
    return Account(name, password, AccessList(tuple(_parse_entries(number, entries, warnings))))


def _parse_entries(number: int, text: str, warnings: list[str]) -> Iterator[AccessEntry]:
    for part in text.split(";"):
        if not part.strip():
            continue
        try:
            entry = parse_entry(part.strip())
        except AccessEntryError as error:
            warnings.append(f"line {number}: {error}; the entry is ignored")
            continue
        scope = entry.pattern.replace(r"\.", "").replace(".*", "")
        if "." in scope:
            warnings.append(f"line {number}: in {entry.pattern!r} a dot matches any character; write it as \\.")
        yield entry


def format_accounts(accounts: Sequence[Account]) -> str:
    """Return the text of a file."""
    return "".join(f"{account.line()}\n" for account in accounts)
