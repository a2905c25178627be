"""Generate the blocking client, `penstock.client.sync`, from the async one. Run it after changing either::

    python -m penstock_tools.generate_sync

The async classes are the single source of signatures and docstrings. The generated code is committed, so that type
checkers, editors and tracebacks see ordinary code; a test compares it with a new generation. For the method and its
reasons see ``docs/sync-client.md``.
"""

from __future__ import annotations

import ast
import builtins
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import indent

import penstock.client
from penstock_tools.sync_classes import CLASSES, Blocking

#: The directory of the async modules; the generated ones are in `sync` below it.
CLIENT: Path = Path(penstock.client.__file__).parent

_PACKAGE = "penstock.client"
_LINE_LENGTH_MAX = 120
#: Members of every `Handle`.
_LIFE = {"abandon", "close", "is_closed", "is_open"}
#: Public members for other packages of Penstock: the blocking classes do not have them.
_INTERNAL = {"note_exception", "open_life", "parts"}
#: Phrases of async docstrings, and their replacements for the blocking client.
_WORDS = {
    "an async context manager": "a context manager",
    "By `await` or `async with`.": "Use it as a context manager.",
    "It belongs to one event loop and one process.": "It owns a thread until it is closed or dropped, and belongs to "
    "one process.\n\n    At the end of the program it flushes what its writers have taken, for `exit_timeout_s`, and "
    "says on the log what\n    it could not.",
    "at the next turn of the event loop": "at once",
    "called in the client's event loop": "called in the client's own thread",
}
#: Words in a docstring that apply to async code only.
_ASYNC_WORDS = ("await", "async", "event loop", "coroutine")

_Method = ast.FunctionDef | ast.AsyncFunctionDef


class GeneratorError(Exception):
    """An async class whose blocking form cannot be derived: add a body in `sync_classes`."""


class Source:
    """An async module, and the origins of its names."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.tree: ast.Module = ast.parse(text)
        self._origins: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self._origins.update({alias.name: node.module for alias in node.names})
        for statement in self.tree.body:
            for defined in _defined_by(statement):
                self._origins[defined] = f"{_PACKAGE}.{name}"

    def origin_of(self, name: str) -> str:
        """Return the module that a name used here is imported from."""
        try:
            return self._origins[name]
        except KeyError:
            raise GeneratorError(f"{self.name}: where {name!r} comes from cannot be told") from None

    def class_(self, name: str) -> ast.ClassDef:
        """Return a class of this module."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise GeneratorError(f"{self.name}: there is no class {name}")

    def segment(self, node: ast.AST) -> str:
        """Return the source text of a node."""
        return ast.get_source_segment(self.text, node) or ""


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id


