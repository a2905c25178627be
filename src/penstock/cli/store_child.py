"""``penstock store-child``: one segment store in a child process of a server, which starts it; people do not."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
from typing import Annotated, BinaryIO

import typer

from penstock.cli.failure import EXIT_FAILED, fail

#: Settings of the log, and their values in an order without them.
_LOG = (("log_level", "info"), ("log_format", "text"))


def store_child(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the store, shown in process lists.")] = 0,
    member: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the store in its cluster, shown in process lists.")
    ] = "",
) -> None:
    """Run one segment store for `penstock standalone --segment-stores N` or `penstock segment-store`, which start it.

    Settings and containers are read from standard input; answers go to standard output, the log to standard error.
    Exits when its parent exits, and shuts down cleanly on SIGTERM.
    """
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve import new_loop
    from penstock.model.errors import PenstockError, ProtocolError
    from penstock.runtime.collector import settle_collector
    from penstock.runtime.descriptors import raise_descriptor_limit
    from penstock.runtime.heap import bound_heaps, keep_heap_small
    from penstock.runtime.logs import log_to_standard_error
    from penstock.runtime.version import penstock_version
    from penstock.server.store_processes.child import end_with_parent, run_child
    from penstock.server.store_processes.messages import LINE_BYTES_MAX, Refusal, decode_order, encode_message

    if sys.stdin.isatty():
        raise fail(
            "store-child is started by a server: use penstock segment-store, or penstock standalone --segment-stores N",
            kind="InvalidArgumentError",
            as_json=False,
        )
    # Unbuffered, byte by byte up to the end of the line: what follows it belongs to the event loop.
    source = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115  # lives as long as the process
    output = sys.stdout.buffer
    if member:
        raise typer.Exit(0 if _run_member(source, output) else EXIT_FAILED)
    try:
        order = decode_order(source.readline(LINE_BYTES_MAX))
        if order.store != number:
            raise ProtocolError(f"this is segment store {number}, but the start order is for store {order.store}")
        end_with_parent(order.parent_pid)
    except PenstockError as error:
        output.write(encode_message(Refusal(type(error).__name__, str(error))))
        output.flush()
        raise typer.Exit(EXIT_FAILED) from error
    level, form = (str(order.settings.get(name, default)) for name, default in _LOG)
    log_to_standard_error(level, process=f"store {order.store}", form=form)
    logger = logging.getLogger(__name__)
    logger.info("starting segment store %d of penstock %s, pid %d", order.store, penstock_version(), os.getpid())
    bound_heaps()
    keep_heap_small()
    raise_descriptor_limit()
    settle_collector()
    try:
        with asyncio.Runner(loop_factory=new_loop()) as runner:
            is_clean = runner.run(run_child(order, source, output))
    except PenstockError as error:
        # Said to the parent already, if it was not ready yet; otherwise there is only the log.
        logger.warning("ending: %s", error)
        raise typer.Exit(EXIT_FAILED) from error
    logger.info("segment store %d has stopped", order.store)
    if not is_clean:
        raise typer.Exit(EXIT_FAILED)


def _run_member(source: io.FileIO, output: BinaryIO) -> bool:
    """Run a segment store of a cluster; return whether it stopped cleanly."""
    from penstock.cli.serve import new_loop
    from penstock.model.errors import PenstockError
    from penstock.runtime.collector import settle_collector
    from penstock.runtime.descriptors import raise_descriptor_limit
    from penstock.runtime.heap import bound_heaps, keep_heap_small
    from penstock.runtime.logs import log_to_standard_error
    from penstock.server.cluster.messages import decode_member_order
    from penstock.server.cluster.store import run_member, start_java_for
    from penstock.server.store_processes.child import end_with_parent
    from penstock.server.store_processes.messages import LINE_BYTES_MAX, Refusal, encode_message

    try:
        order = decode_member_order(source.readline(LINE_BYTES_MAX))
        end_with_parent(order.parent_pid)
        start_java_for(order)  # Before the loop: it takes the main thread and signals as they are now.
    except PenstockError as error:
        output.write(encode_message(Refusal(type(error).__name__, str(error))))
        output.flush()
        return False
    level, form = (str(order.settings.get(name, default)) for name, default in _LOG)
    log_to_standard_error(level, process=f"store {order.name}", form=form)
    bound_heaps()
    keep_heap_small()
    raise_descriptor_limit()
    settle_collector()
    try:
        with asyncio.Runner(loop_factory=new_loop()) as runner:
            return runner.run(run_member(order, source, output))
    except PenstockError as error:
        # Reported to the parent already, if it was not ready yet; otherwise there is only the log.
        logging.getLogger(__name__).warning("ending: %s", error)
        return False
