"""``penstock doctor``: what is wrong with a server, running or stopped, and what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import EXIT_DAMAGED, exit_on_error
from penstock.cli.log import Config, DataDir
from penstock.cli.options import Tier2
from penstock.cli.output import tell
from penstock.cli.quantities import seconds_of

if TYPE_CHECKING:
    from penstock.administration.machine import Measurement
    from penstock.model.findings import Finding
    from penstock.server.settings import StandaloneSettings


def doctor(
    uri: Annotated[
        str | None,
        typer.Option("--uri", help="The controller, if it must run. [default: that of the settings, if it runs]"),
    ] = None,
    data_dir: DataDir = None,
    tier2: Tier2 = None,
    log: Annotated[str | None, typer.Option(help="The bucket of the log. [default: tier1 in --data-dir]")] = None,
    config: Config = None,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Port of health and metrics; https://HOST:PORT if it is encrypted. [default: that of the settings]",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=seconds_of,
            metavar="DURATION",
            help="How long to wait for the server, as 5s or 1m; a plain number means seconds.",
        ),
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, including errors.")] = False,
) -> None:
    """Examine a server and its machine, running or stopped, and print what is wrong and what to do.

    On the machine: data directory, ports, disk speed and space, descriptors, clock, memory, certificates and accounts,
    log and long-term storage. Of a running server: containers, storage, held writes, long logs, reader groups without
    readers, and its version. Settings are found as by penstock standalone. With --uri alone only the server is
    examined.

    Changes nothing, except that chunks of its own are written to long-term storage and deleted. Exits with 0 if there
    is no error, with 3 if there is one; warnings do not change the exit code.
    """
    with exit_on_error(as_json=as_json):
        is_machine = uri is None or any(each is not None for each in (data_dir, tier2, log, config))
        flags: dict[str, object] = {"data_dir": data_dir, "tier2": tier2, "log": log}
        findings, facts = _examined(uri, health, timeout_s, config, flags, is_machine=is_machine)
    errors = [each for each in findings if each.kind.severity.value == "error"]
    fields: dict[str, object] = {
        "error_count": len(errors),
        "warning_count": len(findings) - len(errors),
        "findings": [
            {
                "id": each.kind.id,
                "severity": each.kind.severity.value,
                "meaning": each.kind.meaning,
                "detail": each.detail,
                "action": each.kind.action,
            }
            for each in findings
        ],
        "facts": facts,
    }
    tell("doctor", fields, _lines(findings, facts), as_json=as_json)
    if errors:
        raise typer.Exit(EXIT_DAMAGED)


def _examined(
    uri: str | None,
    health: str | None,
    timeout_s: float,
    config: Path | None,
    flags: dict[str, object],
    *,
    is_machine: bool,
) -> tuple[list[Finding], list[str]]:
    """Return the findings, errors first, and what is in order."""
    # Only now: the help of all commands should not load a server.
    from penstock.administration.machine import Measurement
    from penstock.cli.server_checks import check_health, check_server
    from penstock.model.errors import InvalidArgumentError
    from penstock.model.findings import Finding, FindingKind, Severity
    from penstock.runtime.client_security import client_security
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    found: list[Measurement] = []
    settings: StandaloneSettings | None = None
    if is_machine:
        try:
            settings = load_settings(StandaloneSettings, file=config, environment=os.environ, flags=flags).checked()
        except InvalidArgumentError as error:
            found.append(Measurement((Finding(FindingKind.SETTINGS_INVALID, str(error)),)))
    is_running = False
    address = uri if settings is None or uri is not None else _uri_of(settings)
    if address is not None:
        is_running, server = asyncio.run(check_server(address, timeout_s, is_required=uri is not None))
        found.append(server)
        if health is None and settings is not None and settings.operations.is_enabled and settings.operations.port:
            health = _health_of(settings)
    if health is not None:
        is_encrypted, place = health.startswith("https://"), health.rpartition("://")[2]
        tls = client_security().tls_context() if is_encrypted else None
        found.append(check_health(place, timeout_s, is_required=is_running, tls=tls))
    if settings is not None:
        found += _machine(settings, is_running=is_running)
    # The server's state can be seen in more than one way.
    findings = {(each.kind, each.detail): each for part in found for each in part.findings}
    ordered = sorted(findings.values(), key=lambda each: each.kind.severity is not Severity.ERROR)
    return ordered, [fact for part in found for fact in part.facts]


def _uri_of(settings: StandaloneSettings) -> str | None:
    """Return where a server with these settings serves. None: on any free port."""
    if not settings.controller_port:
        return None
    scheme = "tls" if settings.security.has_tls else "tcp"
    host = settings.advertised_host if settings.security.has_tls else settings.listening_host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.controller_port}"


def _health_of(settings: StandaloneSettings) -> str:
    """Return the address of health and metrics, for an encrypted port with the name that the certificate has."""
    operations = settings.operations
    if operations.tls:
        return f"https://{settings.advertised_host}:{operations.port}"
    return f"{operations.host or settings.listening_host}:{operations.port}"


def _machine(settings: StandaloneSettings, *, is_running: bool) -> list[Measurement]:
    from penstock.administration.doctor import examine_machine
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime

    async def run() -> list[Measurement]:
        runtime = real_runtime(1)
        try:
            return await examine_machine(settings, runtime, is_running=is_running)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


def _lines(findings: Iterable[Finding], facts: Iterable[str]) -> Iterator[str]:
    counts = {"error": 0, "warning": 0}
    for each in findings:
        severity = each.kind.severity.value
        counts[severity] += 1
        yield f"{severity}: {each.kind.id}: {each.kind.meaning}"
        yield f"  found: {each.detail}"
        yield f"  to do: {each.kind.action}"
    for fact in facts:
        yield f"fine: {fact}"
    yield ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
