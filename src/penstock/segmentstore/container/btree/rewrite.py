"""`Rewriter`: builds the pages of one update, children before parents, from a `Plan`.

Small pages are joined with a neighbour under the same parent if one is shorter than a quarter of a page and both
together fit into three quarters. Removals therefore cannot leave a large tree with few entries. A root with a single
child is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.segmentstore.container.btree.content import (
    Content,
    LeafMerge,
    content_of,
    join,
    patch_leaf,
    splice_inner,
    split,
)
from penstock.segmentstore.container.btree.footer import Footer, empty_footer
from penstock.segmentstore.container.btree.pages import (
    POINTER_LENGTH,
    Pointer,
    build_page,
    count_of,
    inner_entry,
    key_at,
    lowest_below,
    move_page,
    pointer_at,
    pointer_of,
)
from penstock.segmentstore.container.btree.plan import LoadPages, Node
from penstock.segmentstore.container_settings import IndexSettings

#: Minimum number of entries of an inner page, however long their keys: the tree's height stays logarithmic.
_INNER_ENTRIES_MIN: Final = 2
#: Content is yielded at this many pages, which bounds the steps of a bulk load.
_CLOSE_PAGES: Final = 16


@dataclass(slots=True)
class _Group:
    """The replacement of children [start, end) of a page."""

    start: int
    end: int
    contents: list[Content] = field(default_factory=list)


class Rewriter:
    """Builds the pages to be written from `position` on. For one update.

    Attributes:
        pages: the pages to append, in order, without the footer.
        built: the same pages by offset.
        kept: offsets of the pages that should stay in memory.
        replaced: pages of the previous tree that are not in the new one.
    """

    def __init__(
        self,
        before: Footer,
        keys: Sequence[bytes],
        changes: Mapping[bytes, bytes | None],
        *,
        load: LoadPages,
        is_cached: Callable[[int], bool],
        settings: IndexSettings,
    ) -> None:
        self._before = before
        self._keys = keys
        self._changes = changes
        self._load = load
        self._is_cached = is_cached
        self._is_changed = False
        self._settings = settings
        self._value_length = before.value_length
        self._position = before.end
        self._live_bytes = before.live_bytes
        self._entry_count = before.entry_count
        self._since_pause = 0
        self.pages: list[bytes] = []
        self.built: dict[int, bytes] = {}
        self.kept: list[int] = []
        self.replaced: list[int] = []

    async def rewrite(self, root: Node | None, mark: bytes) -> Footer:
        """Build all pages; return the footer to write after them."""
        contents: Sequence[Content] | None
        if root is None:
            contents = await self._merge(None, b"", 0, len(self._keys))
            height = 1
        else:
            contents = await self._contents(root) if root.page else None
            height = root.level + 1
        if contents is None:
            return self._footer(self._before.root, self._before.height, mark)
        if not contents:
            return empty_footer(self._value_length, offset=self._position, mark=mark)
        while True:
            if len(contents) == 1 and contents[0].level and len(contents[0].lengths) == 1:
                # A root with a single child: the child becomes the root.
                pointer = pointer_of(contents[0].parts[0])
                return await self._lower(pointer, height - 1, mark)
            entries = await self._emit(contents, fills=True)
            if len(entries) == 1:
                return self._footer(pointer_of(entries[0]), height, mark)
            contents = [
                Content(
                    level=height,
                    lower=b"",
                    size=sum(map(len, entries)) + 2 * len(entries),
                    parts=entries,
                    lengths=list(map(len, entries)),
                )
            ]
            height += 1

    async def _lower(self, root: Pointer, height: int, mark: bytes) -> Footer:
        while height > 1:
            page = self.built.get(root.offset)
            if page is None:
                (page,) = await self._load([root], height - 1, keeps=True)
            if count_of(page) > 1:
                break
            self._live_bytes -= root.length
            self.replaced.append(root.offset)
            root = pointer_at(page, 0)
            height -= 1
        return self._footer(root, height, mark)

    def _footer(self, root: Pointer, height: int, mark: bytes) -> Footer:
        return Footer(
            offset=self._position,
            value_length=self._value_length,
            height=height,
            root=root,
            entry_count=self._entry_count,
            live_bytes=self._live_bytes,
            mark=mark,
        )

    async def _contents(self, node: Node) -> list[Content] | None:
        """Return the replacement of a page, an empty list if it becomes empty, None if it stays unchanged in place."""
        if not node.level:
            return await self._leaf(node)
        edits = []
        for group in await self._groups(node):
            is_last = node.is_last and group.end == count_of(node.page)
            edits.append((group.start, group.end, await self._emit(group.contents, fills=is_last)))
        if not edits:
            return None
        self._replace(node.pointer)
        content = splice_inner(node.page, node.lower, edits)
        return [content] if content.lengths else []

    async def _leaf(self, node: Node) -> list[Content] | None:
        page = node.page
        if node.low == node.high:
            # A moved page is only cached if it was cached before.
            contents = [content_of(page, 0, node.lower)]
            contents[0].is_kept = self._is_cached(node.pointer.offset)
        else:
            patched = patch_leaf(page, self._keys, node.low, node.high, self._changes, self._value_length)
            if patched is page and not node.is_moved:
                return None
            if patched is not None:
                contents = [content_of(patched, 0, node.lower)]
            else:
                contents = await self._merge(page, node.lower, node.low, node.high)
                if not self._is_changed and not node.is_moved:
                    return None
        self._replace(node.pointer)
        return contents

    async def _merge(self, page: bytes | None, lower: bytes, low: int, high: int) -> list[Content]:
        merge = LeafMerge(page, lower, self._value_length)
        contents = []
        close_bytes = _CLOSE_PAGES * self._settings.page_bytes
        for content in merge.merge(self._keys, low, high, self._changes, close_bytes=close_bytes):
            contents.append(content)
            if content.size >= close_bytes:
                await asyncio.sleep(0)
        self._entry_count += merge.entry_delta
        self._is_changed = merge.is_changed
        return contents

    def _replace(self, pointer: Pointer) -> None:
        self._live_bytes -= pointer.length
        self.replaced.append(pointer.offset)

    async def _groups(self, node: Node) -> list[_Group]:
        """Return the replacements of children of an inner page, small ones joined with neighbours."""
        groups: list[_Group] = []
        for index in sorted(node.children):
            child = node.children[index]
            contents = await self._contents(child)
            child.page = b""
            if contents is None:
                continue
            if not groups or groups[-1].end != index:
                groups.append(_Group(index, index))
            group = groups[-1]
            group.end = index + 1
            for content in contents:
                if group.contents and self._are_joined(group.contents[-1], content):
                    group.contents[-1] = join(group.contents[-1], content)
                else:
                    group.contents.append(content)
            await self._pause()
        for index, group in enumerate(groups):
            start_min = groups[index - 1].end if index else 0
            end_max = groups[index + 1].start if index + 1 < len(groups) else count_of(node.page)
            if group.contents and group.start > start_min:
                await self._join_neighbour(node, group, is_left=True)
            if group.contents and group.end < end_max:
                await self._join_neighbour(node, group, is_left=False)
        return groups

    def _is_small(self, content: Content) -> bool:
        return content.page_length < self._settings.page_bytes // 4

    def _are_joined(self, left: Content, right: Content) -> bool:
        if not self._is_small(left) and not self._is_small(right):
            return False
        return left.page_length + right.size <= self._settings.page_bytes * 3 // 4

    async def _join_neighbour(self, node: Node, group: _Group, *, is_left: bool) -> None:
        """Add the neighbouring child to a group if the group's content there is small and both fit."""
        content = group.contents[0 if is_left else -1]
        index = group.start - 1 if is_left else group.end
        pointer = pointer_at(node.page, index)
        if not self._is_small(content) or content.size + pointer.length > self._settings.page_bytes * 3 // 4:
            return
        (page,) = await self._load([pointer], node.level - 1, keeps=True)
        self._replace(pointer)
        neighbour = content_of(page, node.level - 1, key_at(node.page, index, POINTER_LENGTH))
        if is_left:
            group.contents[0] = join(neighbour, content)
            group.start = index
        else:
            group.contents[-1] = join(content, neighbour)
            group.end = index + 1

    async def _emit(self, contents: Sequence[Content], *, fills: bool) -> list[bytes]:
        """Build pages; return the parent entries for them."""
        entries = []
        for content in contents:
            fills_now = fills and content is contents[-1]
            if content.page is not None:
                entries.append(self._add(content, content.lower, move_page(content.page, self._position)))
                await self._pause()
                continue
            value_length = POINTER_LENGTH if content.level else self._value_length
            for lower, lengths, body in split(
                content,
                self._settings.page_bytes,
                value_length,
                entries_min=_INNER_ENTRIES_MIN if content.level else 1,
                fills=fills_now,
            ):
                page = build_page(content.level, self._position, lengths, body)
                entries.append(self._add(content, lower, page))
                await self._pause()
        return entries

    def _add(self, content: Content, lower: bytes, page: bytes) -> bytes:
        offset = self._position
        pointer = Pointer(offset, len(page), lowest_below(page) if content.level else offset)
        self.pages.append(page)
        self.built[offset] = page
        if content.is_kept:
            self.kept.append(offset)
        self._position += len(page)
        self._live_bytes += len(page)
        return inner_entry(lower, pointer)

    async def _pause(self) -> None:
        self._since_pause += 1
        if self._since_pause >= self._settings.slice_pages:
            self._since_pause = 0
            await asyncio.sleep(0)
