"""The architecture, checked in the source itself: imports point down, and the outside world comes through the seam."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import penstock
import penstock_simulation

ROOT = Path(penstock.__file__).parent
SIMULATION = Path(penstock_simulation.__file__).parent

#: Package -> the packages of Penstock that it may import besides itself. Downwards only.
ALLOWED = {
    "model": set(),
    "runtime": {"model"},
    "wire": {"model"},
    "rpc": {"model"},
    "security": {"model", "runtime"},
    "segmentstore": {"model", "runtime", "wire", "security"},
    "client": {"model", "runtime", "wire", "rpc"},
    "controller": {"model", "runtime", "wire", "rpc", "segmentstore", "client", "security"},
    "spark": {"model", "runtime", "client"},
    "jobs": {"model", "runtime", "client", "spark"},
    # For tests of applications: a server in memory.
    "testing": {"model", "runtime", "client", "server"},
    # Not installed: replaces the outside world, and runs whole clusters. Only tests and benches import it.
    "simulation": {
        "model", "runtime", "wire", "rpc", "segmentstore", "client", "controller", "operations", "security", "spark",
        "server", "administration",
    },
    # Health and metrics of the parts of a server.
    "operations": {"client", "model", "runtime", "segmentstore", "controller", "security"},
    # What is assembled for users: a server, and tools for its data.
    "server": {"model", "runtime", "wire", "segmentstore", "client", "controller", "operations", "security"},
    "administration": {"model", "runtime", "wire", "segmentstore", "security", "server"},
    # The REST interface and the console: a client. The console shows the ledgers that Spark's sinks write.
    "web": {"model", "runtime", "client", "spark", "security"},
    "quickstart": {"model", "runtime", "client", "spark", "server"},
    # A cluster on one machine, for demonstrations.
    "demo": {"model", "runtime", "client", "server"},
    "cli": {
        "model", "runtime", "wire", "client", "spark", "jobs", "quickstart", "security", "server", "administration",
        "web", "demo",
    },
    "__main__": {"cli"},
}  # fmt: skip
#: All modules directly under `penstock`: the client's front door.
FRONT_DOOR = {"__init__", "aio", "serializers", "traced_events"}

#: Rooms under the determinism seam.
DETERMINISTIC = ("segmentstore", "controller", "client")
#: Names that reach past the seam, by module. None: the module as a whole.
FORBIDDEN: dict[str, set[str] | None] = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "datetime": None,
    "threading": None,
    "multiprocessing": None,
    "concurrent": None,
    "subprocess": None,
    "socket": None,
    "secrets": None,
    "tempfile": None,
    "shutil": None,
    "pathlib": None,
}
#: Of `random` only the type of an injected generator.
RANDOM_ALLOWED = {"Random"}
OS_ALLOWED = {"path", "fspath", "PathLike"}
UUID_FORBIDDEN = {"uuid1", "uuid4"}


def modules() -> list[Path]:
    """Every module of the package but generated code."""
    return sorted(path for path in ROOT.rglob("*.py") if not path.name.startswith("controller_pb2"))


def modules_and_simulation() -> list[Path]:
    """Those of the package, and those of the simulation beside it."""
    return [*modules(), *sorted(SIMULATION.rglob("*.py"))]


def below_root(path: Path) -> str:
    """Return a module's path below the directory of its top-level package's parent: a short name for it."""
    return str(path.relative_to((ROOT if path.is_relative_to(ROOT) else SIMULATION).parent))


def imports(tree: ast.Module, *, with_types: bool = False) -> Iterator[tuple[str, list[str], int]]:
    """Yield (module, imported names, line) of every import, also those inside functions.

    Not those under `TYPE_CHECKING`, unless `with_types`.
    """
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if not with_types
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, [], node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or "", [alias.name for alias in node.names], node.lineno


def room_of(parts: tuple[str, ...]) -> str:
    """Return the layer of a module by its path below `penstock`."""
    first = parts[0].removesuffix(".py") if parts else "__init__"
    return "client" if first in FRONT_DOOR else first


def layers_imported(module: str, names: list[str]) -> Iterator[str]:
    """Return the layers that an import of `module` or of `names` from it reaches."""
    parts = tuple(module.split("."))
    if parts[0] == "penstock_simulation":
        yield "simulation"
    if parts[0] != "penstock":
        return
    if len(parts) > 1:
        yield room_of(parts[1:])
        return
    for name in names:
        yield room_of((name,)) if (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists() else "client"


def test_each_package_is_in_the_table() -> None:
    """And no module is added beside the packages."""
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {path.stem for path in ROOT.glob("*.py")}
    assert found == ALLOWED.keys() - {"simulation"} | FRONT_DOOR


@pytest.mark.parametrize("path", modules_and_simulation(), ids=below_root)
def test_imports_point_down(path: Path) -> None:
    """No module imports from a layer above its own, nor `client` and `segmentstore` from each other."""
    layer = room_of(path.relative_to(ROOT).parts) if path.is_relative_to(ROOT) else "simulation"
    for module, names, line in imports(ast.parse(path.read_text())):
        for imported in layers_imported(module, names):
            assert imported == layer or imported in ALLOWED[layer], (
                f"{path}:{line}: {layer} may not import {module} ({imported})"
            )


def reaches_past_the_seam(tree: ast.Module) -> Iterator[str]:
    """Yield what in a module takes time, randomness, threads, files or sockets by itself."""
    for module, names, line in imports(tree):
        top = module.partition(".")[0]
        forbidden = FORBIDDEN.get(top, set())
        if forbidden is None or forbidden & set(names):
            yield f"line {line}: imports {module} {', '.join(names)}"
        if top == "random" and set(names) - RANDOM_ALLOWED:
            yield f"line {line}: imports {', '.join(names)} from random"
        if top == "os" and set(names) - OS_ALLOWED:
            yield f"line {line}: imports {', '.join(names)} from os"
        if top == "uuid" and set(names) & UUID_FORBIDDEN:
            yield f"line {line}: imports {', '.join(names)} from uuid"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"line {node.lineno}: opens a file"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (
                (owner == "time" and name in (FORBIDDEN["time"] or set()))
                or (owner == "random" and name not in RANDOM_ALLOWED)
                or (owner == "os" and name not in OS_ALLOWED)
                or (owner == "uuid" and name in UUID_FORBIDDEN)
                or (owner == "asyncio" and name in ("to_thread", "open_connection", "start_server"))
            ):
                yield f"line {node.lineno}: {owner}.{name}"


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if path.relative_to(ROOT).parts[0] in DETERMINISTIC],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_time_randomness_threads_files_and_sockets_come_through_the_seam(path: Path) -> None:
    """The same code must run under a seeded loop with a virtual clock and a simulated disk."""
    found = list(reaches_past_the_seam(ast.parse(path.read_text())))
    assert not found, f"{path}: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "from time import time",
        "import random\nrandom.random()",
        "from random import choice",
        "import threading",
        "import socket",
        "open('x')",
        "import os\nos.urandom(3)",
        "import uuid\nuuid.uuid4()",
        "import asyncio\nasyncio.to_thread(print)",
        "from concurrent.futures import ThreadPoolExecutor",
    ],
)
def test_the_check_itself_finds_each_way_around(source: str) -> None:
    """A check that finds nothing would pass on anything."""
    assert list(reaches_past_the_seam(ast.parse(source)))


def test_the_check_itself_finds_an_import_upwards() -> None:
    """By a plain import, by a from-import, and by a name from the package."""
    for source in ("import penstock.cli", "from penstock.cli import main", "from penstock import cli"):
        ((module, names, _),) = imports(ast.parse(source))
        assert list(layers_imported(module, names)) == ["cli"]
    ((module, names, _),) = imports(ast.parse("from penstock_simulation.runner import run"))
    assert list(layers_imported(module, names)) == ["simulation"]
    assert not [layer for layer, below in ALLOWED.items() if "simulation" in below]


def test_spark_uses_only_public_names_of_the_client() -> None:
    """Names of `penstock` and of the low-level module, and no calls or connections of its own.

    Besides these: bounded calls and the delays between attempts, `unframe`, which makes Arrow of blocks, the default
    address, the text of an error about a package that is not installed, and for types alone the values of direct reads
    and the portal of the blocking client.
    """
    found = {
        (module, name)
        for path in modules()
        if path.relative_to(ROOT).parts[0] == "spark"
        for module, names, _ in imports(ast.parse(path.read_text()), with_types=True)
        if module == "penstock" or module.startswith(("penstock.client", "penstock.runtime", "penstock.wire"))
        for name in names
    }
    public = {(module, name) for module, name in found if module == "penstock"}
    assert {name for _, name in public} <= set(penstock.__all__)
    assert ("penstock", "connect") in public
    assert found - public == {
        ("penstock.client.common.arrow", "unframe"),
        *(
            ("penstock.client.low_level", name)
            for name in ("chunk_layouts_of", "direct_reader", "direct_reads", "parts_of", "run", "segments_of")
        ),
        ("penstock.client.transport.chunk_layouts", "SegmentLayout"),
        ("penstock.client.reading.direct_reads", "DirectReads"),
        ("penstock.runtime.bulk", "all_ended"),
        ("penstock.runtime.extras", "missing_extra"),
        ("penstock.runtime.pacing", "GrowingDelay"),
        ("penstock.runtime.portal", "Portal"),
        ("penstock.runtime.settings", "default_uri"),
    }


# Inside the client and the controller.

#: Package of the client -> the packages of the client that it may import besides itself. The lowest first.
CLIENT: dict[str, set[str]] = {
    "settings": set(),
    "common": {"settings"},
    "controller": {"common", "settings"},
    "transport": {"common", "controller", "settings"},
    "tables": {"common", "controller", "transport"},
    "writing": {"common", "controller", "settings", "transport"},
    "state": {"common", "transport", "writing"},
    "transactions": {"common", "controller", "settings", "transport", "writing"},
    "streams": {"common", "controller", "settings", "transport"},
    "reading": {"common", "settings", "streams", "transport"},
    "groups": {"common", "controller", "reading", "settings", "streams", "transport"},
    "statistics": {"common", "groups", "streams", "transport"},
    "client_core": {"common", "controller", "reading", "settings", "statistics", "transport", "writing"},
    "stream_calls": {"client_core", "controller", "statistics", "streams"},
    "client": {
        "common",
        "controller",
        "groups",
        "reading",
        "settings",
        "state",
        "stream_calls",
        "streams",
        "tables",
        "transactions",
        "transport",
        "writing",
    },
    "sync": {
        "client",
        "common",
        "controller",
        "groups",
        "reading",
        "settings",
        "state",
        "statistics",
        "streams",
        "tables",
        "transactions",
        "transport",
        "writing",
    },
    "connecting": {"client", "settings", "sync"},
    "stream_events": {"client", "controller", "low_level", "reading", "transport"},
    "low_level": {"client", "controller", "reading", "sync", "transport"},
}
#: The same for the controller. Modules directly under it are between the packages.
CONTROLLER: dict[str, set[str]] = {
    "ownership": set(),
    "cluster": set(),
    "metadata": {"ownership"},
    "watermarks": {"metadata", "ownership"},
    "work": {"metadata", "ownership"},
    "transaction_state": {"metadata", "work"},
    "workflows": {"metadata", "transaction_state", "watermarks", "work"},
    "retention": {"metadata", "ownership", "workflows"},
    "scaling": {"metadata", "ownership", "workflows"},
    "transactions": {"metadata", "transaction_state", "work", "workflows"},
    "grpc": {"cluster", "metadata", "retention", "transactions", "workflows"},
}


def package_below(room: str, module: str) -> str:
    """Return the package or module directly below a room that a module is in; empty for modules elsewhere."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["penstock", room] and len(parts) > 2 else ""


