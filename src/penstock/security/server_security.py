"""`ServerSecurity`: the security of one server process: its files, kept up to date, and what is made from them.

Changed files are applied without a restart. A file that cannot be used leaves the previous state in force, with a
warning in the log and a problem in `problem`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

import grpc

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.waits import cancel_and_wait
from penstock.runtime.work import BlockingWork
from penstock.security.accounts import Accounts
from penstock.security.authenticator import Authenticator
from penstock.security.client_certificates import (
    NONE,
    PORT_OFFSET,
    CallerCertificates,
    CertificatePort,
    ask_for_certificates,
    read_client_authorities,
)
from penstock.security.secrets_directory import (
    SecurityPaths,
    cluster_context,
    load_certificate,
    peer_context,
    read_accounts,
    read_token_keys,
    server_context,
    trust_authority,
    trust_own_certificate,
)
from penstock.security.sessions import Sessions
from penstock.security.settings import SecuritySettings
from penstock.security.tokens import TokenKeys, TokenSigner, TokenVerifier

logger: logging.Logger = logging.getLogger(__name__)

#: Keys that are shorter are accepted, as Pravega does, with a warning.
_KEY_LENGTH_GOOD = 32
#: Size and modification time of a file; None: it is missing.
_Stamp = tuple[int, int] | None
#: Private key and certificate, and the authorities of clients; None: no certificate is asked for.
_Served = tuple[tuple[bytes, bytes], bytes | None]


class ServerSecurity:
    """See the module. Create it with `open_security`; `start` begins to check the files.

    Attributes:
        authenticator, sessions: None without authentication, or in a process without controller.
        signer: None without authentication.
        verifier: None without authentication.
        tls: the context of ports of asyncio; None without TLS.
        peer_tls: the context of connections to other processes of this server or cluster; None without TLS.
        keys: None without authentication.
        certificates: finds the accounts of client certificates; None: none are accepted.
        problem: why the files could not be read again; empty: they could.
    """

    def __init__(self, settings: SecuritySettings, paths: SecurityPaths, *, is_cluster: bool = False) -> None:
        self.settings = settings
        self.paths = paths
        self.authenticator: Authenticator | None = None
        self.signer: TokenSigner | None = None
        self.verifier: TokenVerifier | None = None
        self.keys: TokenKeys | None = None
        self._is_cluster = is_cluster
        self.sessions: Sessions | None = None
        self.tls: ssl.SSLContext | None = None
        self.peer_tls: ssl.SSLContext | None = None
        self.certificates: CallerCertificates | None = (
            None if settings.client_certificates == NONE else CallerCertificates()
        )
        self.problem: str = ""
        self._client_authorities: bytes = b""
        self._pem: tuple[bytes, bytes] = (b"", b"")
        self._stamps: dict[Path, _Stamp] = {}
        self._task: asyncio.Task[None] | None = None

    def grpc_credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of the controller's port, which follow the files; None without TLS."""
        if not self.settings.has_tls:
            return None
        return self._credentials(needs_certificate=self.settings.requires_certificates)

    def certificate_port(self, controller_port: int) -> CertificatePort | None:
        """Return the further port of a controller, for client certificates; None: it has no such port.

        `controller_port`: the wanted port of the controller; 0: any free one.
        """
        if not self.settings.has_certificate_port:
            return None
        derived = controller_port + PORT_OFFSET if controller_port else 0
        return CertificatePort(self.settings.certificate_port or derived, self._credentials(needs_certificate=True))

    def _credentials(self, *, needs_certificate: bool) -> grpc.ServerCredentials:
        def present() -> _Served:
            # The server's own certificate is trusted, too: its processes are clients of the controller.
            return self._pem, self._client_authorities + self._pem[1] if needs_certificate else None

        served = [present()]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            if served[0] == (found := present()):
                return None
            served[0] = found
            return _configuration(found)

        # gRPC accepts None for "no change", which its type stubs do not say.
        fetcher = cast(Callable[[], grpc.ServerCertificateConfiguration], fetch)
        return grpc.dynamic_ssl_server_credentials(_configuration(served[0]), fetcher, needs_certificate)

    def start(self) -> None:
        """Begin to check the files for changes."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Stop checking."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
        if self.authenticator is not None:
            self.authenticator.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reload_interval_s)
            self.reload_changed()

    @property
    def is_current(self) -> bool:
        """Whether the files are those that were read last."""
        return all(self._stamps.get(path) == _stamp_of(path) for files, _ in self._loads() for path in files)

    def reload_changed(self) -> None:
        """Read the files that have changed. The files are small and local, so that takes no thread."""
        problems = []
        for files, load in self._loads():
            stamps = {path: _stamp_of(path) for path in files}
            if all(self._stamps.get(path) == stamp for path, stamp in stamps.items()):
                continue
            try:
                load()
            except InvalidArgumentError as error:
                problems.append(str(error))
                if str(error) not in self.problem:
                    logger.warning("the previous state stays in force: %s", error)
            else:
                self._stamps.update(stamps)
                logger.warning("read again, because it changed: %s", ", ".join(map(str, files)))
        self.problem = "; ".join(problems)

    def load_all(self) -> None:
        """Read all files. Raises `SecurityFileError`."""
        for files, load in self._loads():
            stamps = {path: _stamp_of(path) for path in files}
            load()
            self._stamps.update(stamps)

    def _loads(self) -> list[tuple[tuple[Path, ...], Callable[[], None]]]:
        found: list[tuple[tuple[Path, ...], Callable[[], None]]] = []
        if self.tls is not None:
            files = (self.paths.certificate, self.paths.private_key)
            found.append((files, self._load_certificate))
            if self.certificates is not None:
                found.append(((Path(self.settings.client_ca),), self._load_client_authorities))
        if self.peer_tls is not None and self._is_cluster and self.paths.authority.exists():
            found.append(((self.paths.authority,), self._load_authority))
        if self.authenticator is not None:
            found.append(((self.paths.accounts,), self._load_accounts))
        if self.verifier is not None:
            found.append((() if self.settings.token_key else (self.paths.token_keys,), self._load_keys))
        return found

    def _load_certificate(self) -> None:
        assert self.tls is not None
        load_certificate(self.tls, self.paths)
        if self.peer_tls is not None and not self._is_cluster:
            # Earlier ones stay: another process may read the new files later.
            trust_own_certificate(self.peer_tls, self.paths)
        try:
            self._pem = (self.paths.private_key.read_bytes(), self.paths.certificate.read_bytes())
        except OSError as error:
            raise InvalidArgumentError(f"{error.filename} cannot be read: {error.strerror}") from error

        if self.certificates is not None:
            self.certificates.add_own(self._pem[1])

    def _load_client_authorities(self) -> None:
        assert self.tls is not None
        authorities = read_client_authorities(Path(self.settings.client_ca))
        ask_for_certificates(self.tls, authorities)
        if self._client_authorities and authorities != self._client_authorities:
            logger.warning(
                "security.client_ca changed: the controller trusts exactly the new authorities, and segment stores "
                "also the previous ones until they are restarted"
            )
        self._client_authorities = authorities

    def _load_authority(self) -> None:
        assert self.peer_tls is not None
        trust_authority(self.peer_tls, self.paths)

    def _load_accounts(self) -> None:
        assert self.authenticator is not None
        accounts = read_accounts(self.paths.accounts)
        for warning in accounts.warnings:
            logger.warning("%s: %s", self.paths.accounts, warning)
        self.authenticator.replace_accounts(accounts)

    def _load_keys(self) -> None:
        text = self.settings.token_key
        keys = TokenKeys((text.encode(),)) if text else read_token_keys(self.paths.token_keys)
        if min(map(len, keys.all)) < _KEY_LENGTH_GOOD:
            where = "security.token_key" if text else self.paths.token_keys
            logger.warning("%s has a key of less than %d characters, which can be guessed", where, _KEY_LENGTH_GOOD)
        self.keys = keys
        if self.signer is not None:
            self.signer.replace_keys(keys)
        if self.sessions is not None:
            self.sessions.replace_keys(keys)
        assert self.verifier is not None
        self.verifier.replace_keys(keys)


def open_security(
    settings: SecuritySettings,
    paths: SecurityPaths,
    work: BlockingWork,
    wall_clock_s: Callable[[], float],
    *,
    has_controller: bool = True,
    is_cluster: bool = False,
) -> ServerSecurity:
    """Read the files of a server process. Raises `SecurityFileError`.

    `is_cluster`: its peers have certificates of their own, and names.
    """
    security = ServerSecurity(settings, paths, is_cluster=is_cluster)
    if settings.requires_certificates and has_controller:
        logger.warning(
            "security.client_certificates is required: clients of Pravega cannot connect: none presents a certificate"
        )
    if settings.has_tls:
        security.tls = server_context()
        if has_controller:
            security.peer_tls = cluster_context(paths) if is_cluster else peer_context()
    if settings.has_auth:
        keys = TokenKeys((os.urandom(_KEY_LENGTH_GOOD),))  # Until the file is read, right below.
        security.verifier = TokenVerifier(keys, wall_clock_s)
        security.signer = TokenSigner(keys, settings.token_ttl_s, wall_clock_s)
        if has_controller:
            security.sessions = Sessions(keys, wall_clock_s)
            security.authenticator = Authenticator(Accounts(), work, os.urandom, sessions=security.sessions)
    try:
        security.load_all()
    except BaseException:
        if security.authenticator is not None:
            security.authenticator.close()
        raise
    return security


def _configuration(served: _Served) -> grpc.ServerCertificateConfiguration:
    pem, authorities = served
    return grpc.ssl_server_certificate_configuration([pem], root_certificates=authorities)


def _stamp_of(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
