"""``penstock cluster demo``: a whole cluster on this machine, with a load, to be killed, suspended and drained."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.demo_input import lines_of_input
from penstock.cli.failure import exit_on_error
from penstock.cli.output import write_text

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.demo.commands import DemoCommand
    from penstock.demo.run import Demo, DemoEvent
    from penstock.demo.settings import DemoSettings

#: Events that the picture shows below the state.
_EVENTS_SHOWN = 14
_DRAW_S = 0.25
#: Lines typed while a command runs; more are refused.
_LINES_WAITING_MAX = 64

_Stores = Annotated[int, typer.Option(min=1, max=9, help="Number of segment stores.")]
_Controllers = Annotated[int, typer.Option(min=1, max=9, help="Number of controllers.")]
_Containers = Annotated[int, typer.Option(min=1, max=64, help="Number of segment containers.")]
_Bucket = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="A place in a bucket for log and data, s3://bucket/prefix; they are deleted at the end. "
        "[default: files in a directory]",
        show_default=False,
    ),
]
_Zookeeper = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="A running ZooKeeper. [default: one is started, from the jars of PySpark]",
        show_default=False,
    ),
]
_Rate = Annotated[float, typer.Option(min=1.0, help="Events per second that are written and read.")]
_Script = Annotated[
    str | None,
    typer.Option(
        help="Commands, separated by semicolons, instead of a prompt: 'kill 2; served; start 2; served'. Without a "
        "terminal they are read from standard input.",
        show_default=False,
    ),
]
_Directory = Annotated[
    Path | None,
    typer.Option(help="For the logs of the processes, and data; must be empty. It is kept. [default: temporary]"),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print what happens as JSON lines.")]


def demo(
    stores: _Stores = 3,
    controllers: _Controllers = 2,
    containers: _Containers = 6,
    bucket: _Bucket = "",
    zookeeper: _Zookeeper = "",
    rate: _Rate = 200.0,
    script: _Script = None,
    directory: _Directory = None,
    as_json: _AsJson = False,
) -> None:
    """Run a whole cluster on this machine, with a load, and show what happens when parts of it are lost.

    Starts ZooKeeper, segment stores and controllers, writes and reads events, checks each of them, and shows which
    store serves each container. At the prompt: kill 2, stop 2, cont 2, drain 1, undrain 1, start 2, kill c1, quit.
    Everything ends with the command. Exits with 1 if an event was lost, doubled or out of order.
    """
    with exit_on_error(as_json=as_json):
        from penstock.demo.commands import parse_script
        from penstock.demo.settings import DemoSettings

        commands = None if script is None else parse_script(script)
        folder = _directory(directory)
        is_clean = False
        try:
            settings = DemoSettings(
                folder, bucket=bucket, zookeeper=zookeeper, stores=stores, controllers=controllers,
                containers=containers, events_per_s=rate,
            )  # fmt: skip
            code = _run(settings, commands, as_json=as_json)
            is_clean = code == 0
        finally:
            if directory is None and (is_clean or not any(folder.glob("*.log"))):
                shutil.rmtree(folder, ignore_errors=True)
            elif not as_json:
                sys.stderr.write(f"penstock: the logs of the processes are in {folder}\n")
    if code:
        raise typer.Exit(code)


def _directory(given: Path | None) -> Path:
    from penstock.model.errors import InvalidArgumentError

    if given is None:
        return Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    if given.exists() and (not given.is_dir() or any(given.iterdir())):
        raise InvalidArgumentError(f"{given} is not an empty directory: name a new or empty one")
    given.mkdir(parents=True, exist_ok=True)
    return given


def _run(settings: DemoSettings, commands: Sequence[DemoCommand] | None, *, as_json: bool) -> int:
    """Run the demonstration; return the exit code. Raises `PenstockError`."""
    from penstock.cli.serve import new_loop
    from penstock.demo.run import Demo

    # What processes report is in their logs.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    is_live = commands is None and not as_json and sys.stdin.isatty() and sys.stdout.isatty()

    async def run() -> int:
        screen = _Screen() if is_live else None
        demo = Demo(settings, screen.note if screen is not None else _json_line if as_json else _text_line)
        async with AsyncExitStack() as ends:
            ends.push_async_callback(demo.stop)
            work = asyncio.ensure_future(_work(demo, commands, screen))
            signals = _on_signals(work, demo)
            try:
                await work
            except asyncio.CancelledError:
                if not signals:
                    raise
                return 128 + signals[0]
        return 0

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


async def _work(demo: Demo, commands: Sequence[DemoCommand] | None, screen: _Screen | None) -> None:
    if screen is not None:
        await screen.run(demo)
        return
    await demo.start()
    if commands is not None:
        for command in commands:
            await demo.execute(command)
    else:
        async for line in lines_of_input(sys.stdin.fileno()):
            await _execute_line(demo, line)
    await demo.finish()


async def _execute_line(demo: Demo, line: str) -> bool:
    """Execute a line; report what is wrong with it. Return whether the demonstration is to end."""
    from penstock.demo.commands import Verb, parse
    from penstock.model.errors import PenstockError

    try:
        command = parse(line)
        await demo.execute(command)
    except PenstockError as error:
        demo.say_error(str(error))
        return False
    return command.verb is Verb.QUIT


def _on_signals(work: asyncio.Future[None], demo: Demo) -> list[int]:
    """End the work at the first signal, and everything at once at the second one. Return the signals, as they come."""
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            demo.cluster.kill()
            os._exit(128 + number)
        work.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    return seen


def _text_line(event: DemoEvent) -> None:
    if event.text:
        write_text(f"{event.t_s:7.1f} s  {event.text}\n")
        sys.stdout.flush()


def _json_line(event: DemoEvent) -> None:
    if event.kind not in ("line", "help"):
        write_text(json.dumps({"type": event.kind, "t_s": event.t_s, **event.fields}) + "\n")
        sys.stdout.flush()


class _Screen:
    """The picture and the prompt, on a terminal."""

    def __init__(self) -> None:
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._typed = ""
        self._lines: asyncio.Queue[str] = asyncio.Queue(_LINES_WAITING_MAX)
        #: What stays on the terminal afterwards.
        self._last: list[str] = []

    def note(self, event: DemoEvent) -> None:
        """See `Report`."""
        if event.text:
            self._events.append(f"{event.t_s:7.1f} s  {event.text}")
        if event.kind in ("result", "stopped"):
            self._last.append(event.text)

    async def run(self, demo: Demo) -> None:
        """Show the demonstration until ``quit``."""
        # Only now: these are of no use without a terminal.
        import termios
        import tty

        from rich.live import Live

        descriptor = sys.stdin.fileno()
        saved = termios.tcgetattr(descriptor)
        loop = asyncio.get_running_loop()
        with Live(screen=True, auto_refresh=False) as live:
            tty.setcbreak(descriptor)
            loop.add_reader(descriptor, self._type)
            drawing = loop.create_task(self._draw(demo, lambda text: live.update(text, refresh=True)))
            try:
                await demo.start()
                self._events.append(
                    "commands: kill 2, stop 2, cont 2, drain 1, undrain 1, start 2, kill c1, help, quit"
                )
                while not await _execute_line(demo, await self._lines.get()):
                    pass
                await demo.finish()
            finally:
                drawing.cancel()
                loop.remove_reader(descriptor)
                termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
        for line in self._last:
            write_text(f"{line}\n")

    async def _draw(self, demo: Demo, show: Callable[[Text], None]) -> None:
        from rich.text import Text

        from penstock.demo.run import LEGEND

        while True:
            state = [*demo.lines(), LEGEND] if demo.is_ready else ["starting ..."]
            text = "\n".join(["penstock cluster demo", "", *state, "", *self._events, "", f"> {self._typed}_"])
            show(Text(text, no_wrap=True, overflow="ellipsis"))
            await asyncio.sleep(_DRAW_S)

    def _type(self) -> None:
        """Take what was typed."""
        from penstock.demo.commands import LINE_CHARACTERS_MAX

        for character in os.read(sys.stdin.fileno(), 1024).decode(errors="replace"):
            if character in "\r\n":
                if self._typed.strip():
                    self._pass_on(self._typed)
                self._typed = ""
            elif character in "\x7f\b":
                self._typed = self._typed[:-1]
            elif character == "\x04" and not self._typed:
                self._pass_on("quit")
            elif character.isprintable():
                # One character more than a command may have: such a line is refused, not cut.
                self._typed = (self._typed + character)[: LINE_CHARACTERS_MAX + 1]

    def _pass_on(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except asyncio.QueueFull:
            self._events.append(f"error: {_LINES_WAITING_MAX} commands wait already; {line[:20]!r} is dropped")
