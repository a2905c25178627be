"""A hook of mkdocs: pages that the menu in ``mkdocs.yml`` does not name are found among the design notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_LAST = "Design notes"


def named_in(menu: object) -> Iterator[str]:
    """Yield the pages that a menu, or a part of it, names."""
    if isinstance(menu, str):
        yield menu
    else:
        for entry in menu.values() if isinstance(menu, dict) else menu if isinstance(menu, list) else ():
            yield from named_in(entry)


def completed(menu: Sequence[dict[str, list[object]]], pages: Sequence[str]) -> list[dict[str, list[object]]]:
    """Return a menu with all `pages` in it."""
    known = set(named_in(list(menu)))
    missing = [page for page in sorted(pages) if page not in known]
    return [
        {title: [*entries, *missing] if title == _LAST else entries for title, entries in part.items()} for part in menu
    ]


def on_files(files: Any, config: Any, **kwargs: Any) -> Any:
    """Complete the menu once it is known which pages there are."""
    config["nav"] = completed(config["nav"], [page.src_uri for page in files.documentation_pages()])
    return files
