"""Settings from a TOML file, the environment and flags, each overriding the one before.

A settings class is a frozen dataclass whose fields have defaults. A field that is itself such a dataclass is a table
in the file (``[segment_store.cache]``) and a part of a variable's name separated by two underscores
(``PENSTOCK_SEGMENT_STORE__CACHE__BYTES_MAX``). An unknown key is an error that names the nearest known one, so a
misspelt setting is never ignored. Fields declared with `fixed` are constants: to set one is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.runtime.client_security import SECURITY_VARIABLES
from penstock.runtime.errors import SettingsError
from penstock.runtime.fixed_values import is_fixed

S = TypeVar("S")

logger: logging.Logger = logging.getLogger(__name__)

_SERVICE_NAME = re.compile(
    r"(?:^|_)SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]+)?)$|(?:^|_)PORT_\d+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?$"
)
_SERVICE_PORT = re.compile(r"(?:^|_)PORT$")
_SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://")

#: A value of a setting in a file or a flag; tables nest.
Value = object

ENVIRONMENT_PREFIX = "PENSTOCK_"
#: Names the settings file; not a setting itself.
FILE_VARIABLE = "PENSTOCK_CONFIG"
#: The default address for clients; not a setting of a server.
URI_VARIABLE = "PENSTOCK_URI"
DEFAULT_URI = "tcp://localhost:9090"


def default_uri() -> str:
    """Return the default address of the controller: the value of `PENSTOCK_URI`, else this machine."""
    return os.environ.get(URI_VARIABLE) or DEFAULT_URI


def load_settings(
    kind: type[S],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Value] | None = None,
) -> S:
    """Return a `kind` from its defaults, overridden by `file`, then by `environment`, then by `flags`.

    `environment`: all variables; only those that begin with `PENSTOCK_` are used. `flags` are named by dotted path
    (``segment_store.cache.bytes_max``); None means that the flag was not given.

    Raises:
        SettingsError: the file cannot be read, a key is unknown, or a value is not of its field's type.
    """
    values: dict[str, Value] = {}
    _warn_of_service_variables(environment or {})
    for _, given in _layers(kind, file, environment or {}, flags or {}):
        _merge(values, given)
    try:
        # Not strict: variables are text, and TOML may have an integer for a float.
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"a setting has the wrong type or value: {error}") from error


def setting_sources(
    kind: type,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Value] | None = None,
) -> dict[str, str]:
    """Return where `load_settings` takes each setting from that is not a default, by dotted path.

    A source is ``file PATH``, ``variable NAME`` or ``option``. Errors as `load_settings`.
    """
    sources: dict[str, str] = {}
    for source, given in _layers(kind, file, environment or {}, flags or {}):
        sources |= dict.fromkeys(_paths_in(kind, given), source)
    return sources


def _layers(
    kind: type, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Value]
) -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield the sources of settings with their values, each overriding those before."""
    if file is not None:
        yield f"file {file}", _read_file(kind, file)
    for variable, text in sorted(environment.items()):
        is_of_others = variable in (FILE_VARIABLE, URI_VARIABLE, *SECURITY_VARIABLES)
        is_setting = variable.startswith(ENVIRONMENT_PREFIX) and not is_of_others
        if is_setting and not _is_service_variable(variable, text):
            path = [part.lower() for part in variable.removeprefix(ENVIRONMENT_PREFIX).split("__")]
            _check_path(kind, path, variable)
            yield f"variable {variable}", _nested(path, text)
    for dotted, value in flags.items():
        if value is not None:
            path = dotted.split(".")
            _check_path(kind, path, f"flag {dotted}")
            yield "option", _nested(path, value)


def _paths_in(kind: type, values: Mapping[str, Value]) -> Iterator[str]:
    """Yield the dotted path of each setting of `kind` that has a value in `values`."""
    fields = _fields(kind)
    for name, value in values.items():
        table = fields[name]
        if table is None or not isinstance(value, dict):
            yield name
        else:
            yield from (f"{name}.{path}" for path in _paths_in(table, value))


def secret_paths(kind: type) -> Iterator[str]:
    """Yield the dotted path of each setting of `kind` whose value is a secret: a field without `repr`."""
    tables = _fields(kind)
    for field in dataclasses.fields(kind):
        table = tables[field.name]
        if table is not None:
            yield from (f"{field.name}.{path}" for path in secret_paths(table))
        elif not field.repr:
            yield field.name


