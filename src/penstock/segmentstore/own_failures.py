"""`is_own_failure`: whether a container failed because its process lacks memory, descriptors or threads.

Such a failure says nothing about the container: it may serve in another process.
"""

from __future__ import annotations

import errno

_ERRNOS = frozenset((errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EAGAIN))
#: The text of the RuntimeError that Python raises when the system refuses a thread.
_NO_THREAD = "can't start new thread"
#: Causes of an error are followed this far.
_CAUSES_MAX = 16


def is_own_failure(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, is a lack of resources of this process."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            return False
        if isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno in _ERRNOS):
            return True
        if isinstance(found, RuntimeError) and _NO_THREAD in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False
