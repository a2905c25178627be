"""The official Java client 0.13.0 in a process of its own, called from tests.

A Java virtual machine cannot be stopped and started again within a process, takes its signals, and a call that hangs
in it cannot be interrupted. So it lives in a child process, which runs *calls*: functions of the modules
``support.java_calls_*`` that take a `JavaSession` and plain values and return plain values. Each call runs in a thread
there; here a test waits for it with a time-out, and meanwhile may kill the server.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

from penstock_simulation import java_client
from penstock_simulation.java_client import JavaUnavailableError
from support.standalone_process import StandaloneProcess

HEAP_MIB_MAX = 512
#: How long the start of the machine, and a call may take.
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 60.0

P = ParamSpec("P")
T = TypeVar("T")
#: A Java object or class: what it can do is known to Java only.
JavaObject: TypeAlias = Any

_WRAPPERS = ("java.util.concurrent.ExecutionException", "java.util.concurrent.CompletionException")


class JavaCallError(AssertionError):
    """A call failed in the Java client. `kind` is the class of the exception there, without its package."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class JavaCallTimeoutError(AssertionError):
    """A call did not end in time. Its process was killed."""


def classpath() -> list[str]:
    """Return the jars of the client. Raises `JavaUnavailableError`.

    ``PENSTOCK_TEST_JAVA_LOG=warn`` (or info, debug) makes the client log to standard error.
    """
    return java_client.classpath(is_logging=bool(os.environ.get("PENSTOCK_TEST_JAVA_LOG")))


def find_java() -> None:
    """Make sure that a machine can be started. Raises `JavaUnavailableError`."""
    if find_spec("jpype") is None:
        raise JavaUnavailableError("JPype is not installed: pip install JPype1")
    import jpype

    try:
        jpype.getDefaultJVMPath()
    except (jpype.JVMNotFoundException, jpype.JVMNotSupportedException) as error:
        raise JavaUnavailableError(f"no Java: {error}") from error


