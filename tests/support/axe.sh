#!/usr/bin/env bash
# Fetches axe-core (MPL-2.0), the rules of accessibility, with npm; does nothing if it is present. Only tests use it.
#
#   axe.sh          fetch it, and print the path of axe.min.js
#   axe.sh --where  print where it is or would be
#
# Exit code 3: it cannot be fetched; the reason is printed. The checks that need it are then skipped.
set -euo pipefail

version=4.14.1
sum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/axe-$version
script=$folder/axe.min.js
echo "$script"
if [ "${1:-}" = --where ] || [ -f "$script" ]; then exit 0; fi
if ! command -v npm >/dev/null; then
  echo "axe.sh: there is no npm, so axe-core cannot be fetched" >&2
  exit 3
fi
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -f "$script" ]; then exit 0; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! (cd "$scratch" && npm pack --silent "axe-core@$version" && tar xzf axe-core-*.tgz package/axe.min.js) >"$folder/log" 2>&1; then
  echo "axe.sh: axe-core cannot be fetched: $(tail -n 2 "$folder/log")" >&2
  exit 3
fi
echo "$sum  $scratch/package/axe.min.js" | sha256sum --check --quiet
mv "$scratch/package/axe.min.js" "$script"
