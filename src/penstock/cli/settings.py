"""``penstock settings``: the effective settings of a server, and where each value comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.log import AsJson, Config, DataDir
from penstock.cli.output import table, tell

settings: typer.Typer = typer.Typer(
    name="settings", help="Settings of a server: values and their sources.", pretty_exceptions_enable=False
)

#: Printed in place of a secret.
HIDDEN = "(set, not shown)"
DEFAULT = "default"
_CREDENTIALS_IN_URL = re.compile(r"(://)[^/@\s]+@")


@settings.command()
def show(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only settings whose names begin with this. [default: all]"),
    ] = None,
    is_changed: Annotated[bool, typer.Option("--changed", help="Only values that are not defaults.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    pravega_config: Annotated[Path | None, typer.Option(help="Settings file of Pravega's standalone server.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the settings that penstock standalone would use here, with the source of each value.

    Sources are the file of --config, PENSTOCK_* variables, options, and defaults. Secrets are not printed. Settings
    that a server could not start with are an error, as at its start.
    """
    with exit_on_error(as_json=as_json):
        rows = effective_settings(config, {"data_dir": data_dir}, pravega_config)
        shown = [
            (name, value, source)
            for name, value, source in rows
            if (not names or name.startswith(tuple(names))) and not (is_changed and source == DEFAULT)
        ]
    fields: dict[str, object] = {
        "settings": [{"name": name, "value": value, "source": source} for name, value, source in shown]
    }
    texts = [(name, _text(value), source) for name, value, source in shown]
    lines = list(table(("setting", "value", "source"), texts))
    tell("settings", fields, lines or ["no such setting, or all of them are defaults"], as_json=as_json)


def effective_settings(
    config: Path | None, flags: Mapping[str, object], pravega_config: Path | None = None
) -> list[tuple[str, object, str]]:
    """Return name, value and source of each setting, secrets hidden. Raises `SettingsError`, `InvalidArgumentError`."""
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve import flags_of_pravega
    from penstock.runtime.settings import (
        load_settings,
        secret_paths,
        setting_paths,
        setting_sources,
        settings_values,
    )
    from penstock.server.settings import StandaloneSettings

    given = {name: value for name, value in flags.items() if value is not None}
    theirs = {} if pravega_config is None else flags_of_pravega(pravega_config)
    both = {**theirs, **given}
    loaded = load_settings(StandaloneSettings, file=config, environment=os.environ, flags=both).checked()
    sources = setting_sources(StandaloneSettings, file=config, environment=os.environ, flags=both)
    sources |= dict.fromkeys(theirs.keys() - given.keys(), f"file {pravega_config}")
    values, secrets = settings_values(loaded), set(secret_paths(StandaloneSettings))
    rows = []
    for path in setting_paths(StandaloneSettings):
        value: object = values
        for part in path.split("."):
            assert isinstance(value, dict)
            value = value[part]
        if path in secrets and value:
            value = HIDDEN
        elif isinstance(value, str):
            value = _CREDENTIALS_IN_URL.sub(r"\1", value)
        rows.append((path, value, sources.get(path, DEFAULT)))
    return rows


def _text(value: object) -> str:
    """Return a value as it is written in a settings file."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "(depends on other settings)"
    return f'"{value}"' if isinstance(value, str) and value != HIDDEN else str(value)
