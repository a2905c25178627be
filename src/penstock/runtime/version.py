"""The version of Penstock that is installed."""

from __future__ import annotations

from functools import cache


@cache
def penstock_version() -> str:
    """Return the version that is installed; reads files at the first call."""
    # Only here: the module takes a while to load, and most commands do not need it.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("penstock")
    except PackageNotFoundError:
        return "unknown (run from its source)"
