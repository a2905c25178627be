"""Sizes that several packages share."""

from __future__ import annotations

#: Bytes of a mebibyte.
MIB = 1024 * 1024

#: An identity file of a data directory or of long-term storage is read up to this length.
IDENTITY_LENGTH_MAX = 64 * 1024
