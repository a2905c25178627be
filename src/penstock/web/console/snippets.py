"""Programs and commands that do what a page shows: Python, Spark and curl, with all names quoted."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import msgspec

from penstock.model.stream_cuts import EARLIEST
from penstock.web.filters import Condition, EventFilter, Literal


@dataclass(frozen=True, slots=True)
class Snippet:
    """A text to copy, and the language that it is in."""

    title: str
    text: str


def command(*words: str) -> str:
    """Return a command line with each word quoted for a shell."""
    return shlex.join(words)


def rest_path(*parts: str, **query: object) -> str:
    """Return a path of the REST interface: parts are encoded one by one."""
    path = "/".join(["/v1", *(quote(part, safe="") for part in parts)])
    shown = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(shown)}" if shown else path


def curl(origin: str, method: str, path: str, body: object = None, *, user: str = "") -> str:
    """Return a curl command for a call of the REST interface."""
    words = ["curl"]
    if user:
        words += ["--user", user]
    if method != "GET":
        words += ["-X", method]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", msgspec.json.encode(body).decode()]
    return shlex.join([*words, origin + path])


def event_snippets(
    stream: str, at: str, wanted: EventFilter, where: str, *, controller: str, origin: str, user: str
) -> list[Snippet]:
    """Return programs that read the events of a stream from a position on, as far as a filter accepts them."""
    return [
        Snippet("Python", _python(stream, at, wanted, controller)),
        Snippet("Spark", _spark(stream, at, wanted, controller)),
        Snippet("curl", _curl(stream, at, wanted, where, origin, user)),
    ]


def _python(stream: str, at: str, wanted: EventFilter, controller: str) -> str:
    needs_json = bool(wanted.alternatives)
    lines = ["import json", "", "import penstock", ""] if needs_json else ["import penstock", ""]
    if needs_json:
        lines += [
            "MISSING = object()",
            "",
            "",
            "def field(event, *names):",
            "    try:",
            "        value = json.loads(event)",
            "        for name in names:",
            "            value = value[int(name) if isinstance(value, list) else name]",
            "    except (ValueError, LookupError, TypeError):",
            "        return MISSING",
            "    return value",
            "",
            "",
            "def is_text_in(text, value):",
            "    return value is not MISSING and text in (value if isinstance(value, str) else json.dumps(value))",
            "",
            "",
            "def is_ordered(value, literal):",
            "    kinds = (str,) if isinstance(literal, str) else (int, float)",
            "    return isinstance(value, kinds) and not isinstance(value, bool)",
            "",
            "",
        ]
    condition = _python_filter(wanted)
    start = "" if at in EARLIEST else f", start={at!r}"
    lines += [
        f"with penstock.connect({controller!r}) as client, client.batch({stream!r}{start}) as batch:",
        "    for part in batch.ranges:",
        "        for event in batch.events(part):",
    ]
    if condition:
        lines += [f"            if {condition}:", "                print(event.segment_id, event.offset, event.data)"]
    else:
        lines += ["            print(event.segment_id, event.offset, event.data)"]
    return "\n".join(lines)


def _python_filter(wanted: EventFilter) -> str:
    parts = [f"{wanted.contains!r} in event.data"] if wanted.contains else []
    if wanted.alternatives:
        each = [" and ".join(map(_python_condition, conditions)) for conditions in wanted.alternatives]
        joined = " or ".join(each)
        parts.append(f"({joined})" if len(each) > 1 and parts else joined)
    return " and ".join(parts)


def _python_condition(condition: Condition) -> str:
    value = f"field(event.data, {', '.join(map(repr, condition.path))})"
    literal = condition.literal
    if condition.operator == "~":
        return f"is_text_in({str(literal)!r}, {value})"
    if condition.operator == "=":
        return f"{value} is {literal!r}" if isinstance(literal, bool) or literal is None else f"{value} == {literal!r}"
    if condition.operator == "!=":
        differs = f"{value} is not {literal!r}" if literal is None else f"{value} != {literal!r}"
        return f"{value} is not MISSING and {differs}"
    return f"is_ordered({value}, {literal!r}) and {value} {condition.operator} {literal!r}"


def _spark(stream: str, at: str, wanted: EventFilter, controller: str) -> str:
    conditions = _spark_filter(wanted)
    lines = [
        "events = (",
        '    spark.read.format("penstock")',
        f'    .option("uri", {controller!r})',
    ]
    if at not in EARLIEST:
        lines.append(f'    .option("start", {at!r})')
    lines.append(f"    .load({stream!r})")
    lines.append(")")
    if conditions:
        lines.append(f"events = events.where({conditions!r})")
    lines.append('events.selectExpr("segment_id", "offset", "cast(event as string)").show(100, False)')
    return "\n".join(lines)


def _spark_filter(wanted: EventFilter) -> str:
    parts = []
    if wanted.contains:
        parts.append(f"contains(event, X'{wanted.contains.hex()}')")
    if wanted.alternatives:
        each = [" AND ".join(map(_spark_condition, conditions)) for conditions in wanted.alternatives]
        parts.append(f"({' OR '.join(each)})" if len(each) > 1 else each[0])
    return " AND ".join(parts)


def _spark_condition(condition: Condition) -> str:
    path = "$" + "".join(f"[{name}]" if name.isdecimal() else f"['{_json_path_name(name)}']" for name in condition.path)
    value = f"get_json_object(cast(event AS string), {_sql(path)})"
    literal = condition.literal
    if condition.operator == "~":
        return f"contains({value}, {_sql(str(literal))})"
    if literal is None:
        return f"{value} IS {'NOT ' if condition.operator == '!=' else ''}NULL"
    if isinstance(literal, int | float) and not isinstance(literal, bool):
        return f"cast({value} AS double) {condition.operator} {literal!r}"
    return f"{value} {condition.operator} {_sql(json.dumps(literal) if isinstance(literal, bool) else literal)}"


def _json_path_name(name: str) -> str:
    return name.replace("'", "")


def _sql(text: Literal) -> str:
    """Return a literal of Spark's SQL."""
    return "'" + re.sub(r"(['\\])", r"\\\1", str(text)) + "'"


def _curl(stream: str, at: str, wanted: EventFilter, where: str, origin: str, user: str) -> str:
    scope, _, name = stream.partition("/")
    contains = wanted.contains.decode("utf-8", "surrogatepass")
    path = rest_path("scopes", scope, "streams", name, "events", at=at, contains=contains, limit=100)
    text = curl(origin, "GET", path, user=user)
    return f"{text}\n# the REST interface takes no conditions on fields: {where}" if wanted.alternatives else text


def read_command(stream: str, at: str, count: int, controller: str) -> str:
    """Return the ``penstock read`` of a page."""
    return command("penstock", "read", stream, "--from", at, "-n", str(count), "--uri", controller)