def _is_service_variable(variable: str, text: str) -> bool:
    """Return whether Kubernetes has set a variable for a Service whose name begins with ``penstock``.

    Source: "Discovering services" in the documentation of Kubernetes, and the links of containers that it follows.
    """
    name = variable.removeprefix(ENVIRONMENT_PREFIX)
    return bool(_SERVICE_NAME.search(name) or (_SERVICE_PORT.search(name) and _SERVICE_ADDRESS.match(text)))


def _warn_of_service_variables(environment: Mapping[str, str]) -> None:
    found = sorted(
        variable
        for variable, text in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX) and _is_service_variable(variable, text)
    )
    if found:
        logger.warning(
            "ignored %s: Kubernetes sets such variables for a Service called penstock; enableServiceLinks: false in "
            "the pod's specification prevents it",
            ", ".join(found),
        )


def settings_from(kind: type[S], values: Mapping[str, Value], source: str) -> S:
    """Return a `kind` from the output of `settings_values` in another process. Errors as `load_settings`.

    Constants are permitted: the other process sends them with the settings.
    """
    _check_table(kind, values, source, (), are_constants_permitted=True)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: a setting has the wrong type or value: {error}") from error


def settings_values(settings: object) -> dict[str, Value]:
    """Return all values of a settings object as JSON types, tables nested."""
    return typing.cast("dict[str, Value]", msgspec.to_builtins(settings))


def setting_paths(kind: type) -> Iterator[str]:
    """Yield the dotted path of each setting of `kind`, in order, without constants."""
    constants = _constants(kind)
    for name, table in _fields(kind).items():
        if table is None:
            if name not in constants:
                yield name
        else:
            yield from (f"{name}.{path}" for path in setting_paths(table))


def _fields(kind: type) -> dict[str, type | None]:
    """Return the fields of a settings class; with each table, its class."""
    types = typing.get_type_hints(kind)
    fields: dict[str, type | None] = {}
    for field in dataclasses.fields(kind):
        field_type = types[field.name]
        is_table = isinstance(field_type, type) and dataclasses.is_dataclass(field_type)
        fields[field.name] = field_type if is_table else None
    return fields


def _constants(kind: type) -> dict[str, object]:
    """Return the constants of a settings class with their values."""
    return {field.name: field.default for field in dataclasses.fields(kind) if is_fixed(field)}


def _check_settable(kind: type, name: str, source: str, path: str) -> None:
    constants = _constants(kind)
    if name in constants:
        raise SettingsError(
            f"{source}: {path} is a constant with the value {constants[name]}, not a setting; remove it"
        )


def _read_file(kind: type, file: Path) -> dict[str, Value]:
    try:
        with file.open("rb") as opened:
            values = tomllib.load(opened)
    except OSError as error:
        raise SettingsError(f"the settings file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {file} is not TOML: {error}") from error
    _check_table(kind, values, str(file), (), are_constants_permitted=False)
    return values


def _check_table(
    kind: type, values: Mapping[str, Value], source: str, above: tuple[str, ...], *, are_constants_permitted: bool
) -> None:
    fields = _fields(kind)
    for name, value in values.items():
        path = (*above, name)
        if name not in fields:
            raise _unknown(kind, name, f"{source}: {'.'.join(path)}")
        table = fields[name]
        if table is None:
            if not are_constants_permitted:
                _check_settable(kind, name, source, ".".join(path))
            continue
        if not isinstance(value, dict):
            raise SettingsError(f"{source}: {'.'.join(path)} is a table of settings, not a value")
        _check_table(table, value, source, path, are_constants_permitted=are_constants_permitted)


def _check_path(kind: type, path: list[str], source: str) -> None:
    for index, name in enumerate(path):
        fields = _fields(kind)
        if name not in fields:
            raise _unknown(kind, name, source)
        table = fields[name]
        is_last = index == len(path) - 1
        if (table is None) != is_last:
            what = "has no nested settings" if table is None else "is a table of settings, not a value"
            raise SettingsError(f"{source}: {'.'.join(path[: index + 1])} {what}")
        if table is not None:
            kind = table
        else:
            _check_settable(kind, name, source, ".".join(path))


def _unknown(kind: type, name: str, source: str) -> SettingsError:
    constants = _constants(kind)
    names = [known for known in _fields(kind) if known not in constants]
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are: {', '.join(names)}"
    return SettingsError(f"{source}: there is no setting {name!r}; {hint}")


def _nested(path: list[str], value: Value) -> dict[str, Value]:
    for name in reversed(path):
        value = {name: value}
    return typing.cast("dict[str, Value]", value)


def _merge(target: dict[str, Value], values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        present = target.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value)
        else:
            target[name] = value
