"""``penstock user``: the accounts of a secured server. What they are for: docs/guide/security.md."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_audit import CommandAudit
from penstock.cli.failure import exit_on_error
from penstock.cli.output import table, tell

if TYPE_CHECKING:
    from penstock.security.access_list import AccessEntry
    from penstock.security.accounts_file import AccountsFile

DataDir = Annotated[str, typer.Option(help="The server's data directory; its accounts are in security/passwd.")]
AccountsPath = Annotated[Path | None, typer.Option("--accounts", help="The file of accounts, if it is elsewhere.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Name = Annotated[str, typer.Argument(metavar="USER", help="The account.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(help="A file whose first line is the password. Without it the password is read from the terminal, or "
                 "from standard input."),
]  # fmt: skip
Entries = Annotated[
    list[str] | None,
    typer.Option(
        "--grant", metavar="PATTERN,PERMISSION",
        help="What the account may do, e.g. 'prn::/scope:shop/*,READ'; may be repeated. READ, READ_UPDATE or NONE.",
    ),
]  # fmt: skip

user: typer.Typer = typer.Typer(
    name="user", help="Accounts of a secured server, and what they may do.", pretty_exceptions_enable=False
)


def _file(data_dir: str, accounts: Path | None) -> AccountsFile:
    from penstock.security.accounts_file import AccountsFile

    return AccountsFile(accounts or Path(data_dir) / "security" / "passwd", os.urandom)


def _record(file: AccountsFile, command: str, name: str, **change: object) -> None:
    """Record a change in the audit log, if the server has one beside the accounts. Raises `AuditLogError`."""
    from penstock.security.secrets_directory import AUDIT_LOG_NAME

    path = file.path.with_name(AUDIT_LOG_NAME)
    if path.exists():
        CommandAudit(path, f"user {command}", f"account:{name}", change).record("done")


def _password(file: Path | None) -> str:
    """Return a password from a file, the terminal (asked twice), or standard input."""
    from penstock.model.errors import InvalidArgumentError

    if file is not None:
        try:
            found = file.read_text().split("\n", 1)[0]
        except OSError as error:
            raise InvalidArgumentError(f"{file} cannot be read: {error.strerror or error}") from error
    elif sys.stdin.isatty():
        found = getpass.getpass("Password: ")
        if found != getpass.getpass("Again: "):
            raise InvalidArgumentError("the two passwords differ; nothing was changed")
    else:
        found = sys.stdin.readline().rstrip("\n")
    if not found:
        raise InvalidArgumentError("the password is empty; nothing was changed")
    return found


def _entry(text: str) -> AccessEntry:
    from penstock.model.errors import InvalidArgumentError
    from penstock.security.access_list import parse_entry
    from penstock.security.errors import AccessEntryError

    try:
        return parse_entry(text)
    except AccessEntryError as error:
        raise InvalidArgumentError(str(error)) from error


@user.command()
def add(
    name: Name,
    grant: Entries = None,
    password_file: PasswordFile = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="The account cannot log in with a password.")
    ] = False,
    data_dir: DataDir = "penstock-data",
    accounts: AccountsPath = None,
    as_json: AsJson = False,
) -> None:
    """Add an account. The server reads the file again by itself."""
    with exit_on_error(as_json=as_json):
        entries = [_entry(text) for text in grant or ()]
        file = _file(data_dir, accounts)
        file.add(name, None if no_password else _password(password_file), entries)
        _record(file, "add", name, entries=list(map(str, entries)))
    fields: dict[str, object] = {"user": name, "file": str(file.path)}
    tell("user_added", fields, [f"account {name} is added to {file.path}"], as_json=as_json)


@user.command()
def passwd(
    name: Name,
    password_file: PasswordFile = None,
    data_dir: DataDir = "penstock-data",
    accounts: AccountsPath = None,
    as_json: AsJson = False,
) -> None:
    """Set the password of an account."""
    with exit_on_error(as_json=as_json):
        file = _file(data_dir, accounts)
        file.set_password(name, _password(password_file))
        _record(file, "passwd", name)
        if name == "admin" and accounts is None:
            (file.path.parent / "admin.password").unlink(missing_ok=True)
    tell("password_set", {"user": name}, [f"account {name} has a new password"], as_json=as_json)


@user.command()
def remove(
    name: Name, data_dir: DataDir = "penstock-data", accounts: AccountsPath = None, as_json: AsJson = False
) -> None:
    """Remove an account. Delegation tokens that it has got stay valid until they expire."""
    with exit_on_error(as_json=as_json):
        file = _file(data_dir, accounts)
        file.remove(name)
        _record(file, "remove", name)
    tell("user_removed", {"user": name}, [f"account {name} is removed"], as_json=as_json)


@user.command()
def grant(
    name: Name,
    entry: Annotated[str, typer.Argument(metavar="PATTERN,PERMISSION", help="e.g. 'prn::/scope:shop/*,READ'.")],
    data_dir: DataDir = "penstock-data",
    accounts: AccountsPath = None,
    as_json: AsJson = False,
) -> None:
    """Permit an account something. The new entry comes first, so it decides where several match."""
    with exit_on_error(as_json=as_json):
        file = _file(data_dir, accounts)
        file.grant(name, _entry(entry))
        _record(file, "grant", name, entry=entry)
    tell("permission_granted", {"user": name, "entry": entry}, [f"account {name} has {entry}"], as_json=as_json)


@user.command()
def revoke(
    name: Name,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="The pattern of the entry.")],
    data_dir: DataDir = "penstock-data",
    accounts: AccountsPath = None,
    as_json: AsJson = False,
) -> None:
    """Remove an entry of an account."""
    with exit_on_error(as_json=as_json):
        file = _file(data_dir, accounts)
        file.revoke(name, pattern)
        _record(file, "revoke", name, pattern=pattern)
    tell("permission_revoked", {"user": name, "pattern": pattern}, [f"account {name} lost {pattern}"], as_json=as_json)


@user.command("list")
def list_users(data_dir: DataDir = "penstock-data", accounts: AccountsPath = None, as_json: AsJson = False) -> None:
    """Print the accounts and what they may do."""
    with exit_on_error(as_json=as_json):
        found = _file(data_dir, accounts).read()
    rows = [
        (account.name, "yes" if account.password else "no", "; ".join(map(str, account.access.entries)))
        for account in found.by_name.values()
    ]
    users = [
        {"user": name, "has_password": has_password == "yes", "entries": entries.split("; ") if entries else []}
        for name, has_password, entries in rows
    ]
    tell("users", {"users": users}, table(("user", "password", "entries"), rows), as_json=as_json)


@user.command()
def check(data_dir: DataDir = "penstock-data", accounts: AccountsPath = None, as_json: AsJson = False) -> None:
    """Check the file of accounts: exit with 1 if a server would refuse it, and print what is doubtful."""
    with exit_on_error(as_json=as_json):
        found = _file(data_dir, accounts).read()
    lines = [*found.warnings, f"{len(found.by_name)} accounts"]
    tell("users_checked", {"accounts": len(found.by_name), "warnings": list(found.warnings)}, lines, as_json=as_json)