class JavaSession:
    """What a call is given, in the child process: the client's configuration, and objects kept between calls."""

    def __init__(self, send: Callable[[tuple[int, str, object]], None]) -> None:
        self._send = send
        self._thread = threading.local()
        self._lock = threading.RLock()
        self.config: JavaObject = None
        self.kept: dict[str, JavaObject] = {}

    def java(self, name: str) -> JavaObject:
        """Return a class of the client by its name below ``io.pravega.client``, or any class by its full name."""
        import jpype

        return jpype.JClass(name if name.startswith(("java.", "io.")) else f"io.pravega.client.{name}")

    def connect(self, uri: str) -> None:
        """Talk to this controller from now on. Nothing of another one may be kept."""
        self.config = self._builder(uri).build()

    def connect_secured(self, uri: str, authority: str, user: str, password: str) -> None:
        """Talk to this controller with TLS and an account. `authority`: PEM file of those that are trusted."""
        credentials = self.java("io.pravega.shared.security.auth.DefaultCredentials")(password, user)
        builder = self._builder(uri).trustStore(authority).validateHostName(True)
        self.config = builder.credentials(credentials).build()

    def _builder(self, uri: str) -> JavaObject:
        import jpype

        assert not self.kept, f"still connected: {list(self.kept)}"
        return self.java("ClientConfig").builder().controllerURI(jpype.JClass("java.net.URI").create(uri))

    def keep(self, name: str, make: Callable[[], JavaObject]) -> JavaObject:
        """Return the object kept under a name, made when there is none. It is closed with the session.

        `make` may keep others, which it needs. Calls that run at the same time wait for each other here.
        """
        with self._lock:
            if name not in self.kept:
                self.kept[name] = make()
            return self.kept[name]

    def close(self, name: str) -> None:
        """Close one kept object now."""
        self.kept.pop(name).close()

    def disconnect(self) -> None:
        """Close everything that is kept, the latest first. Raises what went wrong, when all is closed."""
        with contextlib.ExitStack() as stack:
            for made in self.kept.values():
                if hasattr(made, "close"):
                    stack.callback(made.close)
            self.kept.clear()

    def say(self, note: str) -> None:
        """Report the progress of the call to the test: see `JavaCall.wait_for`."""
        self._send((self._thread.number, "note", note))

    def run(self, number: int, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        """Run one call in this thread and send its result."""
        import jpype

        self._thread.number = number
        try:
            self._send((number, "result", call(self, *arguments)))
        except jpype.JException as error:
            # Those of a future wrap what happened in another thread.
            wrappers = tuple(map(self.java, _WRAPPERS))
            cause = error
            while isinstance(cause, wrappers) and cause.getCause() is not None:
                cause = cause.getCause()
            self._send((number, "error", (str(cause.getClass().getSimpleName()), _shortened(error.stacktrace()))))
        except Exception as error:  # noqa: BLE001 - Every error is passed to the test.
            self._send((number, "error", (type(error).__name__, traceback.format_exc())))


def content_of(buffer: JavaObject) -> bytes:
    """Return what a ``ByteBuffer`` has left. Only in the child."""
    import jpype

    content = jpype.JByte[int(buffer.remaining())]
    buffer.duplicate().get(content)
    return memoryview(content).tobytes()


def _shortened(trace: str) -> str:
    """Return what says why, of a Java stack trace of hundreds of lines."""
    lines = trace.splitlines()
    return "\n".join(lines[:15] + [line for line in lines[15:] if not line.startswith("\tat ")])


def _serve(channel: Connection, jars: list[str]) -> None:
    """Run in the child: start the machine, then a thread for each call, until the parent goes away."""
    import jpype

    options = [f"-Xmx{HEAP_MIB_MAX}m", "-Xrs", "-XX:+UseSerialGC", "-Dio.netty.tryReflectionSetAccessible=false"]
    level = os.environ.get("PENSTOCK_TEST_JAVA_LOG")
    if level:
        options.append(f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}")
    jpype.startJVM(*options, classpath=jars, interrupt=False, convertStrings=True)
    if not level:
        # gRPC's own: it has another logger than the client.
        jpype.JClass("java.util.logging.LogManager").getLogManager().reset()
    lock = threading.Lock()

    def send(message: tuple[int, str, object]) -> None:
        with lock:
            channel.send(message)

    session = JavaSession(send)
    send((0, "result", None))
    while True:
        try:
            number, call, arguments = channel.recv()
        except EOFError:
            break
        threading.Thread(target=session.run, args=(number, call, arguments), daemon=True).start()
    # Not an ordinary end: it would wait for threads of the client.
    os._exit(0)


class JavaCall(Generic[T]):
    """A call under way."""

    def __init__(self, process: JavaProcess, number: int, name: str) -> None:
        self._process = process
        self._number = number
        self._name = name
        self._notes: list[object] = []
        self._outcome: tuple[str, Any] | None = None

    def take(self, kind: str, value: object) -> None:
        """Take in a message of the child."""
        if kind == "note":
            self._notes.append(value)
        else:
            self._outcome = (kind, value)

    def wait_for(self, note: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Wait until the call has said `note`. Raises as `result` when the call ends before."""
        self._process.receive_until(lambda: note in self._notes or self._outcome is not None, self._name, timeout_s)
        if note not in self._notes:
            self.result()
            raise AssertionError(f"{self._name} ended without saying {note!r}")

    def result(self, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Wait for the end and return what the call returned.

        Raises:
            JavaCallError: the call raised.
            JavaCallTimeoutError: it took too long.
        """
        self._process.receive_until(lambda: self._outcome is not None, self._name, timeout_s)
        assert self._outcome is not None
        kind, value = self._outcome
        if kind == "error":
            raise JavaCallError(value[0], f"{self._name} failed in the Java client\n{value[1]}")
        result: T = value
        return result


class JavaProcess:
    """The child process. Leaving it as a context manager kills it."""

    def __init__(self, jars: list[str]) -> None:
        # Spawned, not forked: a fork would take over this process's threads and handles.
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, jars), daemon=True)
        self._process.start()
        theirs.close()
        self._numbers = itertools.count(1)
        started: JavaCall[None] = JavaCall(self, 0, "the start of Java")
        self._calls: dict[int, JavaCall[Any]] = {0: started}
        started.result(START_TIMEOUT_S)

    @property
    def is_running(self) -> bool:
        """Whether it lives; a call that took too long ends it."""
        return self._process.is_alive()

    def start(
        self, call: Callable[Concatenate[JavaSession, P], T], *arguments: P.args, **named: P.kwargs
    ) -> JavaCall[T]:
        """Begin a call. It goes by the function's name, so the function must be a module's own."""
        assert not named, "calls take positional arguments only"
        number = next(self._numbers)
        started: JavaCall[T] = JavaCall(self, number, call.__name__)
        self._calls[number] = started
        self._channel.send((number, call, arguments))
        return started

    def run(self, call: Callable[Concatenate[JavaSession, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make a call and wait for its end. Raises as `JavaCall.result`."""
        return self.start(call, *arguments, **named).result()

    def receive_until(self, is_enough: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Take in messages until `is_enough`. Raises `JavaCallTimeoutError`, and kills the child, after `timeout_s`."""
        deadline = monotonic() + timeout_s
        while not is_enough():
            if not self._channel.poll(max(0.0, deadline - monotonic())):
                self.kill()
                raise JavaCallTimeoutError(f"{what}: nothing came within {timeout_s:g} s")
            try:
                number, kind, value = self._channel.recv()
            except EOFError:
                self._process.join()
                raise JavaCallError(
                    "EOFError", f"{what}: the Java process ended with code {self._process.exitcode}"
                ) from None
            self._calls[number].take(kind, value)
            if kind != "note":
                del self._calls[number]

    def kill(self) -> None:
        """End it. Fine when it has ended."""
        with contextlib.suppress(OSError):
            self._channel.close()
        self._process.kill()
        self._process.join()

    def __enter__(self) -> JavaProcess:
        return self

    def __exit__(self, *ending: object) -> None:
        self.kill()


def kill_and_restart(server: StandaloneProcess) -> None:
    """End the server the hard way and start it again on the same data and ports, while the client lives on.

    When that takes more than a second, the client's next call to the controller may take 10 s: it tries again 1 s and
    then 10 s after it has failed.
    """
    server.kill9()
    server.start()


def connect(java: JavaSession, uri: str) -> None:
    """Call: talk to this controller."""
    java.connect(uri)


def connect_secured(java: JavaSession, uri: str, authority: str, user: str, password: str) -> None:
    """Call: talk to this controller with TLS and an account."""
    java.connect_secured(uri, authority, user, password)


def disconnect(java: JavaSession) -> None:
    """Call: close everything that is kept."""
    java.disconnect()
