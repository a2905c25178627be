#!/usr/bin/env bash
# Installs schemathesis (MIT) in a virtual environment of its own, outside of the project's; does nothing if it is present.
#
#   schemathesis.sh          install it, about a minute, and print its program
#   schemathesis.sh --where  print where it is or would be
#
# Exit code 3: it cannot be installed; the reason is printed. The tests that need it are then skipped.
set -euo pipefail

version=4.32.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/schemathesis-$version
echo "$folder/bin/schemathesis"
if [ "${1:-}" = --where ] || [ -e "$folder/complete" ]; then exit 0; fi
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -e "$folder/complete" ]; then exit 0; fi
if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet "schemathesis==$version"; } >"$folder/log" 2>&1; then
  echo "schemathesis.sh: schemathesis $version cannot be installed: $(tail -n 2 "$folder/log")" >&2
  exit 3
fi
touch "$folder/complete"
