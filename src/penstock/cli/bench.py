"""``penstock bench``: how fast a server takes and gives events, as seen from here."""

from __future__ import annotations

import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import Interrupted, exit_code_of, exit_on_error, termination_interrupts
from penstock.cli.options import URI, AsJson, Uri
from penstock.cli.output import in_bytes, tell

if TYPE_CHECKING:
    from penstock.cli.bench_runs import Load, Run
    from penstock.cli.session import Session

#: How often the figures on the terminal change.
_SHOWN_EVERY_S = 0.25
#: Where streams live that are made for one measurement.
_SCOPE = "penstock-bench"

OwnStream = Annotated[
    str | None, typer.Option("--stream", help="Write to this stream. [default: a temporary stream, deleted afterwards]")
]
Segments = Annotated[int, typer.Option(min=1, help="Segments of the temporary stream.")]
Size = Annotated[int, typer.Option(min=8, help="Size of an event, in bytes.")]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many events. [default: none]")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Stop after this many seconds.")]

bench: typer.Typer = typer.Typer(name="bench")


@bench.command()
def write(
    stream: OwnStream = None,
    segments: Segments = 1,
    size: Size = 100,
    count: Count = None,
    seconds: Seconds = 10.0,
    rate: Annotated[float | None, typer.Option(min=1, help="Events per second. [default: full speed]")] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Write events; report rates and latencies from call to acknowledgement (one event sampled in each step)."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), termination_interrupts():
        from penstock.cli.bench_runs import Load, Run, write_events

        load, run = Load(size, count, seconds, rate), Run()
        with connected(uri) as session, _stream(session, stream, "write", segments) as name:
            code = _measured(session, write_events(session.client, name, load, run), run, "written", as_json=as_json)
        _tell("write", name, load, run, as_json=as_json)
        if code:
            raise typer.Exit(code)


@bench.command()
def read(
    stream: Annotated[
        str | None,
        typer.Option(help="Read this stream. [default: a temporary stream, filled first, deleted afterwards]"),
    ] = None,
    segments: Segments = 1,
    size: Size = 100,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Events to write to the temporary stream.")
    ] = 1_000_000,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Read a stream from its head to its current end; report rates and the time to the first events."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), termination_interrupts():
        from penstock.cli.bench_runs import Load, Run, read_events, write_events

        load, run = Load(size, count, None, None), Run()
        with connected(uri) as session, _stream(session, stream, "read", segments) as name:
            client = session.client
            if stream is None:
                filled = Run()
                fill = write_events(client, name, load, filled)
                if code := _measured(session, fill, filled, "filled", as_json=as_json):
                    raise typer.Exit(code)
            head, tail = session.call(client.head(name)), session.call(client.tail(name))
            code = _measured(session, read_events(client, head, tail, run), run, "read", as_json=as_json)
        _tell("read", name, load if stream is None else None, run, as_json=as_json)
        if code:
            raise typer.Exit(code)


@bench.command("end-to-end")
def end_to_end(
    segments: Segments = 1,
    size: Size = 100,
    count: Count = None,
    seconds: Seconds = 10.0,
    rate: Annotated[float, typer.Option(min=1, help="Events per second.")] = 1000.0,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Write events at a rate and read them at the same time; report latencies from write call to read."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), termination_interrupts():
        from penstock.cli.bench_runs import Load, Run, follow_events

        load, run = Load(size, count, seconds, rate), Run()
        with connected(uri) as session, _stream(session, None, "end-to-end", segments) as name:
            code = _measured(session, follow_events(session.client, name, load, run), run, "read", as_json=as_json)
        _tell("end-to-end", name, load, run, as_json=as_json)
        if code:
            raise typer.Exit(code)


@contextmanager
def _stream(session: Session, stream: str | None, kind: str, segments: int) -> Iterator[str]:
    """Give the stream to measure with: the one that was named, or a new one, which is deleted at the end."""
    from penstock.cli.bench_runs import create_own_stream, delete_own_stream

    if stream is not None:
        yield stream
        return
    name = f"{_SCOPE}/{kind}-{time.time_ns():x}"
    session.call(create_own_stream(session.client, name, segments))
    try:
        yield name
    finally:
        session.call(delete_own_stream(session.client, name))


def _measured(session: Session, work: Coroutine[object, object, None], run: Run, verb: str, *, as_json: bool) -> int:
    """Run a measurement to its end, and show how far it is; return 0, or the exit code if it was interrupted."""
    future = session.start(work)
    is_shown = sys.stderr.isatty() and not as_json
    try:
        while not session.is_done(future, _SHOWN_EVERY_S):
            if is_shown:
                sys.stderr.write(f"\r\x1b[K{_shown(run, verb)}")
                sys.stderr.flush()
        return 0
    except (KeyboardInterrupt, Interrupted) as interruption:
        # The measurements so far are reported anyway.
        return exit_code_of(interruption)
    finally:
        session.cancel(future)
        if is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _shown(run: Run, verb: str) -> str:
    text = (
        f"{run.elapsed_s:5.1f} s  {run.events:,} {verb}  {run.events_per_s:,.0f} events/s  "
        f"{in_bytes(int(run.bytes_per_s))}/s"
    )
    if run.latencies.count > 1:
        told = run.latencies.in_ms()
        text += f"  p50 {told['p50']:.2f}  p95 {told['p95']:.2f}  p99 {told['p99']:.2f} ms"
    return text


def _tell(kind: str, stream: str, load: Load | None, run: Run, *, as_json: bool) -> None:
    fields: dict[str, object] = {
        "bench": kind,
        "stream": stream,
        "size_bytes": None if load is None else load.size_bytes,
        "rate": None if load is None else load.rate,
        "events": run.events,
        "bytes": run.length_bytes,
        "seconds": round(run.elapsed_s, 3),
        "events_per_s": round(run.events_per_s, 1),
        "bytes_per_s": round(run.bytes_per_s, 1),
        "client_cpu_s": round(run.cpu_s, 3),
        "latency_count": run.latencies.count,
        "latency_ms": run.latencies.in_ms(),
    }
    told = run.latencies.in_ms()
    latency = (
        f"first events after {told['max']:.2f} ms"
        if kind == "read"
        else "latency ms: " + "  ".join(f"{name.replace('_', '.')} {value:.2f}" for name, value in told.items())
    )
    lines = [
        f"{run.events:,} events in {run.elapsed_s:.2f} s: {run.events_per_s:,.0f} events/s, "
        f"{in_bytes(int(run.bytes_per_s))}/s, {run.cpu_s:.2f} s of client CPU",
        latency,
    ]
    tell("bench", fields, lines, as_json=as_json)
