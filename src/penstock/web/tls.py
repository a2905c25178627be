"""`ServedTls`: TLS of the web server: its files, read again when they change, and the certificates of its clients."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.security.client_certificates import ask_for_certificates, read_client_authorities
from penstock.security.secrets_directory import load_pair, server_context
from penstock.web.certificates import SCOPE_KEY

logger: logging.Logger = logging.getLogger(__name__)

#: Time between two checks of the files.
_RELOAD_INTERVAL_S = 10.0
#: Size and modification time of a file; None: it is missing.
_Stamp = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a web server.

    Attributes:
        certificate, private_key: the first may have a chain, and the key.
        client_ca: authorities of client certificates; None: clients are asked for none.
        requires_certificates: clients without one are refused.
    """

    certificate: Path
    private_key: Path
    client_ca: Path | None = None
    requires_certificates: bool = False


class ServedTls:
    """See the module. Raises `SecurityFileError` for files that cannot be used.

    Attributes:
        context: for the listener. Connections that are made after a change of the files use the new ones.
        problem: why the files could not be read again; empty: they could.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.context: ssl.SSLContext = server_context()
        self.problem: str = ""
        self._files = files
        self._stamps: dict[Path, _Stamp] = {}
        for paths, load in self._loads():
            self._note(paths, load)

    async def follow(self) -> None:
        """Read the files again when they change, until cancelled."""
        while True:
            await asyncio.sleep(_RELOAD_INTERVAL_S)
            self.reload_changed()

    def reload_changed(self) -> None:
        """Read files that have changed. With files that cannot be used, the previous state stays in force."""
        problems: list[str] = []
        for paths, load in self._loads():
            if all(self._stamps.get(path) == _stamp_of(path) for path in paths):
                continue
            try:
                self._note(paths, load)
            except InvalidArgumentError as error:
                problems.append(str(error))
                if str(error) not in self.problem:
                    logger.warning("the previous state stays in force: %s", error)
            else:
                logger.warning("read again, because it changed: %s", ", ".join(map(str, paths)))
        self.problem = "; ".join(problems)

    def _loads(self) -> list[tuple[tuple[Path, ...], Callable[[], None]]]:
        files = self._files
        found: list[tuple[tuple[Path, ...], Callable[[], None]]] = [
            ((files.certificate, files.private_key), self._load_pair)
        ]
        if files.client_ca is not None:
            found.append(((files.client_ca,), self._load_authorities))
        return found

    def _note(self, paths: tuple[Path, ...], load: Callable[[], None]) -> None:
        stamps = {path: _stamp_of(path) for path in paths}
        load()
        self._stamps.update(stamps)

    def _load_pair(self) -> None:
        load_pair(self.context, self._files.certificate, self._files.private_key)

    def _load_authorities(self) -> None:
        assert self._files.client_ca is not None
        ask_for_certificates(self.context, read_client_authorities(self._files.client_ca))
        if self._files.requires_certificates:
            self.context.verify_mode = ssl.CERT_REQUIRED


class CertificateProtocol(H11Protocol):
    """A connection of the web server. The scope of its requests has the content of the client's certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in its base
        """See `asyncio.BaseProtocol`."""
        super().connection_made(transport)
        app: ASGIApp = self.app
        certificate = transport.get_extra_info("peercert")

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, SCOPE_KEY: certificate}, receive, send)

        self.app = serve


def _stamp_of(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
