"""Freezes the objects loaded by a Python worker of Spark, because Spark runs a full collection after each task.

A reused worker runs a full garbage collection between two tasks. Over the 70 000 objects of the modules and
the client that a task loads, that takes 30 to 70 ms: ten times the duration of a task of a small micro-batch, on the
same cores. Frozen objects are left out of it.
"""

from __future__ import annotations

import gc
import os

#: Set by Spark in workers that it reuses.
_REUSED = "SPARK_REUSE_WORKER"

_frozen: set[str] = set()


def freeze_loaded(role: str) -> None:
    """Freeze what this process has loaded, once for each role (source, sink), and only in a worker of Spark.

    Call it at the end of a task, when all modules and the client are loaded. Garbage is collected first, so none
    is frozen; objects freed later are freed by their reference counts as before.
    """
    if role in _frozen or _REUSED not in os.environ:
        return
    _frozen.add(role)
    gc.collect()
    gc.freeze()
