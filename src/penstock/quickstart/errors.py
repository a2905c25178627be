"""Errors of the quickstart."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class FlightsNotInstalledError(PenstockError):
    """The package with the flights, or a library to read them, is not installed."""


class ProcessTreeError(PenstockError):
    """Processes are still there, or still run, some time after a signal that leaves them no choice."""


class SparkStartError(PenstockError):
    """No Spark session could be started."""


class QueryFailedError(PenstockError):
    """The streaming query ended with an error."""


class AccountingError(PenstockError):
    """The results do not add up to the flights: something was lost, repeated or changed."""
