#!/usr/bin/env bash
# Builds versitygw, the S3 server that tests run on (Apache-2.0), from the Go module proxy; does nothing if it is present.
#
#   versitygw.sh          build it, about 100 s, and print where it is
#   versitygw.sh --where  print where it is or would be
#
# Exit code 3: it is missing and cannot be built; the reason is printed. The tests that need it are then skipped.
set -euo pipefail

version=${VERSITYGW_VERSION:-v1.8.0}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/versitygw-$version
echo "$folder/versitygw"
if [ "${1:-}" = --where ] || [ -x "$folder/versitygw" ]; then exit 0; fi
if ! command -v go >/dev/null; then
  echo "versitygw.sh: there is no Go (1.25 or newer) to build versitygw with" >&2
  exit 3
fi
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -x "$folder/versitygw" ]; then exit 0; fi
if ! GOBIN=$folder GOFLAGS=-modcacherw CGO_ENABLED=0 \
  timeout 900 go install -ldflags='-s -w' "github.com/versity/versitygw/cmd/versitygw@$version" >"$folder/log" 2>&1; then
  echo "versitygw.sh: versitygw cannot be built: $(tail -n 3 "$folder/log")" >&2
  exit 3
fi