def package_graph(room: str) -> dict[str, set[str]]:
    """Return which packages and modules directly below a room each of them imports, for types only, too."""
    graph: dict[str, set[str]] = {}
    for module, imported in import_graph().items():
        package = package_below(room, module)
        if package:
            graph.setdefault(package, set()).update(package_below(room, each) for each in imported)
    return {package: found - {package, ""} for package, found in graph.items()}


def test_packages_of_the_client_import_what_their_table_says() -> None:
    """No more: a new import is a decision. No less: an entry that nothing needs goes."""
    assert package_graph("client") == CLIENT
    assert circle_in(CLIENT) == []


def test_packages_of_the_controller_import_what_their_table_says() -> None:
    """The modules directly under `controller` are not in the table: they are of no package."""
    graph = package_graph("controller")
    packages = {path.parent.name for path in (ROOT / "controller").glob("*/__init__.py")}
    assert {package: graph[package] & packages for package in packages} == CONTROLLER
    assert circle_in(CONTROLLER) == []


# No circles.


def import_graph() -> dict[str, set[str]]:
    """Return which modules of Penstock each imports, for types only, too."""
    files = {module_name(path): path for path in modules_and_simulation()}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        found = set()
        for module, names, _ in imports(ast.parse(path.read_text()), with_types=True):
            # `from a import b` is of module a.b if there is one, else of a.
            found |= {f"{module}.{each}" if f"{module}.{each}" in files else module for each in names or [""]}
        graph[name] = found & files.keys() - {name}
    return graph


def module_name(path: Path) -> str:
    """Return a module's name by its file."""
    parts = Path(below_root(path)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules each of which imports the next, and the last the first; none if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # It names, for each, one that the one before is imported by.
        return list(reversed(error.args[1][1:]))
    return []


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Nor for types: a part that must know its maker has more than one job."""
    assert circle_in(import_graph()) == []


def test_the_check_itself_finds_a_circle() -> None:
    """Also a long one, and one for types only."""
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert sorted(circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == ["a", "b", "c"]
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.client import client"
    assert list(imports(ast.parse(source))) == [("typing", ["TYPE_CHECKING"], 1)]
    assert ("penstock.client", ["client"], 3) in imports(ast.parse(source), with_types=True)
