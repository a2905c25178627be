"""``penstock web``: the REST interface to a cluster. See docs/guide/rest.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import URI, AsJson, Uri
from penstock.cli.output import tell

if TYPE_CHECKING:
    import socket

    import uvicorn

    from penstock.client.client import Client
    from penstock.web.app import WebApp
    from penstock.web.certificates import CertifiedSessions
    from penstock.web.tls import ServedTls

DEFAULT_PORT = 9091


def web(
    uri: Uri = URI,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = DEFAULT_PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name by which clients reach this server; may be repeated."),
    ] = None,
    certificate: Annotated[str | None, typer.Option(help="Serve HTTPS with this certificate, PEM.")] = None,
    private_key: Annotated[str | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
    client_ca: Annotated[
        str | None, typer.Option(help="Accept client certificates of these authorities, PEM, as proofs of accounts.")
    ] = None,
    require_certificates: Annotated[
        bool, typer.Option("--require-certificates", help="Refuse clients without a certificate.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen for other machines without encryption.")] = False,
    descriptor: Annotated[
        int | None, typer.Option(hidden=True, help="Use this listening socket, and end with standard input.")
    ] = None,
    presents_certificate: Annotated[
        bool, typer.Option("--present-certificate", hidden=True, help="Present the certificate to the controller, too.")
    ] = False,
    idle: Annotated[str | None, typer.Option(hidden=True, help="End after this time without connections.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the REST interface and the web console of a cluster until SIGTERM or Ctrl-C.

    It is a client of the cluster: a request has the rights of the account whose credentials it carries.
    With --client-ca the certificate of a client proves its account. The web server then needs an account of its own,
    from the environment, which may open sessions for these accounts.
    """
    serve_web(
        uri, host, port, allow_host or [], certificate=certificate, private_key=private_key, insecure=insecure,
        descriptor=descriptor, idle=idle, as_json=as_json, presents_certificate=presents_certificate,
        client_ca=client_ca, requires_certificates=require_certificates,
    )  # fmt: skip


def serve_web(
    uri: str,
    host: str,
    port: int,
    allow_host: Sequence[str] = (),
    *,
    certificate: str | None = None,
    private_key: str | None = None,
    client_ca: str | None = None,
    requires_certificates: bool = False,
    insecure: bool = False,
    presents_certificate: bool = False,
    descriptor: int | None = None,
    idle: str | None = None,
    as_json: bool = False,
    on_ready: Callable[[str], None] | None = None,
    command: str = "penstock web",
) -> None:
    """Serve until SIGTERM or Ctrl-C. `on_ready`: gets the console's address once it listens. `command`: for errors."""
    with exit_on_error(as_json=as_json):
        from penstock.model.errors import InvalidArgumentError

        try:
            import uvicorn  # noqa: F401  # if it is missing, the error names the extra

            from penstock.web.app import WebApp
        except ImportError as error:
            from penstock.runtime.extras import missing_extra

            raise InvalidArgumentError(missing_extra(command, "web", error)) from error
        import asyncio
        import socket

        from penstock.cli.quantities import seconds_of
        from penstock.cli.session import connected
        from penstock.web.callers import connection_to
        from penstock.web.settings import WebSettings

        if certificate is None and not insecure:
            _check_local(host)
        own = (certificate or "", private_key or "") if presents_certificate else ("", "")
        certified = _certified(uri, certificate, client_ca, own, requires_certificates=requires_certificates)
        tls = None if certificate is None else _tls(certificate, private_key, client_ca, requires_certificates)
        if descriptor is None:
            with connected(uri) as session:
                session.call(_reached(session.client))
        else:
            _end_with_standard_input()
        hosts = (*allow_host, *(() if host in ("0.0.0.0", "::") else (host,)))
        app = WebApp(connection_to(uri, own=own), WebSettings(hosts=hosts), controller=uri, certified=certified)
        listening = _listen(host, port) if descriptor is None else socket.socket(fileno=descriptor)
        scheme = "http" if certificate is None else "https"
        shown = f"{scheme}://{'localhost' if host == '127.0.0.1' else host}:{listening.getsockname()[1]}"
        config = _config(app, certificate, private_key)
        lines = [f"REST interface: {shown}/v1/openapi.json", f"Web console: {shown}/console/"]
        tell("web_ready", {"address": shown, "controller": uri}, lines, as_json=as_json)
        _flush()
        if on_ready is not None:
            on_ready(f"{shown}/console/")
        asyncio.run(_serve(config, tls, listening, None if idle is None else seconds_of(idle)))


