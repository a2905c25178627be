"""Errors of ledgers of Apache BookKeeper, by the codes of its client (`BKException.Code`)."""

from __future__ import annotations

from penstock.model.errors.storage import StorageError


class LedgerError(StorageError):
    """A request to a ledger failed for a reason that the log does not repair: what was in flight is unknown.

    Attributes:
        code: of BookKeeper's client; 0: this process has given the request up.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"BookKeeper: {message} (code {code})" if code else f"BookKeeper: {message}")
        self.code = code


class LedgerFencedError(LedgerError):
    """Another process has opened the ledger with recovery. This handle appends nothing any more."""


class LedgerLostError(LedgerError):
    """The handle appends no more: too few bookies take entries, it is closed, or this process has too little memory."""


class LedgerSilentError(LedgerError):
    """Bookies do not answer in time. What was sent may be stored at any later time."""


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist: it was deleted, or never created."""


class NoSuchEntryError(LedgerError):
    """No bookie that may have the entry has it, and all of them have answered."""


class LedgerMetadataError(LedgerError):
    """The metadata of ledgers cannot be read or changed, or were changed meanwhile. A change may have been made."""


class LedgerUnavailableError(LedgerError):
    """Too few bookies of an existing ledger answer to read it or to find its end. Try again."""


class LedgerDigestError(LedgerError):
    """The stored bytes of an entry are damaged on a bookie, and no other one has it intact."""


_KINDS: dict[int, type[LedgerError]] = {
    -1: LedgerUnavailableError,  # ReadException
    -2: LedgerUnavailableError,  # QuorumException
    -3: LedgerLostError,  # NoBookieAvailableException
    -5: LedgerDigestError,  # DigestMatchException
    -6: LedgerLostError,  # NotEnoughBookiesException
    -7: NoSuchLedgerError,  # NoSuchLedgerExistsException
    -8: LedgerSilentError,  # BookieHandleNotAvailableException
    -9: LedgerMetadataError,  # ZKException
    -10: LedgerUnavailableError,  # LedgerRecoveryException
    -11: LedgerLostError,  # LedgerClosedException
    -12: LedgerLostError,  # WriteException
    -13: NoSuchEntryError,  # NoSuchEntryException
    -17: LedgerMetadataError,  # MetadataVersionException
    -18: LedgerMetadataError,  # MetaStoreException
    -21: LedgerSilentError,  # AddEntryQuorumTimeoutException
    -23: LedgerSilentError,  # TimeoutException
    -25: NoSuchLedgerError,  # NoSuchLedgerExistsOnMetadataServerException
    -101: LedgerFencedError,  # LedgerFencedException
    -104: LedgerLostError,  # WriteOnReadOnlyBookieException
    -105: LedgerLostError,  # TooManyRequestsException
    -107: LedgerMetadataError,  # MetadataSerializationException
    -108: LedgerUnavailableError,  # DataUnknownException
}


def ledger_error(code: int, message: str) -> LedgerError:
    """Return the error for a code of BookKeeper's client. Codes that are not known: `LedgerError`."""
    return _KINDS.get(code, LedgerError)(code, message)
