"""The Java virtual machine of this process, by JPype: started once, in the main thread, before the event loop."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.extras import missing_extra

#: Beginnings of the names of jars that are left out: then the client logs nothing. Log4j alone takes 1.2 s of CPU to
#: start. What fails reaches the log of this process as an exception.
_LOGGERS = ("log4j-", "logback-", "slf4j-log4j", "slf4j-reload4j", "slf4j-simple")
#: What Netty, and the direct buffers of JPype, need of Java 17.
_OPENS = ("java.base/java.nio=ALL-UNNAMED", "java.base/jdk.internal.misc=ALL-UNNAMED")


def start_java(what: str, jars: str, *, heap_mb: int, direct_mb: int) -> None:
    """Start the virtual machine with all jars of the directory `jars`; nothing if it runs. `what` needs it.

    Its end, also by a lack of memory, ends the process. It leaves signals to Python. The process may not fork
    afterwards. Raises `InvalidArgumentError`, which says what to install.
    """
    jpype = _jpype(what)
    if jpype.isJVMStarted():
        return
    found = client_jars(jars)
    if not any("bookkeeper-server" in os.path.basename(path) for path in found):
        where = f"the directory {jars!r} has none" if jars else "no directory is set"
        raise InvalidArgumentError(
            f"{what} needs the jars of BookKeeper's client, and {where}: fetch them with penstock jars --to DIR, and "
            "name the directory by PENSTOCK_BOOKKEEPER__JARS"
        )
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgumentError(f"{what}: the Java virtual machine is started in the main thread")
    options = [
        f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={direct_mb}m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
        "-Xrs", "-Xshare:auto", "-Dslf4j.internal.verbosity=ERROR",
        "-Dio.netty.leakDetectionLevel=disabled", "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.numDirectArenas=2", "-Dio.netty.allocator.numHeapArenas=1",
        *(f"--add-opens={each}" for each in _OPENS),
    ]  # fmt: skip
    # A client that is not closed would keep the process from ending.
    config: Any = importlib.import_module("jpype.config")
    config.destroy_jvm = False
    try:
        jpype.startJVM(*options, classpath=found, convertStrings=False, interrupt=False)
    except (OSError, RuntimeError, jpype.JVMNotFoundException) as error:
        raise InvalidArgumentError(
            f"{what} needs Java 17 or newer, which cannot be started ({error}): install a Java runtime (Debian: "
            "apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
        ) from error


def exit_beside_java(code: object) -> None:
    """End this process at once with an exit code, as of `SystemExit`, if its virtual machine runs; otherwise return.

    A thread that returns from Java while Python ends is unwound through JPype, which aborts the process (SIGABRT).
    """
    if not has_java():
        return
    logging.shutdown()
    for file in (sys.stdout, sys.stderr):
        try:
            file.flush()
        except OSError:
            code = code or 1
    os._exit(code if isinstance(code, int) else int(code is not None))


def client_jars(directory: str) -> list[str]:
    """Return the jars of `directory` that the client needs: all but those of loggers. Empty: there is no directory."""
    if not directory:
        return []
    return sorted(str(path) for path in Path(directory).glob("*.jar") if not path.name.startswith(_LOGGERS))


def has_java() -> bool:
    """Return whether the virtual machine of this process runs."""
    try:
        import jpype
    except ImportError:
        return False
    return bool(jpype.isJVMStarted())


def _jpype(what: str) -> Any:
    try:
        import jpype
    except ImportError as error:
        raise InvalidArgumentError(missing_extra(what, "bookkeeper", error)) from error
    return jpype