class _Writer:
    """Writes one blocking class."""

    def __init__(self, source: Source, spec: Blocking, twins: Mapping[str, str], by_hand: frozenset[str]) -> None:
        self._source = source
        self._spec = spec
        self._twins = twins
        self._by_hand = by_hand
        self._class = source.class_(spec.name)
        #: Imported names, each with its module; an imported module itself has an empty module.
        self._imports: dict[str, str] = {spec.base[1]: f"{_PACKAGE}.sync.{spec.base[0]}"}
        self._parameter = self._type_parameter()
        self._part = f"aio.{spec.name}{self._parameter}"

    def module(self) -> str:
        """Return the generated module."""
        members = list(self._members())
        text = "\n\n".join(members)
        body = f"{self._head()}\n\n{text}\n" if members else f"{self._head()}\n"
        header = (
            f'"""The blocking `{self._spec.name}`. Generated from `{_PACKAGE}.{self._source.name}`: do not edit.\n\n'
            f'`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.\n"""\n\n'
        )
        if "aio." in body:
            package, _, name = f"{_PACKAGE}.{self._source.name}".rpartition(".")
            self._imports[f"{name} as aio"] = package
        return f"{header}from __future__ import annotations\n\n{self._import_lines()}\n\n\n{body}"

    # -- imports ------------------------------------------------------------------------------------------------

    def _use(self, *nodes: ast.AST | None) -> None:
        """Import the names in annotations and defaults."""
        for node in nodes:
            for inner in ast.walk(node) if node is not None else ():
                if isinstance(inner, ast.Name) and not hasattr(builtins, inner.id) and inner.id != self._spec.name:
                    twin = self._twins.get(inner.id)
                    self._imports[inner.id] = twin or self._source.origin_of(inner.id)

    def _import_lines(self) -> str:
        by_module: dict[str, set[str]] = {}
        for name, module in {**self._imports, **self._spec.imports}.items():
            by_module.setdefault(module or name, set()).update({name} if module else ())
        standard = {module for module in by_module if module.partition(".")[0] in sys.stdlib_module_names}
        own = [_import_line(module, by_module[module]) for module in sorted(by_module.keys() - standard)]
        plain = [f"import {module}" for module in sorted(standard) if not by_module[module]]
        named = [_import_line(module, by_module[module]) for module in sorted(standard) if by_module[module]]
        return "\n".join([*plain, *named, *([""] if standard else []), *own])

    # -- the class ----------------------------------------------------------------------------------------------

    def _type_parameter(self) -> str:
        for base in self._class.bases:
            if isinstance(base, ast.Subscript) and isinstance(base.value, ast.Name) and base.value.id == "Generic":
                self._use(base.slice)
                return f"[{self._source.segment(base.slice)}]"
        return ""

    def _head(self) -> str:
        name, base = self._spec.name, self._spec.base[1]
        bases = f"{base}[{self._part}]" if base in ("Handle", "PlainHandle") else base + self._parameter
        if self._parameter:
            self._imports["Generic"] = "typing"
            bases += f", Generic{self._parameter}"
        lines = [f"class {name}({bases}):", indent(self._docstring(self._class), "    ")]
        if self._spec.init:
            self._imports["Portal"] = "penstock.runtime.portal"
            for node in ast.walk(ast.parse(self._spec.init)):
                if isinstance(node, ast.Name) and node.id in self._twins:
                    self._imports[node.id] = self._twins[node.id]
            body = indent("super().__init__(client, portal, part)\n" + self._spec.init.rstrip(), " " * 8)
            lines += ["", f"    def __init__(self, client: object, portal: Portal, part: {self._part}) -> None:", body]
        return "\n".join(lines)

    def _members(self) -> Iterator[str]:
        for node in self._class.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and self._wants(node.target.id):
                yield self._attribute(node, node.target.id)
            elif isinstance(node, _Method) and self._wants(node.name):
                decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
                if decorators <= {"property", "overload"}:
                    yield indent(self._method(node, decorators), "    ")
                elif decorators != {"classmethod"}:
                    raise GeneratorError(f"{self._spec.name}.{node.name} is decorated by {', '.join(decorators)}")
            elif isinstance(node, _Method) and node.name == "__aiter__":
                yield indent(self._iteration(), "    ")

    def _wants(self, name: str) -> bool:
        if name in self._spec.bodies:
            return True
        return not (name.startswith("_") or name in self._by_hand or name in _LIFE | _INTERNAL)

    def _attribute(self, node: ast.AnnAssign, name: str) -> str:
        """Return the property of a class-level declaration: ``name: Final[str]`` is read-only, others are not."""
        annotation = node.annotation
        is_final = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Final"
        if isinstance(annotation, ast.Subscript) and is_final:
            annotation = annotation.slice
        self._use(annotation)
        text = ast.unparse(annotation)
        lines = ["@property", f"def {name}(self) -> {text}:", indent(self._comment_before(node), "    ")]
        lines += [f"    return self._part.{name}"]
        if not is_final:
            lines += ["", f"@{name}.setter", f"def {name}(self, value: {text}) -> None:"]
            lines += [f"    self._part.{name} = value"]
        return indent("\n".join(lines), "    ")

    def _comment_before(self, node: ast.stmt) -> str:
        comments: list[str] = []
        for line in reversed(self._source.text.splitlines()[: node.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            comments.insert(0, line.strip().removeprefix("#:").strip())
        if not comments:
            raise GeneratorError(f"{self._spec.name}: line {node.lineno} declares what no '#:' comment explains")
        lines = textwrap.wrap(" ".join(comments), _LINE_LENGTH_MAX - 11)
        one_line = f'"""{lines[0]}"""'
        if len(lines) == 1 and len(one_line) + 8 <= _LINE_LENGTH_MAX:
            return one_line
        return "\n".join([f'"""{lines[0]}', *lines[1:], '"""'])

    def _iteration(self) -> str:
        following = next(node for node in self._class.body if isinstance(node, _Method) and node.name == "__anext__")
        self._use(following.returns)
        self._imports["Iterator"] = "collections.abc"
        body = self._spec.bodies.get("__iter__", "return self._portal.iterate(self._part)\n")
        return f"def __iter__(self) -> Iterator[{ast.unparse(_known(following.returns))}]:\n" + indent(
            body.rstrip(), "    "
        )

    # -- methods ------------------------------------------------------------------------------------------------

    def _method(self, node: _Method, decorators: set[str]) -> str:
        head = [f"@{decorator}" for decorator in sorted(decorators)]
        returned = _known(node.returns)
        is_iterated = isinstance(returned, ast.Subscript) and ast.unparse(returned.value) == "AsyncIterator"
        parts = {part.id: part for part in ast.walk(returned) if isinstance(part, ast.Name) and part.id in self._twins}
        if isinstance(returned, ast.Subscript) and is_iterated:
            self._imports["Iterator"] = "collections.abc"
            self._use(returned.slice)
            result = f"Iterator[{ast.unparse(returned.slice)}]"
        else:
            if isinstance(returned, ast.Subscript) and ast.unparse(returned.value) == "Opening":
                returned = returned.slice
            self._use(returned)
            result = ast.unparse(returned)
        # In addition to the indentation, an overload ends with " ...".
        signature = self._signature(node, result, 8 if "overload" in decorators else 4)
        if "overload" in decorators:
            self._imports["overload"] = "typing"
            return "\n".join([*head, signature + " ..."])
        body = self._spec.bodies.get(node.name)
        if body is None and is_iterated:
            body = f"return self._portal.iterate({self._call(node)})"
        elif body is None and "property" in decorators:
            body = f"return self._part.{node.name}"
        elif body is None and parts:
            body = self._opening(node, returned)
        elif body is None:
            body = self._plain_call(node, result)
        return "\n".join([*head, signature, indent(self._docstring(node), "    "), indent(body.rstrip(), "    ")])

    def _plain_call(self, node: _Method, result: str) -> str:
        made = self._call(node)
        how = f"call({made})" if isinstance(node, ast.AsyncFunctionDef) else f"call_soon(lambda: {made})"
        return f"{'' if result == 'None' else 'return '}self._portal.{how}"

    def _opening(self, node: _Method, returned: ast.expr) -> str:
        """Return the body of a method that opens an object: made and opened in the loop, then wrapped in a handle."""
        kinds = list(_union(returned))
        names = [ast.unparse(kind.value if isinstance(kind, ast.Subscript) else kind) for kind in kinds]
        if isinstance(node, ast.AsyncFunctionDef) or not set(names) <= self._twins.keys():
            raise GeneratorError(
                f"{self._spec.name}.{node.name} returns {ast.unparse(returned)}: neither the opening of a class with a "
                "blocking twin, nor free of them"
            )
        lines = [f"opened = self._opened(lambda: {self._call(node)})"]
        if len(names) > 1:
            # Type checkers cannot determine which class of a union is opened.
            for name in names:
                self._imports[f"{name} as Async{name}"] = self._source.origin_of(name)
            union = " | ".join(f"Async{ast.unparse(kind)}" for kind in kinds)
            lines = [f"async def opening() -> {union}:", f"    return await {self._call(node)}", ""]
            lines += ["opened = self._portal.call(opening())"]
        for name in names[1:]:
            lines += [f"if isinstance(opened, Async{name}):", f"    return {name}(self, self._portal, opened)"]
        return "\n".join([*lines, f"return {names[0]}(self, self._portal, opened)"])

    def _signature(self, node: _Method, result: str, beside: int) -> str:
        parameters = list(self._parameters(node.args))
        line = f"def {node.name}({', '.join(['self', *parameters])}) -> {result}:"
        if len(line) + beside <= _LINE_LENGTH_MAX:
            return line
        short = indent(", ".join(["self", *parameters]), "    ")
        if len(short) + 4 <= _LINE_LENGTH_MAX:
            return f"def {node.name}(\n{short}\n) -> {result}:"
        return f"def {node.name}(\n    self,\n" + "".join(f"    {each},\n" for each in parameters) + f") -> {result}:"

    def _parameters(self, arguments: ast.arguments) -> Iterator[str]:
        positional = [*arguments.posonlyargs, *arguments.args][1:]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        for argument, default in zip(positional, defaults, strict=True):
            yield self._parameter_text(argument, default)
        if arguments.vararg is not None:
            yield "*" + self._parameter_text(arguments.vararg, None)
        elif arguments.kwonlyargs:
            yield "*"
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            yield self._parameter_text(argument, default)

    def _parameter_text(self, argument: ast.arg, default: ast.expr | None) -> str:
        self._use(argument.annotation, default)
        end = "" if default is None else f" = {ast.unparse(default)}"
        return f"{argument.arg}: {ast.unparse(_known(argument.annotation))}{end}"

    def _call(self, node: _Method) -> str:
        arguments = node.args
        given = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args][1:]]
        given += [f"*{arguments.vararg.arg}"] if arguments.vararg is not None else []
        given += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
        line = f"self._part.{node.name}({', '.join(given)})"
        # Leaves space for the surrounding code and the indentation.
        if len(line) + 45 <= _LINE_LENGTH_MAX:
            return line
        if sum(map(len, given)) + 2 * len(given) + 12 <= _LINE_LENGTH_MAX:
            return f"self._part.{node.name}(\n    {', '.join(given)}\n)"
        return f"self._part.{node.name}(\n" + "".join(f"    {each},\n" for each in given) + ")"

    def _docstring(self, node: _Method | ast.ClassDef) -> str:
        first = node.body[0]
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            raise GeneratorError(f"{self._spec.name}: {node.name} has no docstring")
        text = self._source.segment(first.value)
        for word, other in _WORDS.items():
            text = text.replace(word, other)
        for line in text.splitlines():
            if any(word in line for word in _ASYNC_WORDS):
                raise GeneratorError(f"{self._spec.name}: {node.name}, docstring, see _WORDS: {line.strip()}")
        # At the node's indentation in its module; the caller indents it again.
        margin = " " * first.value.col_offset
        return text.replace("\n" + margin, "\n")


