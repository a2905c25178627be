"""``penstock top``: what a cluster does, refreshed until Ctrl-C."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import URI, AsJson, Uri
from penstock.cli.output import in_bytes, table, tell, write_text

if TYPE_CHECKING:
    from penstock.client.statistics.statistics import ClusterStatistics

#: Shows lines in the place of those before.
_Show = Callable[[list[str]], None]


def top(
    interval_s: Annotated[float, typer.Option("--interval-s", min=0.1, help="Seconds between two refreshes.")] = 1.0,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, help="Stop after this many refreshes. [default: none; 1 without a terminal]"
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Maximum number of streams and groups to show, the busiest first.")
    ] = 15,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Show rates, lag, segments, memory, logs and unflushed bytes, live, until Ctrl-C.

    Rates are measured since the previous refresh, at first over the last second. With --json each refresh is a line.
    """
    # Only now: the help of all commands should not load a client.
    from penstock.cli.session import connected
    from penstock.model.errors import PenstockError

    is_live = sys.stdout.isatty() and not as_json
    polls = range(count if count is not None else 1) if count is not None or not is_live else itertools.count()
    with exit_on_error(as_json=as_json), connected(uri) as session, _screen(is_wanted=is_live) as show:
        found: ClusterStatistics | None = None
        for number in polls:
            if number:
                time.sleep(interval_s)
            try:
                found = session.call(session.client.statistics(found, groups="all"))
            except PenstockError as error:
                if found is None or not is_live:
                    raise
                # The display shows when it is available again.
                show([f"penstock top: {uri}", f"! {error}"])
                continue
            if as_json:
                tell("top", _fields(found, rows), (), as_json=True)
            else:
                show([f"penstock top: {uri}", *lines_of(found, rows)])
            sys.stdout.flush()


@contextmanager
def _screen(*, is_wanted: bool) -> Iterator[_Show]:
    """Give what shows lines: on a terminal in the place of the last ones, else one after the other."""
    if not is_wanted:
        yield lambda lines: write_text("\n".join([*lines, ""]))
        return
    # Only now: rich is not needed otherwise, and takes its time to load.
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)


def lines_of(found: ClusterStatistics, rows: int) -> list[str]:
    """Return statistics as people read them. `rows`: streams and groups that are shown at most."""
    running = len(found.containers)
    streams = sorted(found.streams().values(), key=lambda load: (-load.bytes_per_s, load.name))
    groups = sorted(found.groups.values(), key=lambda lag: (-lag.total_unread_bytes, lag.name))
    stores = []
    for address, store in sorted(found.stores.items()):
        own = [container for container in found.containers.values() if container.store == address]
        stores.append((
            address,
            in_bytes(store.resident_bytes),
            f"{in_bytes(store.cache_bytes)} of {in_bytes(store.cache_bytes_max)}",
            len(own),
            sum(container.active_segment_count for container in own),
            round(sum(container.events_per_s for container in own)),
            in_bytes(sum(container.log_bytes for container in own)),
            in_bytes(sum(container.backlog_bytes for container in own)),
        ))  # fmt: skip
    return [
        f"{found.events_per_s:,.0f} events/s, {in_bytes(round(found.bytes_per_s))}/s, containers: {running} of "
        f"{max(found.container_count, running)}, not in long-term storage yet: {in_bytes(found.backlog_bytes)}",
        *_problems(found),
        "",
        *table(("store", "memory", "cache", "containers", "segments", "events/s", "log", "backlog"), stores),
        "",
        *_bucket_lines(found),
        *table(
            ("stream", "segments", "events/s", "bytes/s"),
            [
                (load.name, load.segment_count, round(load.events_per_s), in_bytes(round(load.bytes_per_s)))
                for load in streams[:rows]
            ],
        ),
        *_more(len(streams) - rows, "streams"),
        "",
        *table(
            ("group", "readers", "unread", "segments waiting"),
            [
                (lag.name, lag.reader_count, in_bytes(lag.total_unread_bytes), lag.unassigned_segment_count)
                for lag in groups[:rows]
            ],
        ),
        *_more(len(groups) - rows, "groups"),
    ]


def _bucket_lines(found: ClusterStatistics) -> list[str]:
    """Return the requests to object stores, if there are any."""
    loads = [(address, load) for address, store in sorted(found.stores.items()) for load in store.objects.values()]
    if not loads:
        return []
    rows = []
    for address, load in loads:
        writes, reads = load.writes_per_s, load.reads_per_s
        sent, received = load.sent_bytes_per_s, load.received_bytes_per_s
        rows.append((
            load.bucket,
            address,
            f"{load.write_count:,}",
            f"{load.read_count:,}",
            "-" if writes is None else f"{writes:.1f}",
            "-" if reads is None else f"{reads:.1f}",
            "-" if sent is None else f"{in_bytes(round(sent))}/s",
            "-" if received is None else f"{in_bytes(round(received))}/s",
            "-" if load.dollars_per_month is None else f"{load.dollars_per_month:,.0f}",
        ))  # fmt: skip
    titles = ("bucket", "store", "writes", "reads", "writes/s", "reads/s", "sent", "received", "$/month (list price)")
    return [*table(titles, rows), ""]


def _problems(found: ClusterStatistics) -> Iterator[str]:
    """Yield what is wrong, so that it is seen first."""
    for address, store in sorted(found.stores.items()):
        if store.problem is not None:
            yield f"! store {address} does not answer: {store.problem}"
        if store.storage_problem is not None:
            yield f"! store {address}, long-term storage: {store.storage_problem}"
        for failed_id, why in sorted(store.failures.items()):
            yield f"! store {address}, container {failed_id} does not run: {why}"
    if found.missing_containers:
        yield f"! no report of containers {', '.join(map(str, found.missing_containers))}"
    for container_id, container in sorted(found.containers.items()):
        if container.is_log_long:
            yield f"! container {container_id}: its log cannot be truncated, {in_bytes(container.log_bytes)}"
        if container.held_append_count:
            yield f"! container {container_id}: {container.held_append_count} appends wait for long-term storage"
    for name, lag in sorted(found.groups.items()):
        if lag.problem is not None:
            yield f"! group {name}: {lag.problem}"
        for stream in lag.recreated:
            yield f"! group {name}: stream {stream} was deleted and created again; it does not read the new stream"
        if lag.reader_count and lag.unassigned_segment_count:
            yield f"! group {name}: segments without a reader: {lag.unassigned_segment_count}"
        if lag.is_finished:
            yield f"  group {name} is finished: it read every stream to its end"


def _more(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"... and {count} more {what}"


def _fields(found: ClusterStatistics, rows: int) -> dict[str, object]:
    """Return statistics for programs. `rows` bounds streams and groups, as for people."""
    streams = sorted(found.streams().values(), key=lambda load: (-load.bytes_per_s, load.name))
    groups = sorted(found.groups.values(), key=lambda lag: (-lag.total_unread_bytes, lag.name))
    return {
        "events_per_s": found.events_per_s,
        "bytes_per_s": found.bytes_per_s,
        "backlog_bytes": found.backlog_bytes,
        "container_count": found.container_count,
        "missing_containers": list(found.missing_containers),
        "stores": [asdict(store) for _, store in sorted(found.stores.items())],
        "containers": [asdict(container) for _, container in sorted(found.containers.items())],
        "stream_count": len(streams),
        "streams": [asdict(load) for load in streams[:rows]],
        "group_count": len(groups),
        "groups": [{**asdict(lag), "total_unread_bytes": lag.total_unread_bytes} for lag in groups[:rows]],
    }
