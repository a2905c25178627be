"""A griffe extension for the site: of ``a, b: what both are`` in a docstring's sections, each name gets its own entry.

Named in ``mkdocs.yml``. To griffe, ``a,`` would be the name, and ``b`` its type.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"(Args|Attributes|Raises):")
_ENTRY = re.compile(r"    (\w+(?:, \w+)+):(.*)")


def with_one_name_each(text: str) -> str:
    """Return a docstring, its margin taken off, with one name per entry."""
    found: list[str] = []
    lines = text.splitlines()
    is_section = False
    while lines:
        line = lines.pop(0)
        if line and not line.startswith(" "):
            is_section = _SECTION.fullmatch(line) is not None
        entry = _ENTRY.fullmatch(line) if is_section else None
        if entry is None:
            found.append(line)
            continue
        more: list[str] = []
        while lines and lines[0].startswith("     "):
            more.append(lines.pop(0))
        for name in entry[1].split(", "):
            found += [f"    {name}:{entry[2]}", *more]
    return "\n".join(found)


class SeveralNames(griffe.Extension):
    """Takes the docstrings apart as they are loaded, before their sections are read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_one_name_each(obj.docstring.value)