def _known(node: ast.expr | None) -> ast.expr:
    if node is None:
        raise GeneratorError("an annotation is missing")
    return node


def _union(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _union(node.left)
        yield from _union(node.right)
    else:
        yield node


def _import_line(module: str, names: Iterable[str]) -> str:
    # In ruff's order: constants, classes, the rest; renamed imports are on separate lines.
    renamed = sorted(name for name in names if " as " in name)
    plain = sorted((name for name in names if " as " not in name), key=_import_order)
    lines = [f"from {module} import {', '.join(plain)}"] if plain else []
    lines += [f"from {module} import {name}" for name in renamed]
    return "\n".join(lines)


def _import_order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def public_names(tree: ast.Module, name: str) -> frozenset[str]:
    """Return the public members of a hand-written class; none if there is no such class."""
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return frozenset(
        inner.name for node in found for inner in node.body if isinstance(inner, _Method) and inner.name[0] != "_"
    )


def generate_class(
    spec: Blocking, source: Source, twins: Mapping[str, str], by_hand: frozenset[str] = frozenset()
) -> str:
    """Return the module of one blocking class.

    Args:
        twins: the module of each blocking class.
        by_hand: members that the base has.
    """
    return _Writer(source, spec, twins, by_hand).module()


def generate() -> dict[str, str]:
    """Return the generated modules, by file name below ``sync``."""
    twins = {spec.name: f"{_PACKAGE}.sync.{spec.twin}" for spec in CLASSES}
    twins |= {"Ack": f"{_PACKAGE}.sync.ack"}
    twins |= dict.fromkeys(("ByteReader", "ByteWriter"), f"{_PACKAGE}.sync.byte_stream")
    made = {}
    for spec in CLASSES:
        source = Source(spec.module, (CLIENT / f"{spec.module.replace('.', '/')}.py").read_text())
        by_hand = frozenset[str]()
        if spec.base[1] not in twins:
            base = ast.parse((CLIENT / "sync" / f"{spec.base[0]}.py").read_text())
            by_hand = public_names(base, spec.base[1])
        made[f"{spec.twin}.py"] = generate_class(spec, source, twins, by_hand)
    return made


def main() -> None:
    """Write the generated modules."""
    for name, text in generate().items():
        (CLIENT / "sync" / name).write_text(text)


if __name__ == "__main__":
    main()
