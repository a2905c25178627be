"""The driver of the query as a process of its own, which can be killed: ``python -m penstock.quickstart.driver LOG``.

It starts Spark, says so, and waits for one line of standard input: the `Plan`. Then it runs the query from its
checkpoint to the end of the stream. What it says are lines of JSON on standard output, each an object with one field:
``started``; ``progress``, a `PassResult`, whenever there is more; ``done``; or ``failed``, with kind and message.

At the end of standard input it ends at once: nothing outlives who started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from penstock.model.errors import PenstockError
from penstock.quickstart import query
from penstock.spark import ensure_compiled, ensure_java


@dataclass(frozen=True, slots=True)
class Plan:
    """The task of a driver: read stream `source` of the store at `uri`, `batch_bytes` at a time; write to `target`.

    `checkpoint` is a directory.
    """

    uri: str
    source: str
    target: str
    checkpoint: str
    batch_bytes: int

    def to_line(self) -> bytes:
        """Return it as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    """Run one driver; exit code 0 when the query has come to its end."""
    say = _own_output()
    orders: list[bytes] = []
    is_ordered = threading.Event()
    threading.Thread(target=_listen, args=(orders, is_ordered), daemon=True).start()
    try:
        ensure_java()
        ensure_compiled()
        session = query.start_session(Path(sys.argv[1]))
        say({"started": os.getpid()})
        is_ordered.wait()
        plan = Plan(**json.loads(orders[0]))
        query.run_pass(
            query.delays(session, plan.uri, plan.source, plan.batch_bytes),
            uri=plan.uri,
            stream=plan.target,
            checkpoint=Path(plan.checkpoint),
            on_progress=lambda outcome: say({"progress": outcome.to_text()}),
        )
    except PenstockError as error:
        say({"failed": {"kind": type(error).__name__, "message": str(error)}})
        sys.exit(1)
    say({"done": True})


def _own_output() -> Callable[[dict[str, object]], None]:
    """Keep standard output for what this says, and send what Java and Spark print there to the log."""
    # A duplicate is not inherited: the pipe ends when this process does, whatever becomes of the JVM.
    output: IO[bytes] = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(fields: dict[str, object]) -> None:
        output.write(json.dumps(fields).encode() + b"\n")
        output.flush()

    return say


def _listen(orders: list[bytes], is_ordered: threading.Event) -> None:
    line = sys.stdin.buffer.readline()
    if line:
        orders.append(line)
        is_ordered.set()
        sys.stdin.buffer.read()
    # The parent has exited. The JVM reads the end of its own input and exits, too.
    os._exit(1)


if __name__ == "__main__":
    main()
