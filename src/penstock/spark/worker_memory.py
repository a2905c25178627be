"""What a Python worker of Spark has loaded, kept from the collections that Spark runs after each task.

A worker that is used again runs a full garbage collection between two tasks. Over the 70 000 objects of the modules and
the client that a task loads, that takes 30 to 70 ms: ten times what a task of a small micro-batch takes, on the same
cores. Frozen objects are left out of it.
"""

from __future__ import annotations

import gc
import os

#: Set by Spark in workers that it uses again.
_REUSED = "SPARK_REUSE_WORKER"

_frozen: set[str] = set()


def freeze_loaded(role: str) -> None:
    """Freeze what this process has loaded, once for each role (source, sink), and only in a worker of Spark.

    To be called at the end of a task, when all modules and the client are loaded. Garbage is collected first, so none
    is frozen; what is freed later is freed by its reference count as before.
    """
    if role in _frozen or _REUSED not in os.environ:
        return
    _frozen.add(role)
    gc.collect()
    gc.freeze()
