"""`Progress`: a line on the terminal with the progress of long work. Without a terminal there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Progress reports of long work."""

    def note(self, event_count: int, length_bytes: int) -> None:
        """So many events, of so many bytes, are done in all."""


class _Silent:
    def note(self, event_count: int, length_bytes: int) -> None:
        """Ignore the progress."""


@contextmanager
def shown_progress(what: str, total_bytes: int | None, *, is_wanted: bool, unit: str = "events") -> Iterator[Progress]:
    """Give a `Progress` that is shown on standard error, if that is a terminal and it `is_wanted`.

    `total_bytes`: the total work in bytes; None if unknown. `unit`: what is counted.
    """
    if not is_wanted or not sys.stderr.isatty():
        yield _Silent()
        return
    # Only now: rich is not needed otherwise, and takes its time to load.
    from rich import progress
    from rich.console import Console

    columns = [
        progress.TextColumn("{task.description}"),
        progress.BarColumn() if total_bytes is not None else progress.SpinnerColumn(),
        progress.TextColumn("{task.fields[events]:,} {task.fields[unit]}"),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeElapsedColumn(),
    ]
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total_bytes, events=0, unit=unit)

        class Shown:
            def note(self, event_count: int, length_bytes: int) -> None:
                """Drawn a few times a second by rich itself."""
                bars.update(task, completed=length_bytes, events=event_count)

        yield Shown()
