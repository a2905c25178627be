"""`LaterFormatError`: raised by pure decoders for intact bytes that only a later version can read.

A decoder does not know the file or record of its bytes. Its caller does, and raises `LaterVersionError`. Rules of
compatibility: docs/formats.md, "Compatibility".
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.model.errors import CorruptionError, LaterVersionError, PicklableError, UnreadableDataError


class LaterFormatError(PicklableError, ValueError):
    """Number `found` of `what`, a format version or a kind, is above `known`, the latest readable one.

    Names instead of numbers: `known` and `oldest` are all readable ones.
    """

    def __init__(self, what: str, *, found: int | str, known: int | str, oldest: int | str = 1) -> None:
        super().__init__(f"{what} {found} is of a later version, this one reads {oldest} to {known}")
        self.what = what
        self.found = found
        self.known = known
        self.oldest = oldest

    def at(self, path: str) -> LaterVersionError:
        """Return the error for users: `path` is the file or record."""
        return LaterVersionError(path, found=self.found, known=self.known, what=self.what, oldest=self.oldest)


def version_error(path: str, found: int, known: Collection[int], what: str = "format version") -> UnreadableDataError:
    """Return the error for a version or kind that is none of `known`: `LaterVersionError` if it is above all of them.

    Otherwise `CorruptionError`. The bytes are intact: their checksum was verified.
    """
    oldest, latest = min(known), max(known)
    if found > latest:
        return LaterVersionError(path, found=found, known=latest, what=what, oldest=oldest)
    return CorruptionError(path, 0, f"{what} {found} is not read by this version, which reads {oldest} to {latest}")


def check_version(found: int, known: Collection[int], what: str = "format version") -> None:
    """Raise `LaterFormatError` for a version above all of `known`, `ValueError` for any other unknown one.

    The bytes are intact: the caller has verified their checksum, or an enclosing structure has one.
    """
    if found in known:
        return
    if found > max(known):
        raise LaterFormatError(what, found=found, known=max(known), oldest=min(known))
    raise ValueError(f"{what} {found} is not read by this version, which reads {min(known)} to {max(known)}")
