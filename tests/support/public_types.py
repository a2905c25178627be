"""Say what of the package's types a user's type checker cannot know, and fail if there is any: part of ``./run lint``.

``pyright --verifytypes``, with what follows from something unknown left out: a type with one unknown part makes all
unknown that mention it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What is said of something that is unknown by itself.
_CAUSES = ("inferred differently", "is missing", "Type unknown", "Ambiguous")


def main() -> int:
    """Check the sources beside this file with the packages of this interpreter."""
    scripts = Path(sys.executable).parent
    # In this mode pyright searches for packages along these alone, whatever interpreter it is configured with.
    paths = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    checked = subprocess.run(
        [scripts / "basedpyright", "--verifytypes", "penstock", "--ignoreexternal", "--outputjson"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    found = json.loads(checked.stdout)["typeCompleteness"]
    causes, others = set[str](), set[str]()
    for symbol in found["symbols"]:
        if symbol["isTypeKnown"]:
            continue
        for each in symbol["diagnostics"] or [{"message": "type partially unknown"}]:
            line = each.get("range", {}).get("start", {}).get("line", -1) + 1
            text = f"{each.get('file', '')}:{line}: {symbol['name']}: {' '.join(each['message'].split())}"
            (causes if any(cause in text for cause in _CAUSES) else others).add(text)
    for text in sorted(causes or others):
        sys.stdout.write(f"{text}\n")
    symbol_count = sum(found["exportedSymbolCounts"].values())
    sys.stdout.write(f"{found['completenessScore']:.2%} of the types of {symbol_count} symbols are known\n")
    return 0 if found["completenessScore"] == 1 and symbol_count > 1000 else 1


if __name__ == "__main__":
    sys.exit(main())
