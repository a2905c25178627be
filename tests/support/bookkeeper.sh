#!/usr/bin/env bash
# Fetches the jars of the BookKeeper servers and client that tests run on (Apache-2.0, 32 MB), with Maven; nothing if
# they are there. They are those that `penstock jars` fetches.
#
#   bookkeeper.sh          fetch them, and print the directory
#   bookkeeper.sh --where  print where they are or would be
#
# Exit code 3: they are not there and cannot be fetched, and why. The tests that need them are skipped then.
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
# One at a time: the second one finds it done.
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
