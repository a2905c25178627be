"""`crc32c`: the checksum of everything stored (CRC-32C, Castagnoli; RFC 3720, appendix B.4).

The library takes views as they are, so that nothing is copied to be summed, and lets other threads run while it sums
more than a few ten thousand bytes. That is right for megabytes; of shorter pieces each is over in a few microseconds,
and to wait for one's turn again behind each would take far longer: hence `crc32c_at_once`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import crc32c as library

from penstock.model.segments import Buffer

#: Returns the checksum of bytes, going on from that of what comes before them (0: nothing).
crc32c: Callable[[Buffer, int], int] = library.crc32c

#: The same without letting other threads run meanwhile: some 30 to 100 us for a megabyte.
crc32c_at_once: Callable[[Buffer, int], int] = partial(library.crc32c, gil_release_mode=0)
