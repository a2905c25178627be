"""``penstock security``: the files of a secured server, and how clients connect to it. See docs/guide/security.md."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_audit import audited
from penstock.cli.failure import EXIT_FAILED, exit_on_error
from penstock.cli.output import tell

if TYPE_CHECKING:
    from penstock.security.secrets_directory import SecurityPaths
    from penstock.server.settings import StandaloneSettings

DataDir = Annotated[str | None, typer.Option(help="The server's data directory. [default: penstock-data]")]
Config = Annotated[Path | None, typer.Option(help="The server's settings file, TOML.", envvar="PENSTOCK_CONFIG")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]

security: typer.Typer = typer.Typer(
    name="security",
    help="Certificates, keys and accounts of a secured server, and how clients connect.",
    pretty_exceptions_enable=False,
)


def _settings(config: Path | None, data_dir: str | None) -> tuple[StandaloneSettings, SecurityPaths]:
    """Return the server's settings, as if it were started with ``--secure``, and the paths of the files."""
    from penstock.runtime.settings import load_settings
    from penstock.security.secrets_directory import security_paths
    from penstock.server.settings import StandaloneSettings

    flags: dict[str, object] = {"data_dir": data_dir, "security.tls": "on", "security.auth": "on"}
    settings = load_settings(StandaloneSettings, file=config, environment=os.environ, flags=flags)
    return settings, security_paths(settings.security, os.path.abspath(settings.data_dir))


@security.command()
def make(
    host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A host name or address for the certificate; may be repeated."),
    ],
    config: Config = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make the files of a cluster that are missing; copy the directory to each machine afterwards.

    They are those that `penstock standalone --secure` makes: a certificate authority, one certificate for all hosts,
    a key of tokens, and an administrator, whose password is printed.
    """
    with exit_on_error(as_json=as_json):
        from functools import partial

        from penstock.security.secrets_directory import make_missing_files

        settings, paths = _settings(config, data_dir)
        names = tuple(dict.fromkeys((*host, "localhost", "127.0.0.1", "::1")))
        made = partial(make_missing_files, needs_token_key=not settings.security.token_key)
        with audited(settings, "security make", "security files", directory=str(paths.directory), hosts=list(names)):
            password = made(paths, names, os.urandom, datetime.datetime.now(datetime.UTC))
    lines = [f"files of the cluster: {paths.directory}"]
    if password is not None:
        lines.append(f"administrator: user admin, password {password} (also in {paths.administrator_password})")
    fields: dict[str, object] = {"directory": str(paths.directory), "new_password": password}
    tell("security_made", fields, lines, as_json=as_json)


@security.command()
def show(
    address: Annotated[
        str | None, typer.Option(metavar="URI", help="Address of the controller. [default: that of the settings]")
    ] = None,
    user: Annotated[str, typer.Option(metavar="USER", help="The account.")] = "admin",
    config: Config = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print how each client connects: lines to copy. Passwords are not printed."""
    with exit_on_error(as_json=as_json):
        settings, paths = _settings(config, data_dir)
        # Java and Rust accept names, and the certificate made here has this one.
        host = "localhost" if settings.advertised_host == "127.0.0.1" else settings.advertised_host
        where = address or f"tls://{host}:{settings.controller_port}"
        authority = str(paths.authority if paths.authority.exists() else paths.certificate)
        password = paths.administrator_password
        password_file = str(password if user == "admin" and password.exists() else "PASSWORD_FILE")
    texts = _connections(where, user, authority, password_file)
    lines = [line for name, text in texts.items() for line in (f"# {name}", *text.splitlines(), "")]
    fields: dict[str, object] = {"uri": where, "user": user, "ca": authority, "clients": texts}
    tell("security_shown", fields, lines[:-1], as_json=as_json)


def _connections(uri: str, user: str, authority: str, password_file: str) -> dict[str, str]:
    """Return the lines for each kind of client."""
    pravega_variables = (
        f"export pravega_client_tls_cert_path={authority} pravega_client_auth_method=Basic\n"
        f'export pravega_client_auth_username={user} pravega_client_auth_password="$(cat {password_file})"\n'
    )
    return {
        "Penstock for Python": (
            f'password = open("{password_file}").readline().strip()\n'
            f'credentials = penstock.Credentials("{user}", password)\n'
            f'client = penstock.connect("{uri}", ca="{authority}", credentials=credentials)'
        ),
        "Penstock commands, jobs and Spark": (
            f"export PENSTOCK_URI={uri} PENSTOCK_CA={authority}\n"
            f"export PENSTOCK_USER={user} PENSTOCK_PASSWORD_FILE={password_file}"
        ),
        "Pravega for Java": (
            f'ClientConfig.builder().controllerURI(URI.create("{uri}")).trustStore("{authority}")\n'
            f'    .validateHostName(true).credentials(new DefaultCredentials(password, "{user}")).build()'
        ),
        "Pravega for Rust": (
            pravega_variables
            + f'ClientConfigBuilder::default().controller_uri("{uri}").is_tls_enabled(true).is_auth_enabled(true)'
        ),
        "Pravega from PyPI": (
            pravega_variables + f'manager = pravega_client.StreamManager("{uri}", auth_enabled=True, tls_enabled=True)'
        ),
    }


@security.command()
def check(config: Config = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check certificate, keys and accounts without starting a server: exit with 1 if it would refuse them."""
    with exit_on_error(as_json=as_json):
        from penstock.security.inspection import inspect_security

        settings, paths = _settings(config, data_dir)
        now = datetime.datetime.now(datetime.UTC)
        found = inspect_security(settings.security, paths, settings.advertised_host, now)
    lines = [
        *(f"error: {text}" for text in found.errors),
        *(f"warning: {text}" for text in found.warnings),
        *found.facts,
    ]
    fields: dict[str, object] = {"errors": found.errors, "warnings": found.warnings, "facts": found.facts}
    tell("security_checked", fields, lines, as_json=as_json)
    if found.errors:
        raise typer.Exit(EXIT_FAILED)


@security.command("rotate-key")
def rotate_key(config: Config = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Do the next of three steps that replace the key of delegation tokens, while the server runs.

    Each call does one step and prints when the next one is possible. No token becomes invalid.
    """
    with exit_on_error(as_json=as_json):
        from penstock.security.key_rotation import KeyRotation

        settings, paths = _settings(config, data_dir)
        with audited(settings, "security rotate-key", "token keys", file=str(paths.token_keys)) as audit:
            step = KeyRotation(paths.token_keys, settings.security, os.urandom, time.time).advance()
            audit.changes["step"] = step.number
    following = "" if step.next_s is None else f"; repeat this command after {step.next_s:.0f} s"
    fields: dict[str, object] = {"step": step.number, "done": step.done, "next_s": step.next_s}
    tell("key_rotated", fields, [f"step {step.number} of 3: {step.done}{following}"], as_json=as_json)
