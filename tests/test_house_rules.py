"""Rules of structure for the sources of the package: sizes, private names, modules that nothing uses, names used twice.

Each table holds what is over its rule today. It may only become shorter: a new entry, or a larger number, is a failure,
and so is an entry that is no longer over the rule.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent
REPOSITORY = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef

#: Lines of a function, with its docstring.
LENGTH_MAX = 60
LONG: dict[str, int] = {
    "cli/export.py export": 90,
    "cli/quickstart.py quickstart": 75,
    "cli/standalone.py standalone": 108,
    "client/controller/controller.py ControllerClient._attempt": 71,
    "controller/service.py ControllerService.__init__": 97,
    "runtime/object_changes.py change_object": 63,
    "security/certificates.py make_certificates": 65,
    "segmentstore/container/storage/container_storage.py ContainerStorage.__init__": 68,
    "wire/append_runs.py scan_appends": 84,
}

#: Ways through a function: one, and one for each branch, loop, handler, condition, and further operand of `and`, `or`.
COMPLEXITY_MAX = 20
COMPLEX: dict[str, int] = {
    "client/controller/controller.py ControllerClient._attempt": 26,
    "client/groups/membership.py GroupMembership._follow": 25,
    "runtime/hdfs_errors.py hdfs_error": 36,
    "runtime/object_changes.py change_object": 26,
    "runtime/obstore_objects.py storage_error": 34,
    "segmentstore/container/log/salvage_state.py SalvagedSegments.apply": 24,
    "segmentstore/container/storage/storage_writer.py StorageWriter._scan_in_steps": 24,
    "segmentstore/container/tables/reads.py page_of": 23,
    "segmentstore/tier1/damaged_log.py DamagedLog._read_file": 23,
    "server/settings.py StandaloneSettings.__post_init__": 26,
    "spark/decode_options.py _spark_type": 27,
    "wire/append_runs.py scan_appends": 33,
}

#: Uses of private names of other modules, by module. None of Penstock's own names; of a library's, in one module that
#: gives the reason.
PRIVATE: dict[str, int] = {
    "runtime/kazoo_client.py": 5,
}

#: Modules of parts that are not assembled into a server yet.
NOT_YET_USED = {
    "security/server_security.py",
}

#: Public classes of one name in several modules of one package, besides the blocking twins of the client's classes.
NAMED_TWICE: set[tuple[str, str]] = {
    ("segmentstore", "Append"),
}

#: Modules and patterns in pyproject.toml of tests and benches that mypy checks less strictly than `src`: those without
#: annotations, and those with some kinds of errors.
LESS_TYPED_MAX = {"disallow_untyped_defs": 2, "warn_unreachable": 47}


@cache
def parsed(text: str) -> ast.Module:
    """Parse a module once for all rules."""
    return ast.parse(text)


@cache
def modules() -> dict[str, str]:
    """Return the text of every module that is not generated from .proto files, by its path below the package."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }


def functions(text: str) -> Iterator[tuple[str, Function]]:
    """Yield each function with its name, for a method after that of its class."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, Function | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if isinstance(child, Function):
                    yield name, child
            yield from below(child, name)

    yield from below(parsed(text), "")


def length(function: Function) -> int:
    """Return the lines of a function."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def complexity(function: Function) -> int:
    """Return the ways through a function, without those of functions inside it."""
    found, waiting = 1, list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(
            node,
            ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.IfExp | ast.comprehension
            | ast.match_case | ast.Assert,
        ):  # fmt: skip
            found += 1
        waiting += ast.iter_child_nodes(node)
    return found


def over(limit: int, sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the sizes over a limit; the largest of those with one name."""
    found: dict[str, int] = {}
    for name, size in sizes:
        if size > limit:
            found[name] = max(size, found.get(name, 0))
    return found


def grown(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return what is over a rule and not in its table, or larger than there, and entries that are not over the rule."""
    return [
        f"{name}: {found.get(name, 0)}, {allowed.get(name, 0)} in the table"
        for name in sorted(found.keys() | allowed.keys())
        if found.get(name, 0) > allowed.get(name, 0) or name not in found
    ]


def long_functions(texts: Mapping[str, str]) -> dict[str, int]:
    return over(
        LENGTH_MAX,
        ((f"{path} {name}", length(each)) for path, text in texts.items() for name, each in functions(text)),
    )


def complex_functions(texts: Mapping[str, str]) -> dict[str, int]:
    return over(
        COMPLEXITY_MAX,
        ((f"{path} {name}", complexity(each)) for path, text in texts.items() for name, each in functions(text)),
    )


def is_private(name: str) -> bool:
    """Whether a name is for its own module or class. `os._exit` is a documented function, in spite of its name."""
    return name.startswith("_") and not name.startswith("__") and name != "_exit"


def foreign_private_names(text: str) -> list[str]:
    """Return the private names that a module uses and does not define: imported, or attributes of other objects."""
    tree = parsed(text)
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # Of `__slots__`.
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if is_private(alias.name)]
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            found.append(ast.unparse(node))
    return found


