"""`crc32c`: the checksum of everything stored (CRC-32C, Castagnoli; RFC 3720, appendix B.4).

The library accepts views, so no data is copied. It releases the GIL while it processes more than a few ten thousand
bytes. That is right for megabytes. Shorter pieces take a few microseconds each, and reacquiring the GIL after each
would take far longer: hence `crc32c_at_once`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import crc32c as library

from penstock.model.segments import Buffer

#: Returns the checksum of bytes, continued from that of the preceding bytes (0: none).
crc32c: Callable[[Buffer, int], int] = library.crc32c

#: The same without releasing the GIL: some 30 to 100 us for a megabyte.
crc32c_at_once: Callable[[Buffer, int], int] = partial(library.crc32c, gil_release_mode=0)
