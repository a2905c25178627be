"""`EventFilter`: which events a page shows: those that contain a text, and those whose JSON matches conditions.

A filter is data, never code. Its grammar::

    filter    = and_terms { "or" and_terms }
    and_terms = term { "and" term }
    term      = path operator literal
    path      = name { "." name }          names of fields, indices of lists; a name may be in double quotes
    operator  = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"      "~": the value, as text, contains the literal
    literal   = number | "true" | "false" | "null" | word | text in single or double quotes

``and`` binds tighter than ``or``. A term about a field that the event does not have is false, also with ``!=``. There
are no regular expressions. Numbers are ordered with numbers only, and texts with texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from penstock.web.errors import BadRequestError

#: Bytes of a filter, and its conditions.
LENGTH_MAX = 1024
TERMS_MAX = 32
#: Longer events are not parsed as JSON.
JSON_BYTES_MAX = 4 * 1024 * 1024

_TOKEN = re.compile(
    r"""\s*(?:(?P<operator><=|>=|!=|[=<>~])
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<word>(?:[^\s"'=<>~!]|"(?:[^"\\]|\\.)*")+))""",
    re.VERBOSE,
)
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)')
_ESCAPE = re.compile(r"\\(.)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

Literal = str | int | float | bool | None


class _Missing:
    """The value of a field that an event does not have."""


_MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison. `path`: names of fields from the outside in."""

    path: tuple[str, ...]
    operator: str
    literal: Literal

    def matches(self, document: object) -> bool:
        """Return whether a parsed event fulfils it."""
        value = value_at(document, self.path)
        if isinstance(value, _Missing):
            return False
        if self.operator == "~":
            return str(self.literal) in shown_value(value)
        if self.operator in ("=", "!="):
            return _is_equal(value, self.literal) is (self.operator == "=")
        return _is_ordered(value, self.operator, self.literal)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """See the module.

    Attributes:
        contains: bytes that an event must have.
        alternatives: an event must fulfil all conditions of one of them; none: every event does.
    """

    contains: bytes
    alternatives: tuple[tuple[Condition, ...], ...]

    def matches(self, data: bytes) -> bool:
        """Return whether an event is wanted. An event that is not JSON fulfils no condition."""
        if self.contains not in data:
            return False
        if not self.alternatives:
            return True
        document = parsed(data)
        if isinstance(document, _Missing):
            return False
        return any(all(each.matches(document) for each in conditions) for conditions in self.alternatives)


def event_filter(contains: str, where: str) -> EventFilter:
    """Return the filter of two inputs; both may be empty. Raises `BadRequestError` with the place of the mistake."""
    for name, text in (("contains", contains), ("where", where)):
        if len(text.encode("utf-8", "surrogatepass")) > LENGTH_MAX:
            raise BadRequestError(f"{name} is longer than {LENGTH_MAX} bytes")
    return EventFilter(contains.encode("utf-8", "surrogatepass"), _alternatives(where) if where.strip() else ())


def _alternatives(where: str) -> tuple[tuple[Condition, ...], ...]:
    tokens = list(_tokens(where))
    found: list[list[Condition]] = [[]]
    at, count = 0, 0
    while True:
        found[-1].append(_condition(tokens[at : at + 3], where))
        count += 1
        if count > TERMS_MAX:
            raise BadRequestError(f"where has more than {TERMS_MAX} conditions")
        at += 3
        if at == len(tokens):
            return tuple(tuple(conditions) for conditions in found)
        joined = tokens[at][1].lower()
        if joined not in ("and", "or"):
            raise BadRequestError(f"where: expected and, or, or the end before {tokens[at][1]!r}")
        if joined == "or":
            found.append([])
        at += 1


def _tokens(where: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(where.rstrip())
    while at < end:
        match = _TOKEN.match(where, at)
        if match is None:
            raise BadRequestError(f"where is not understood from {where[at : at + 20]!r} on")
        kind = match.lastgroup
        assert kind is not None
        yield kind, match[kind]
        at = match.end()


def _condition(tokens: Sequence[tuple[str, str]], where: str) -> Condition:
    if len(tokens) < 3:
        raise BadRequestError(f"where ends too early: write it as path = value, not {where.strip()!r}")
    (path_kind, path), (operator_kind, operator), (literal_kind, literal) = tokens
    if path_kind == "operator" or operator_kind != "operator" or literal_kind == "operator":
        raise BadRequestError(f"where: write a condition as path = value, not {path} {operator} {literal}")
    return Condition(path_of(path), operator, _literal(literal, is_text=literal_kind == "text"))


def path_of(text: str) -> tuple[str, ...]:
    """Return the names of a path. Raises `BadRequestError`."""
    if text.startswith("'"):
        raise BadRequestError(f"the path {text} is in single quotes: names are quoted with double quotes")
    names: list[str] = []
    at = 0
    while True:
        match = _NAME.match(text, at)
        if match is None:
            raise BadRequestError(f"the path {text!r} has an empty name")
        names.append(match[2] if match[1] is None else _ESCAPE.sub(r"\1", match[1]))
        at = match.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            raise BadRequestError(f"the path {text!r} is not understood: names are separated by dots")
        at += 1


def _literal(text: str, *, is_text: bool) -> Literal:
    if is_text:
        return _ESCAPE.sub(r"\1", text[1:-1])
    words: dict[str, Literal] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    if _NUMBER.fullmatch(text):
        return float(text) if any(sign in text for sign in ".eE") else int(text)
    return text


def parsed(data: bytes) -> object:
    """Return an event that is JSON as a value; one that is not, or too long, as a value that has no fields."""
    if len(data) > JSON_BYTES_MAX:
        return _MISSING
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _MISSING


def is_missing(value: object) -> bool:
    """Return whether `parsed` or `value_at` found nothing."""
    return isinstance(value, _Missing)


def value_at(document: object, path: Sequence[str]) -> object:
    """Return the value of a field; see `is_missing`."""
    value = document
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def shown_value(value: object) -> str:
    """Return a value of JSON as text: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(value: object, literal: Literal) -> bool:
    if _is_number(value) or _is_number(literal):
        return _is_number(value) and _is_number(literal) and value == literal
    return type(value) is type(literal) and value == literal


def _is_ordered(value: object, operator: str, literal: Literal) -> bool:
    if not (_is_number(value) and _is_number(literal)) and not (isinstance(value, str) and isinstance(literal, str)):
        return False
    assert isinstance(value, str | int | float)
    assert isinstance(literal, str | int | float)
    is_below, is_above = bool(value < literal), bool(value > literal)  # type: ignore[operator]  # of one kind, see above
    return {"<": is_below, ">": is_above, "<=": not is_above, ">=": not is_below}[operator]
