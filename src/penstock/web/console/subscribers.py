"""Why a program that reads without readers is behind."""

from __future__ import annotations


def why_subscriber_is_behind(kind: str, trend: str) -> str:
    """Return why a program is behind, as far as its trend shows it."""
    if trend == "growing":
        return f"the {kind} does not run, or reads more slowly than events are written"
    return ""