def _check_local(host: str) -> None:
    """Raise `InvalidArgumentError` if other machines can reach `host`."""
    from penstock.model.errors import InvalidArgumentError

    if host not in ("127.0.0.1", "localhost", "::1"):
        raise InvalidArgumentError(
            f"listening on {host} without encryption: passwords would be sent in plain text. Give --certificate and "
            "--private-key, or --insecure if that is meant"
        )


def _config(app: WebApp, certificate: str | None, private_key: str | None) -> uvicorn.Config:
    import uvicorn

    from penstock.web.tls import CertificateProtocol

    return uvicorn.Config(
        app, log_level="warning", access_log=False, ssl_certfile=certificate, ssl_keyfile=private_key,
        http=CertificateProtocol, h11_max_incomplete_event_size=16 * 1024, timeout_keep_alive=75, server_header=False,
    )  # fmt: skip


def _certified(
    uri: str,
    certificate: str | None,
    client_ca: str | None,
    own: tuple[str, str],
    *,
    requires_certificates: bool,
) -> CertifiedSessions | None:
    """Return the sessions for accounts of client certificates; None: none are accepted.

    `own`: files of a certificate and its key, which are presented to the controller; empty: none.
    Raises `InvalidArgumentError` for options that do not fit, or without an account.
    """
    from penstock.model.errors import InvalidArgumentError

    if client_ca is None:
        if requires_certificates:
            raise InvalidArgumentError("--require-certificates needs --client-ca, the authorities of the certificates")
        return None
    if certificate is None:
        raise InvalidArgumentError("--client-ca needs --certificate: client certificates are part of TLS")
    from dataclasses import replace

    from penstock import aio
    from penstock.runtime.client_security import client_security
    from penstock.web.certificates import CertifiedSessions

    security = client_security()
    if not security.has_account:
        raise InvalidArgumentError(
            "with --client-ca the web server needs an account of its own, which may open sessions for the accounts of "
            "the certificates: set PENSTOCK_USER and PENSTOCK_PASSWORD_FILE, or PENSTOCK_CERTIFICATE and "
            "PENSTOCK_PRIVATE_KEY"
        )
    if own[0]:
        security = replace(security, certificate=own[0], private_key=own[1])
    return CertifiedSessions(lambda: aio.Client(uri, security=security))


def _tls(certificate: str, private_key: str | None, client_ca: str | None, requires_certificates: bool) -> ServedTls:
    from pathlib import Path

    from penstock.web.tls import ServedTls, TlsFiles

    authorities = None if client_ca is None else Path(client_ca)
    return ServedTls(TlsFiles(Path(certificate), Path(private_key or certificate), authorities, requires_certificates))


async def _serve(config: uvicorn.Config, tls: ServedTls | None, listening: socket.socket, idle_s: float | None) -> None:
    """Serve until a signal, or until there was no connection for `idle_s`."""
    import asyncio

    import uvicorn

    config.load()
    if tls is not None:
        config.ssl = tls.context
    server = uvicorn.Server(config)

    async def end_when_idle(limit_s: float) -> None:
        unused_s = 0.0
        while unused_s < limit_s:
            await asyncio.sleep(step_s := min(limit_s / 4, 10.0))
            unused_s = 0.0 if server.server_state.connections else unused_s + step_s
        server.should_exit = True

    watches = [] if idle_s is None else [asyncio.create_task(end_when_idle(idle_s))]
    if tls is not None:
        watches.append(asyncio.create_task(tls.follow()))
    try:
        await server.serve(sockets=[listening])
    finally:
        for watch in watches:
            watch.cancel()


def _end_with_standard_input() -> None:
    """End this process when the one that has started it ends: the system then closes this end of the pipe."""
    import os
    import threading

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="standard input", daemon=True).start()


async def _reached(client: Client) -> None:
    """Raise `ControllerUnavailableError` if the cluster does not answer. What this account may do does not matter."""
    from penstock.model.errors import AccessError

    try:
        await anext(client.scopes(), None)
    except AccessError:
        pass


def _listen(host: str, port: int) -> socket.socket:
    """Listen. Raises `InvalidArgumentError` if the port is not available."""
    import socket

    from penstock.model.errors import InvalidArgumentError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InvalidArgumentError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    return listening


def _flush() -> None:
    import sys

    sys.stdout.flush()
