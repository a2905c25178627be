"""The version of Penstock that is installed."""

from __future__ import annotations

from functools import cache


@cache
def penstock_version() -> str:
    """Return the installed version; reads files at the first call."""
    # Imported here because the module is slow to load, and most commands do not need it.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("penstock")
    except PackageNotFoundError:
        return "unknown (run from its source)"
