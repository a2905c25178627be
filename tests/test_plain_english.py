"""Texts are in plain technical English: phrases that make a reader guess may not come back.

Counted in whole files: comments, docstrings, messages, names of tests and pages. A tree that has some left may have no
more than the number here, and the number goes down with each tree that is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: Program parts are not people; and each of these phrases has a shorter or a more exact form.
BANNED = re.compile(
    r"\b(?:whoever|whomever|somebody|nobody|anybody|hears? of|is told|are told|was told|were told|for good|in the midst"
    r"|who asks|who reads|who waits|looks? after|looked after|comes? of it|what is gone|stands (?:for|in|still|behind)"
    r"|at a look|a look|look(?:s|ed|ing)? (?:at|for|into|inside|where|whether|which)|none of its business|whatever is"
    r"|goes on|go on|gone on|for ever|in vain"
    r"|(?:is|are|was|were) to be|for now|cut the log|log is cut|tells? (?:of|how|what|whether)|behind (?:it|them)"
    r"|anew|once more|all the same|by night|as ever|comes? of|came of|is to find|is there already)\b",
    re.IGNORECASE,
)

#: "Look" in a name. The verb of a name says what is read, and how often: poll, scan, check. "Look up" is a term.
LOOK = re.compile(r"(?:_|\.|\bdef )look(?:s|ed|ing)?(?!_up)(?:_|\b)", re.IGNORECASE)

#: The most of them in each tree. Nested trees are counted with the tree that contains them.
COUNT_MAX = {
    "README.md": 0,
    "docs/guide": 0,
    "docs": 0,
    "src": 0,
    "simulation": 0,
    "tests": 0,
    "run": 0,
    ".ci/run": 0,
    ".ci/nightly": 0,
    "pyproject.toml": 0,
}


def banned_in(tree: str) -> Iterator[str]:
    """Yield each phrase with its place."""
    path = ROOT / tree
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        is_text = file == path or file.suffix in (".py", ".md", ".toml", ".sh")
        if not is_text or file == Path(__file__) or "history" in file.name:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for found in (*BANNED.finditer(words_of(line)), *LOOK.finditer(line)):
                yield f"{file.relative_to(ROOT)}:{number}: {found[0]}"


def words_of(line: str) -> str:
    """Return a line with the name of a test, if it has one, as words."""
    return re.sub(r"\bdef test_\w+", lambda name: name[0].replace("_", " "), line)


@pytest.mark.parametrize("tree", COUNT_MAX)
def test_a_tree_has_no_more_of_the_banned_phrases(tree: str) -> None:
    found = list(banned_in(tree))
    shown = "\n".join(found[-20:])
    assert len(found) <= COUNT_MAX[tree], f"{len(found)} in {tree}, {COUNT_MAX[tree]} are allowed; some:\n{shown}"


def test_names_of_tests_are_scanned_as_words() -> None:
    line = "async def test_an_error_that_" + "nobody_waited_for() -> None:"
    assert BANNED.search(line) is None
    assert BANNED.search(words_of(line)) is not None


def test_names_with_look_are_found_and_look_up_is_a_term() -> None:
    verb = "lo" + "ok"
    for line in (
        f"    def {verb}(self):",
        f"_{verb}_at_log",
        f"_{verb.upper()}_S = 1",
        f"self.{verb}()",
        f"has_{verb}ed_for",
    ):
        assert LOOK.search(line), line
    for line in (f"def {verb}_up(self):", f"_{verb}_up(", f"It does not {verb} like one.", f"{verb}up", "_outlook_"):
        assert LOOK.search(line) is None, line
