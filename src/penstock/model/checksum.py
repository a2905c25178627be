"""`crc32c`: the checksum of everything stored (CRC-32C, Castagnoli; RFC 3720, appendix B.4).

The library takes views as they are, so that nothing is copied to be summed, and lets other threads run while it sums
more than a few ten thousand bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import crc32c as library

from penstock.model.segments import Buffer

#: Returns the checksum of bytes, going on from that of what comes before them (0: nothing).
crc32c: Callable[[Buffer, int], int] = library.crc32c
