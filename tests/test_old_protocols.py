"""What processes of earlier commits send and understand is sent and understood today, in the same form.

`tests/data/old/protocols` has what `tests/support/old_protocols.py` printed with their code. Things may only be added:
a type, number or name is never used for anything else.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from support.old_protocols import described

OLD = sorted((Path(__file__).parent / "data" / "old" / "protocols").glob("*.json.xz"))
NOW = described()

#: Types of fields that differ from others in limits only: their bytes are the same.
SAME_BYTES = {
    "ChangedEntries": "TableEntries",
    "ChangedKeys": "TableKeys",
    "SourceNames": "TextList",
    "TableVersions": "I64List",
}
#: Classes with another name today. Payloads are JSON: the names of their fields are sent, not that of the class.
RENAMED = {
    "AdviceQuestion": "AdviceQuery",
    "LayoutQuestion": "LayoutQuery",
    "Question": "StatisticsQuery",
    "TablesQuestion": "TablesQuery",
}


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("kind", ["messages", "services", "commands", "payloads", "nodes"])
def test_what_an_earlier_commit_sends_has_the_same_form_today(path: Path, kind: str) -> None:
    before = json.loads(lzma.decompress(path.read_bytes()))[kind]
    if kind in ("messages", "services", "commands"):
        assert before
    if kind == "payloads":
        before = {RENAMED.get(name, name): form for name, form in before.items()}
    lost = sorted(name for name in before if name not in NOW[kind])
    assert lost == [], "a form is gone, or has another name"
    for name, form in before.items():
        now = NOW[kind][name]
        if kind == "messages":
            assert form.items() <= now.items(), name
        elif kind in ("payloads", "nodes") and not form[0]:
            assert set(form) <= set(now), f"{name}: a field is gone"
        else:
            assert same_bytes(now)[: len(form)] == same_bytes(form), name


def same_bytes(form: list[str | bool]) -> list[str | bool]:
    return [SAME_BYTES.get(str(each), each) for each in form]


def test_earlier_commits_are_there() -> None:
    assert len(OLD) >= 4
