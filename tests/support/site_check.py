"""Say what of the built site a reader would miss, and fail if there is any: part of ``./run docs``.

That is what a page loads from elsewhere, since the site is read without a network, and links within it that lead to
nothing. The build itself, which is strict, knows only of those links that are written in the documents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser loads by itself, by the attribute that says from where.
_LOADED = {
    ("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src"), ("object", "data"),
}  # fmt: skip


class Page(HTMLParser):
    """What one page loads, leads to, and has places for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag refers to."""
        for name, value in attrs:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            elif (tag, name) in _LOADED:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def complaints(site: Path) -> Iterator[str]:
    """Yield a line for each thing that is wrong with the site."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: there are no pages"
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loaded:
            parts = urlsplit(address)
            if parts.netloc or parts.scheme not in ("", "data"):
                yield f"{where}: loads {address} from elsewhere"
            elif not parts.scheme and not _target(path, site, parts.path).exists():
                yield f"{where}: loads {address}, which is not there"
        for address in page.links:
            parts = urlsplit(address)
            if parts.netloc or parts.scheme:
                continue
            target = _target(path, site, parts.path)
            if not target.exists():
                yield f"{where}: leads to {address}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: leads to {address}, and that page has no such place"


def _target(page: Path, site: Path, path: str) -> Path:
    if not path:
        return page
    target = (site / unquote(path.lstrip("/")) if path.startswith("/") else page.parent / unquote(path)).resolve()
    return target / "index.html" if target.is_dir() else target


def main() -> int:
    """Check the site in the directory that is given."""
    found = list(complaints(Path(sys.argv[1]).resolve()))
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
