"""Settings files of Pravega's standalone server: the names that mean something here, as settings of Penstock.

The format is that of Java's property files: ``name=value`` or ``name: value`` per line, comments after ``#`` or ``!``,
long lines continued with a backslash. Names that only Pravega has are returned as ignored; Java key stores cannot be
read, so they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import InvalidArgumentError

_PREFIXES = ("singlenode.", "controller.", "pravegaservice.", "autoScale.")


@dataclass(frozen=True, slots=True)
class PravegaSettings:
    """What a file contains.

    Attributes:
        values: settings of Penstock by their dotted names.
        token_key: the text that signs delegation tokens; None: the file has none.
        ignored: names without a meaning here.
    """

    values: Mapping[str, object]
    token_key: str | None = field(repr=False)
    ignored: tuple[str, ...]


def _switch(text: str) -> str:
    return "on" if text.lower() == "true" else "off"


def _truth(text: str) -> bool:
    return text.lower() == "true"


def _port(text: str) -> int:
    return int(text)


_KEY_BASIS = (
    "controller.security.auth.delegationToken.signingKey.basis",
    "autoScale.controller.connect.security.auth.token.signingKey.basis",
)
#: Name in Pravega's file -> name here, and how the value is read.
NAMES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "singlenode.security.tls.enable": ("security.tls", _switch),
    "singlenode.security.tls.certificate.location": ("security.certificate", str),
    "singlenode.security.tls.privateKey.location": ("security.private_key", str),
    "singlenode.security.auth.enable": ("security.auth", _switch),
    "singlenode.security.auth.pwdAuthHandler.accountsDb.location": ("security.accounts", str),
    "controller.security.auth.delegationToken.ttl.seconds": ("security.token_ttl_s", int),
    "controller.security.auth.readerGroupStreams.writesWithReadPermissions.enable":
        ("security.readers_write_group_state", _truth),
    "singlenode.controller.rpc.port": ("controller_port", _port),
    "singlenode.segmentStore.port": ("segment_store_port", _port),
    "pravegaservice.service.published.host.nameOrIp": ("advertise", str),
    "pravegaservice.service.listener.host.nameOrIp": ("host", str),
    "pravegaservice.container.count": ("segment_store.container_count", int),
}  # fmt: skip
#: Key stores of Java: name -> what to set instead.
_KEY_STORES = {
    "singlenode.security.tls.keyStore.location": "singlenode.security.tls.certificate.location and privateKey",
    "singlenode.security.tls.trustStore.location": "nothing: it is for clients",
}


def read_pravega_settings(path: Path) -> PravegaSettings:
    """Read a file. Raises `InvalidArgumentError` for one that cannot be read, a bad value, or a Java key store."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from error
    values: dict[str, object] = {}
    ignored: list[str] = []
    token_key: str | None = None
    for name, value in parse_properties(text).items():
        if name in _KEY_BASIS:
            token_key = value
        elif name in _KEY_STORES and value.lower().endswith((".jks", ".p12")):
            raise InvalidArgumentError(
                f"{path}: {name} is a Java key store, which is not read here: set {_KEY_STORES[name]}, with PEM files"
            )
        elif name in NAMES:
            setting, read = NAMES[name]
            try:
                values[setting] = read(value)
            except ValueError:
                raise InvalidArgumentError(f"{path}: {name} is {value!r}, expected a number") from None
        elif name.startswith(_PREFIXES):
            ignored.append(name)
        else:
            raise InvalidArgumentError(f"{path}: {name} is no setting of Pravega: is this the right file?")
    return PravegaSettings(values, token_key, tuple(ignored))


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a file in Java's format; the last one of a name counts."""
    found: dict[str, str] = {}
    line = ""
    for raw in text.splitlines():
        part = raw.lstrip()
        if not line and (not part or part[0] in "#!"):
            continue
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            continue
        name, value = _split(line)
        found[name] = value
        line = ""
    if line:
        name, value = _split(line)
        found[name] = value
    return found


def _split(line: str) -> tuple[str, str]:
    """Split a line at the first ``=``, ``:`` or white space that is not escaped."""
    name, position = "", 0
    while position < len(line) and line[position] not in "=: \t":
        if line[position] == "\\" and position + 1 < len(line):
            position += 1
        name += line[position]
        position += 1
    rest = line[position:].lstrip()
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip()
    return name, rest.replace("\\\\", "\\").replace("\\:", ":").replace("\\=", "=")
