#!/usr/bin/env bash
# Builds MinIO, a second S3 server for tests (AGPL-3.0: only ever a separate process), from the Go module proxy; nothing
# if it is there. Neither the tests nor CI run this script.
#
#   minio.sh          build it, about 230 s, and print where it is
#   minio.sh --where  print where it is or would be
#
# Exit code 3: it is missing and cannot be built; the reason is printed. The tests that need it are then skipped.
set -euo pipefail

version=${MINIO_VERSION:-v0.0.0-20260212201848-7aac2a2c5b7c}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/minio-$version
echo "$folder/minio"
if [ "${1:-}" = --where ] || [ -x "$folder/minio" ]; then exit 0; fi
if ! command -v go >/dev/null; then
  echo "minio.sh: there is no Go (1.25 or newer) to build minio with" >&2
  exit 3
fi
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -x "$folder/minio" ]; then exit 0; fi
if ! GOBIN=$folder GOFLAGS=-modcacherw CGO_ENABLED=0 \
  timeout 1800 go install -ldflags='-s -w' "github.com/minio/minio@$version" >"$folder/log" 2>&1; then
  echo "minio.sh: minio cannot be built: $(tail -n 3 "$folder/log")" >&2
  exit 3
fi
