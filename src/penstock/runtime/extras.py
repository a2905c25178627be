"""Errors that name an optional part of Penstock: what is missing, and a command that installs it as written."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

_REQUIREMENT = re.compile(r"\s*([^;]+?)\s*;.*\bextra\s*==\s*['\"]([\w-]+)['\"]")
_OWN = re.compile(r"penstock\[([^\]]+)\]")


def missing_extra(what: str, extra: str, error: ImportError) -> str:
    """Return the text of an error: `what` needs a package that is not installed, and belongs to `extra`.

    The command names the packages themselves, so it works with a Penstock from any place.
    """
    name = (error.name or "").partition(".")[0]
    missing = f"{name}, which is not installed" if name else f"a package that cannot be imported ({error})"
    wanted = " ".join(f"'{each}'" for each in packages_of(extra))
    how = f"pip install {wanted} " if wanted else ""
    return f"{what} needs {missing}: {how}(the extra '{extra}' of Penstock)"


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, each once; none where this Penstock was not installed as a package."""
    try:
        listed = requires("penstock") or []
    except PackageNotFoundError:
        return []
    found: dict[str, None] = {}
    for requirement in listed:
        match = _REQUIREMENT.match(requirement)
        if match is None or match[2] != extra:
            continue
        own = _OWN.match(match[1])
        extras = [] if own is None else [part.strip() for part in own[1].split(",")]
        names = [each for part in extras for each in packages_of(part)]
        found |= dict.fromkeys(names if extras else [match[1]])
    return list(found)
