"""The files of a server's security: accounts, token keys, certificate. They are made on request, and read again.

A file that others than its owner may write is refused: it decides who may do what.
"""

from __future__ import annotations

import base64
import datetime
import errno
import os
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.model.permissions import Permission
from penstock.security.access_list import AccessEntry, AccessList
from penstock.security.accounts import Account, Accounts, format_accounts, parse_accounts
from penstock.security.certificates import make_certificates
from penstock.security.errors import SecurityFileError
from penstock.security.passwords import SALT_LENGTH, hash_password
from penstock.security.settings import SecuritySettings
from penstock.security.tokens import TokenKeys

#: The first account, which may do everything.
ADMINISTRATOR = "admin"
#: The log of changes and refusals, beside the accounts.
AUDIT_LOG_NAME = "audit.jsonl"
#: Length of a key that is made here. Signatures of HMAC-SHA512 need no longer one.
_KEY_LENGTH = 64
_PASSWORD_LENGTH = 18
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module `ssl` does not name.
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)


@dataclass(frozen=True, slots=True)
class SecurityPaths:
    """Where the files are."""

    directory: Path
    certificate: Path
    private_key: Path
    accounts: Path
    token_keys: Path
    #: The certificate of the authority that was made with the server's certificate, for clients.
    authority: Path

    @property
    def audit_log(self) -> Path:
        """The log of changes and refusals, unless it is elsewhere."""
        return self.directory / AUDIT_LOG_NAME

    @property
    def administrator_password(self) -> Path:
        """The first password of the administrator."""
        return self.directory / "admin.password"


def security_paths(settings: SecuritySettings, data_dir: str) -> SecurityPaths:
    """Return the paths: those of the settings, or the defaults in the data directory."""
    directory = Path(data_dir) / "security"

    def path(text: str, name: str) -> Path:
        return Path(text) if text else directory / name

    return SecurityPaths(
        directory,
        path(settings.certificate, "server.crt"),
        path(settings.private_key, "server.key"),
        path(settings.accounts, "passwd"),
        path(settings.token_key_file, "token.key"),
        path(settings.authority, "ca.crt"),
    )


def make_missing_files(
    paths: SecurityPaths,
    names: Sequence[str],
    random_bytes: Callable[[int], bytes],
    now: datetime.datetime,
    *,
    needs_token_key: bool = True,
) -> str | None:
    """Make the files that are missing; return the administrator's password if the accounts were made.

    `names`: host names and addresses for the certificate. Existing files are not changed. Raises `SecurityFileError`
    if only one of certificate and key exists, and `InvalidArgumentError` without the package for certificates.
    """
    paths.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if paths.certificate.exists() != paths.private_key.exists():
        missing = paths.private_key if paths.certificate.exists() else paths.certificate
        raise SecurityFileError(f"{missing} is missing, and its counterpart exists: restore it, or remove both")
    if not paths.certificate.exists():
        made = make_certificates(names, now)
        write_file(paths.private_key, made.private_key, 0o600)
        write_file(paths.authority, made.authority, 0o644)
        # Last: its presence means that the others exist.
        write_file(paths.certificate, made.certificate, 0o644)
    if needs_token_key and not paths.token_keys.exists():
        write_file(paths.token_keys, base64.b64encode(random_bytes(_KEY_LENGTH)) + b"\n", 0o600)
    if paths.accounts.exists():
        return None
    password = base64.urlsafe_b64encode(random_bytes(_PASSWORD_LENGTH)).decode()
    access = AccessList((AccessEntry("prn::*", Permission.READ_UPDATE),))
    account = Account(ADMINISTRATOR, hash_password(password, random_bytes(SALT_LENGTH)), access)
    paths.administrator_password.unlink(missing_ok=True)  # Of a start that was interrupted before the next step.
    write_file(paths.administrator_password, f"{password}\n".encode(), 0o600)
    write_file(paths.accounts, format_accounts([account]).encode(), 0o600)
    return password


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file completely, or not at all; an existing one is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, "the file was not written completely", str(draft))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)


def read_accounts(path: Path) -> Accounts:
    """Read an accounts file. Raises `SecurityFileError`, and `AccountsError` for its content."""
    text = _read(path, "accounts; make one with penstock user add").decode("utf-8", "replace")
    try:
        return parse_accounts(text)
    except InvalidArgumentError as error:
        raise SecurityFileError(f"{path}: {error}") from error


def read_token_keys(path: Path) -> TokenKeys:
    """Read the keys of delegation tokens, one per line; a line is used as it is. Raises `SecurityFileError`."""
    content = _read(path, "token keys; use --secure to make one")
    try:
        return TokenKeys(tuple(line.strip() for line in content.splitlines() if line.strip()))
    except InvalidArgumentError as error:
        raise SecurityFileError(f"{path}: {error}") from error


def load_certificate(context: ssl.SSLContext, paths: SecurityPaths) -> None:
    """Load the certificate and key of a server into a context. Raises `SecurityFileError`."""
    load_pair(context, paths.certificate, paths.private_key)


def load_pair(context: ssl.SSLContext, certificate: Path, private_key: Path) -> None:
    """Load a certificate and its key into a context.

    They are loaded into another context first: one that fails to load a new pair is unusable. Raises
    `SecurityFileError`.
    """
    _check_owner(private_key)
    try:
        server_context().load_cert_chain(certificate, private_key, password=_no_password)
        context.load_cert_chain(certificate, private_key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise SecurityFileError(f"certificate {certificate} with key {private_key} cannot be used: {error}") from error


def trust_own_certificate(context: ssl.SSLContext, paths: SecurityPaths) -> None:
    """Let a context of `peer_context` accept the server's certificate, too. Raises `SecurityFileError`."""
    try:
        context.load_verify_locations(paths.certificate)
    except (OSError, ssl.SSLError) as error:
        raise SecurityFileError(f"certificate {paths.certificate} cannot be used: {error}") from error


def cluster_context(paths: SecurityPaths) -> ssl.SSLContext:
    """Return a context for connections to other processes of a cluster. Their certificates are checked as by clients.

    Raises `SecurityFileError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if paths.authority.exists():
        trust_authority(context, paths)
    else:
        context.load_default_certs()
    return context


def trust_authority(context: ssl.SSLContext, paths: SecurityPaths) -> None:
    """Let a context accept certificates of the authority of a cluster, too. Raises `SecurityFileError`."""
    try:
        context.load_verify_locations(paths.authority)
    except (OSError, ssl.SSLError) as error:
        raise SecurityFileError(f"authority {paths.authority} cannot be used: {error}") from error


def peer_context() -> ssl.SSLContext:
    """Return a context for connections between the processes of one server, which share its certificate.

    Only certificates added with `trust_own_certificate` are accepted, under any host name, also after their expiry:
    the processes run on one host, and an expired certificate must not stop the server.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    return context


def _no_password() -> str:
    raise SecurityFileError("the private key is encrypted: a server needs one without a password")


def server_context() -> ssl.SSLContext:
    """Return a context for servers, without a certificate: TLS 1.2 or later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read(path: Path, what: str) -> bytes:
    try:
        _check_owner(path)
        return path.read_bytes()
    except FileNotFoundError as error:
        raise SecurityFileError(f"{path} is missing: it holds the {what}") from error
    except OSError as error:
        raise SecurityFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_owner(path: Path) -> None:
    """Raise `SecurityFileError` if others than the owner may write a file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # What reads it reports the cause.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SecurityFileError(f"{path} may be written by others than its owner: chmod go-w {path}")
