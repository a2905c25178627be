"""`crc32c`: the checksum of everything stored (CRC-32C, Castagnoli; RFC 3720, appendix B.4).

The library accepts views, so no data is copied. It releases the GIL while it processes more than a few ten thousand
bytes. That is right for megabytes. Shorter pieces take a few microseconds each, and reacquiring the GIL after each
would take far longer: hence `crc32c_at_once`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

from penstock.model.segments import Buffer


def _load() -> ModuleType:
    """Return the library's compiled functions.

    They are loaded without the package around them: that also loads its command line and a reader of package metadata,
    1.3 MB in every process.
    """
    package = find_spec("crc32c")
    if package is not None and package.submodule_search_locations is not None:
        compiled = PathFinder.find_spec("_crc32c", list(package.submodule_search_locations))
        if compiled is not None and compiled.loader is not None:
            module = module_from_spec(compiled)
            compiled.loader.exec_module(module)
            return module
    import crc32c as whole  # Another version of the library, without that module.

    return whole


_library = _load()

#: Returns the checksum of bytes, continued from that of the preceding bytes (0: none).
crc32c: Callable[[Buffer, int], int] = _library.crc32c

#: The same without releasing the GIL: some 30 to 100 us for a megabyte.
crc32c_at_once: Callable[[Buffer, int], int] = partial(_library.crc32c, gil_release_mode=0)
