"""`penstock security`: lines to copy, checks, and the rotation of keys."""

from __future__ import annotations

import asyncio
import datetime
import os
import threading
from pathlib import Path

import pytest

import penstock
from penstock.model.errors import TokenRefusedError
from penstock.security import inspection, key_rotation, secrets_directory
from penstock.security.certificates import make_certificates
from penstock.security.errors import RotationTooEarlyError, SecurityFileError
from penstock.security.key_rotation import KeyRotation
from penstock.security.secrets_directory import make_missing_files, read_token_keys, security_paths
from penstock.security.settings import SecuritySettings
from penstock.security.tokens import TokenSigner, TokenVerifier
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.command_line import run_command

NOW = datetime.datetime.now(datetime.UTC)


def made(directory: Path) -> SecuritySettings:
    """Make the files of a secured server, and return its settings."""
    settings = SecuritySettings(tls="on", auth="on", makes_missing_files=True)
    make_missing_files(security_paths(settings, str(directory)), ["localhost"], os.urandom, NOW)
    return settings


def test_the_lines_for_python_and_for_commands_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, ending = threading.Event(), threading.Event()
    uris: list[str] = []

    async def serve() -> None:
        server = Standalone(StandaloneSettings(
            data_dir=str(tmp_path), controller_port=0, segment_store_port=0,
            security=SecuritySettings(tls="on", auth="on", makes_missing_files=True),
        ))  # fmt: skip
        await server.start()
        uris.append(server.controller_uri.replace("127.0.0.1", "localhost"))
        started.set()
        await asyncio.to_thread(ending.wait)
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(60)
        shown = run_command("security", "show", "--data-dir", str(tmp_path), "--address", uris[0], "--json").ok.json
        texts = shown["clients"]
        assert isinstance(texts, dict)
        names: dict[str, object] = {"penstock": penstock}
        exec(texts["Penstock for Python"], names)
        client = names["client"]
        assert isinstance(client, penstock.Client)
        client.create_scope("shop")
        client.close()
        for line in texts["Penstock commands, jobs and Spark"].splitlines():
            for assignment in line.removeprefix("export ").split():
                monkeypatch.setenv(*assignment.split("=", 1))
        assert run_command("scope", "list").ok.lines == ["shop"]
        password = (tmp_path / "security" / "admin.password").read_text().strip()
        assert password not in str(shown)
    finally:
        ending.set()
        thread.join()


def test_check_accepts_what_secure_makes(tmp_path: Path) -> None:
    made(tmp_path)
    found = run_command("security", "check", "--data-dir", str(tmp_path), "--json").ok.json
    assert found["errors"] == []
    warnings = found["warnings"]
    assert isinstance(warnings, list)
    assert ["still holds the first password" in warning for warning in warnings] == [True]


@pytest.mark.parametrize(("days", "expected"), [(830, "expired on"), (-10, "is not valid before"), (815, "expires on")])
def test_check_reports_the_validity_of_the_certificate(tmp_path: Path, days: int, expected: str) -> None:
    settings = made(tmp_path)
    paths = security_paths(settings, str(tmp_path))
    found = inspection.inspect_security(settings, paths, "localhost", NOW + datetime.timedelta(days=days))
    assert expected in [*found.errors, *found.warnings][0]
    assert bool(found.errors) == (expected != "expires on")


def test_check_reports_a_host_that_the_certificate_does_not_name(tmp_path: Path) -> None:
    settings = made(tmp_path)
    paths = security_paths(settings, str(tmp_path))
    found = inspection.inspect_security(settings, paths, "streams.example.com", NOW)
    assert "the host streams.example.com, which is not in" in found.warnings[0]


def test_check_reports_files_that_a_server_refuses(tmp_path: Path) -> None:
    settings = made(tmp_path)
    paths = security_paths(settings, str(tmp_path))
    paths.private_key.write_bytes(make_certificates(["localhost"], NOW).private_key)
    paths.token_keys.write_text("")
    paths.accounts.chmod(0o666)
    found = inspection.inspect_security(settings, paths, "localhost", NOW)
    assert len(found.errors) == 3
    for error, path in zip(found.errors, (paths.private_key, paths.token_keys, paths.accounts), strict=True):
        assert str(path) in error
    result = run_command("security", "check", "--data-dir", str(tmp_path))
    assert result.code == 1
    assert sum(line.startswith("error: ") for line in result.lines) == 3


def test_a_key_is_rotated_in_three_steps_and_no_token_becomes_invalid(tmp_path: Path) -> None:
    settings = made(tmp_path)
    path = security_paths(settings, str(tmp_path)).token_keys
    now = [1000.0]
    rotation = KeyRotation(path, settings, os.urandom, lambda: now[0])
    old = read_token_keys(path)
    first_token = TokenSigner(old, settings.token_ttl_s, lambda: now[0]).master()
    verifier = TokenVerifier(old, lambda: now[0])

    step = rotation.advance()
    assert (step.number, step.next_s) == (1, 20)
    added = read_token_keys(path)
    assert added.signing_key == old.signing_key
    with pytest.raises(RotationTooEarlyError, match="step 2 of 3 is possible in 20 s"):
        rotation.advance()
    now[0] += 20
    step = rotation.advance()
    assert (step.number, step.next_s) == (2, 980)
    signing = read_token_keys(path)
    assert set(signing.all) == set(added.all)
    assert signing.signing_key != old.signing_key
    # A server that has not read the file again yet accepts what another one signs.
    verifier.replace_keys(added)
    verifier.verify(TokenSigner(signing, settings.token_ttl_s, lambda: now[0]).master())
    verifier.replace_keys(signing)
    verifier.verify(first_token)
    now[0] += 979
    with pytest.raises(RotationTooEarlyError):
        rotation.advance()
    now[0] += 1
    assert rotation.advance().next_s is None
    assert list(read_token_keys(path).all) == [signing.signing_key]
    verifier.replace_keys(read_token_keys(path))
    with pytest.raises(TokenRefusedError):
        verifier.verify(first_token)


@pytest.mark.parametrize("crash", [1, 2, 3, 4, 5])
def test_a_rotation_continues_after_a_crash(tmp_path: Path, crash: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each write: the rotation ends with one key, which is not the old one."""
    settings = made(tmp_path)
    path = security_paths(settings, str(tmp_path)).token_keys
    old = read_token_keys(path).signing_key
    now, writes = [1000.0], [0]
    write = secrets_directory.write_file

    def failing(where: Path, content: bytes, mode: int) -> None:
        writes[0] += 1
        if writes[0] == crash:
            raise OSError("crashed here")
        write(where, content, mode)

    monkeypatch.setattr(key_rotation, "write_file", failing)
    crashes = 0
    for _ in range(10):
        try:
            step = KeyRotation(path, settings, os.urandom, lambda: now[0]).advance()
        except OSError:
            crashes += 1
            assert old in read_token_keys(path).all or crash == 5
            continue
        now[0] += 1000
        if step.next_s is None:
            break
    assert crashes == 1
    (left,) = read_token_keys(path).all
    assert left != old


def test_a_key_in_the_settings_cannot_be_rotated(tmp_path: Path) -> None:
    with pytest.raises(SecurityFileError, match="token_key_file"):
        KeyRotation(tmp_path, SecuritySettings(token_key="x"), os.urandom, lambda: 0.0).advance()
