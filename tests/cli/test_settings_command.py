"""``penstock settings show``: each value with its source, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.settings import HIDDEN
from penstock.runtime.settings import secret_paths, setting_paths
from penstock.server.settings import StandaloneSettings
from support.command_line import run_command

SECRET = "not-to-be-printed-0123456789"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(
        'data_dir = "from-file"\nhost = "localhost"\n[segment_store.cache]\nbytes_max = 100000000\n'
        f'[security]\ntoken_key = "{SECRET}"\n'
    )
    return file


def _shown(*arguments: str) -> dict[str, tuple[object, str]]:
    rows = run_command("settings", "show", "--json", *arguments).ok.json["settings"]
    assert isinstance(rows, list)
    return {row["name"]: (row["value"], row["source"]) for row in rows}


def test_each_value_has_the_source_that_wins(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, then variables, then options; what none of them gives is a default."""
    monkeypatch.setenv("PENSTOCK_HOST", "127.0.0.2")
    shown = _shown("--config", str(config), "--data-dir", "from-option")
    assert shown["data_dir"] == ("from-option", "option")
    assert shown["host"] == ("127.0.0.2", "variable PENSTOCK_HOST")
    assert shown["segment_store.cache.bytes_max"] == (100_000_000, f"file {config}")
    assert shown["controller_port"] == (9090, "default")
    assert set(shown) == set(setting_paths(StandaloneSettings))


def test_only_changes_and_only_some_names(config: Path) -> None:
    assert set(_shown("--config", str(config), "--changed")) == {
        "data_dir", "host", "segment_store.cache.bytes_max", "security.token_key",
    }  # fmt: skip
    assert set(_shown("--config", str(config), "--changed", "segment_store")) == {"segment_store.cache.bytes_max"}
    assert run_command("settings", "show", "--changed").ok.lines == ["no such setting, or all of them are defaults"]


def test_secrets_are_never_printed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their source is, as lines and as JSON; nor are credentials in a URL."""
    secrets = set(secret_paths(StandaloneSettings))
    assert {"security.token_key", "object_storage.store.secret_access_key"} <= secrets
    for path in secrets:
        monkeypatch.setenv("PENSTOCK_" + "__".join(part.upper() for part in path.split(".")), SECRET)
    monkeypatch.setenv("PENSTOCK_OBJECT_STORAGE__STORE__ACCESS_KEY_ID", "user")
    monkeypatch.setenv("PENSTOCK_OBJECT_STORAGE__STORE__ENDPOINT", f"http://user:{SECRET}@store.example.org:9000")
    for arguments in ((), ("--json",), ("--changed",)):
        printed = run_command("settings", "show", "--config", str(config), *arguments).ok.stdout
        assert SECRET not in printed
        assert printed.count(HIDDEN) == len(secrets)
        assert "http://store.example.org:9000" in printed


def test_settings_that_no_server_starts_with_are_an_error(tmp_path: Path) -> None:
    """The error is that of the server, with exit code 2."""
    file = tmp_path / "penstock.toml"
    file.write_text("[segment_store]\ncontainer_cuont = 3\n")
    refused = run_command("settings", "show", "--config", str(file))
    assert refused.code == 2
    assert "did you mean container_count?" in refused.stderr