def private_uses(texts: Mapping[str, str]) -> dict[str, int]:
    return over(0, ((path, len(foreign_private_names(text))) for path, text in texts.items()))


def unused_modules(texts: Mapping[str, str], others: str = "") -> set[str]:
    """Return the modules whose full name no other module has, as an import or as text. `others` has further uses."""
    named: Counter[str] = Counter()
    by_itself: dict[str, set[str]] = {}
    for path, text in texts.items():
        found = set(re.findall(r"penstock(?:\.\w+)+", text))
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        split = [name.split(".") for name in found]
        prefixes = {".".join(parts[:count]) for parts in split for count in range(2, len(parts) + 1)}
        by_itself[path] = prefixes
        named.update(prefixes)
    named.update(re.findall(r"penstock(?:\.\w+)+", others))
    unused = set()
    for path in texts:
        name = "penstock." + path.removesuffix(".py").replace("/", ".")
        if not path.endswith(("__init__.py", "__main__.py")) and named[name] <= (name in by_itself[path]):
            unused.add(path)
    return unused


def classes_named_twice(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return (package, class) of public classes that several modules of one package define."""
    places: defaultdict[tuple[str, str], int] = defaultdict(int)
    for path, text in texts.items():
        if path.startswith("client/sync/"):
            continue
        for node in parsed(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[path.partition("/")[0], node.name] += 1
    return {place for place, count in places.items() if count > 1}


def test_no_function_becomes_longer() -> None:
    found = grown(long_functions(modules()), LONG)
    assert not found, "\n".join(found)


def test_no_function_becomes_more_complex() -> None:
    found = grown(complex_functions(modules()), COMPLEX)
    assert not found, "\n".join(found)


def test_no_module_uses_more_private_names_of_others() -> None:
    found = grown(private_uses(modules()), PRIVATE)
    assert not found, "\n".join(found)


def test_every_module_is_used() -> None:
    """By another module of the package, as a command of the command line, or as an entry point.

    What only tests use belongs to them or to the simulation, and generators to `penstock_tools`.
    """
    texts = modules()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    commands = [f"penstock.cli.{name}" for name in re.findall(r'"(\w+):\w+"', texts["cli/__init__.py"])]
    assert len(commands) >= 20
    assert unused_modules(texts, f"{project['scripts']} {project['entry-points']} {commands}") <= NOT_YET_USED


def test_a_class_has_a_name_of_its_own_in_its_package() -> None:
    assert classes_named_twice(modules()) == NAMED_TWICE


def test_no_more_tests_are_checked_less_strictly_by_mypy() -> None:
    """Each entry is a module that exists, or one of the trees whose tests are without annotations."""
    overrides = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    for option, most in LESS_TYPED_MAX.items():
        (relaxed,) = (set(each["module"]) for each in overrides if each.get(option) is False)
        assert len(relaxed) == most, f"{len(relaxed)} entries with {option} = false, {most} in the table"
        trees = {module for module in relaxed if module.endswith(".*")}
        assert trees <= {"controller.*", "simulation.*"}
        paths = {module: module.replace(".", "/") + ".py" for module in relaxed - trees}
        assert [
            module
            for module, path in paths.items()
            if not any((REPOSITORY / top / path).exists() for top in ("tests", "bench"))
        ] == []


def test_each_rule_finds_a_violation() -> None:
    """A rule that finds nothing would pass on anything."""
    long = "class A:\n    def f(self):\n" + "        pass\n" * LENGTH_MAX
    assert long_functions({"a.py": long}) == {"a.py A.f": LENGTH_MAX + 1}
    assert grown({"a.py A.f": 62}, {"a.py A.f": 61})
    assert grown({}, {"a.py A.f": 61})
    assert grown({"a.py A.f": 60}, {"a.py A.f": 61}) == []
    branches = "def f(a, b):\n" + "    if a and b: pass\n" * COMPLEXITY_MAX
    assert complex_functions({"a.py": branches}) == {"a.py f": 1 + 2 * COMPLEXITY_MAX}
    private = "from penstock.a import _b\n\ndef f(self, other):\n    self._own = other._own\n    return other._theirs\n"
    assert foreign_private_names(private) == ["_b", "other._theirs"]
    assert private_uses({"a.py": private}) == {"a.py": 2}
    itself = '"""`penstock.a.c`"""\n'
    used = {"a/b.py": "from penstock.a import c\n", "a/c.py": itself, "a/d.py": "import penstock.a.b\n"}
    assert unused_modules(used) == {"a/d.py"}
    assert unused_modules(used, "penstock.a.d:main") == set()
    twice = {"a/b.py": "class C: pass\n", "a/c.py": "class C: pass\n", "d/e.py": "class C: pass\n"}
    assert classes_named_twice(twice) == {("a", "C")}
