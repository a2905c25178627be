"""Checks the files of a server's security without starting it: what would be refused, and what is doubtful."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.security.secrets_directory import (
    SecurityPaths,
    load_certificate,
    read_accounts,
    read_token_keys,
    server_context,
)
from penstock.security.settings import SecuritySettings

#: A certificate that expires within this time is reported.
EXPIRY_WARNING: datetime.timedelta = datetime.timedelta(days=14)
_KEY_LENGTH_GOOD = 64


@dataclass(slots=True)
class Inspection:
    """What was found.

    Attributes:
        errors: a server would not start.
        warnings: it would start, and clients or administrators may not get what they expect.
        facts: what is in order.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def inspect_security(
    settings: SecuritySettings, paths: SecurityPaths, advertised_host: str, now: datetime.datetime
) -> Inspection:
    """Check the files that a server with these settings would read."""
    found = Inspection()
    if not settings.has_tls:
        found.warnings.append("TLS is off: everything, passwords included, is sent in plain text")
    else:
        _inspect_certificate(found, paths, advertised_host, now)
    if not settings.has_auth:
        found.warnings.append("authentication is off: every program that can connect may do everything")
        return found
    if not settings.token_key:
        _inspect_keys(found, paths.token_keys)
    elif len(settings.token_key) < _KEY_LENGTH_GOOD:
        found.warnings.append(f"security.token_key has less than {_KEY_LENGTH_GOOD} characters")
    _inspect_accounts(found, paths)
    return found


def _inspect_certificate(found: Inspection, paths: SecurityPaths, host: str, now: datetime.datetime) -> None:
    try:
        load_certificate(server_context(), paths)
    except InvalidArgumentError as error:
        found.errors.append(str(error))
        return
    _warn_if_readable(found, paths.private_key)
    try:
        from cryptography import x509
    except ImportError:
        found.warnings.append("names and expiry of the certificate were not checked: install the extra [security]")
        return
    leaf = x509.load_pem_x509_certificates(paths.certificate.read_bytes())[0]
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now > end:
        found.errors.append(f"{paths.certificate} expired on {end:%Y-%m-%d}: clients do not connect")
    elif now < begin:
        found.errors.append(f"{paths.certificate} is not valid before {begin:%Y-%m-%d %H:%M} UTC")
    elif end - now < EXPIRY_WARNING:
        found.warnings.append(f"{paths.certificate} expires on {end:%Y-%m-%d}")
    else:
        found.facts.append(f"{paths.certificate} is valid until {end:%Y-%m-%d}")
    names = _names_of(leaf)
    if not names:
        found.warnings.append(f"{paths.certificate} has no subject alternative names: clients do not accept it")
    elif host not in names and not any(_covers(name, host) for name in names):
        found.warnings.append(
            f"clients are given the host {host}, which is not in {paths.certificate}; it has {', '.join(names)}"
        )


def _names_of(certificate: object) -> Sequence[str]:
    from cryptography import x509

    assert isinstance(certificate, x509.Certificate)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return [
        *extension.get_values_for_type(x509.DNSName),
        *map(str, extension.get_values_for_type(x509.IPAddress)),
    ]


def _covers(name: str, host: str) -> bool:
    """Return whether a name with a wildcard covers a host."""
    return name.startswith("*.") and host.partition(".")[2] == name[2:] and "." in host


def _inspect_keys(found: Inspection, path: Path) -> None:
    try:
        keys = read_token_keys(path).all
    except InvalidArgumentError as error:
        found.errors.append(str(error))
        return
    _warn_if_readable(found, path)
    if short := sum(len(key) < _KEY_LENGTH_GOOD for key in keys):
        found.warnings.append(f"{path}: {short} of {len(keys)} keys have less than {_KEY_LENGTH_GOOD} characters")
    found.facts.append(f"{path}: {len(keys)} keys of delegation tokens; the first one signs")


def _inspect_accounts(found: Inspection, paths: SecurityPaths) -> None:
    try:
        accounts = read_accounts(paths.accounts)
    except InvalidArgumentError as error:
        found.errors.append(str(error))
        return
    _warn_if_readable(found, paths.accounts)
    found.warnings.extend(f"{paths.accounts}: {warning}" for warning in accounts.warnings)
    if not accounts.by_name:
        found.warnings.append(f"{paths.accounts} has no account: nothing can be done on the server")
    if paths.administrator_password.exists():
        found.warnings.append(
            f"{paths.administrator_password} still holds the first password: change it with penstock user passwd admin"
        )
    found.facts.append(f"{paths.accounts}: {len(accounts.by_name)} accounts")


def _warn_if_readable(found: Inspection, path: Path) -> None:
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        found.warnings.append(f"{path} may be read by others than its owner: chmod go-r {path}")
