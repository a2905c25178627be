#!/usr/bin/env bash
# Fetches the jars of the BookKeeper servers and client that tests run on (Apache-2.0, 32 MB), with Maven; nothing if
# they are present. `penstock jars` fetches the same ones.
#
#   bookkeeper.sh          fetch them, and print the directory
#   bookkeeper.sh --where  print where they are or would be
#
# Exit code 3: they are missing and cannot be fetched; the reason is printed. The tests that need them are then skipped.
set -euo pipefail

version=4.18.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/bookkeeper-$version
echo "$folder/jars"
if [ "${1:-}" = --where ] || [ -e "$folder/complete" ]; then exit 0; fi
for program in java mvn; do
  if ! command -v "$program" >/dev/null; then
    echo "bookkeeper.sh: there is no $program to fetch and run BookKeeper with" >&2
    exit 3
  fi
done
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -e "$folder/complete" ]; then exit 0; fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../../.venv/bin/python
if ! timeout 600 "$python" -m penstock jars --to "$folder/jars" >"$folder/log" 2>&1; then
  echo "bookkeeper.sh: the jars cannot be fetched: $(grep -v '^$' "$folder/log" | head -n 3)" >&2
  exit 3
fi
touch "$folder/complete"
