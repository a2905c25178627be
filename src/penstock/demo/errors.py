"""Errors of the demonstration."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError, PenstockError


class DemoRequirementError(PenstockError):
    """Something that the demonstration needs is not installed here; the message says what to install."""


class DemoProcessError(PenstockError):
    """A process of the demonstration did not start."""


class DemoCommandError(InvalidArgumentError):
    """A command that the demonstration does not know, or that is not possible now."""


class DemoLoadError(PenstockError):
    """An event was lost, doubled or out of order, or the load ended with an error."""
