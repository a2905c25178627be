"""Errors of settings."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError


class SettingsError(InvalidArgumentError):
    """A settings file, a variable or a flag names no setting, or has a value of the wrong kind."""
