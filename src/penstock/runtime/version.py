"""The version of Penstock that is installed."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

_FIELD = "Version: "


@cache
def penstock_version() -> str:
    """Return the installed version; reads files at the first call.

    The first installed package on `sys.path` counts, as for imports. `importlib.metadata` is used only where the files
    of packages are no plain files: it loads 1 MB of modules into each server.
    """
    for place in sys.path:
        for metadata in Path(place).glob("penstock-*.dist-info/METADATA"):
            if found := _version_in(metadata):
                return found
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("penstock")
    except PackageNotFoundError:
        return "unknown (run from its source)"


def _version_in(metadata: Path) -> str:
    """Return the version that a file of metadata states; empty: it states none, or cannot be read."""
    try:
        lines = metadata.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return ""
    return next((line.removeprefix(_FIELD).strip() for line in lines if line.startswith(_FIELD)), "")
