#!/usr/bin/env bash
# Builds Helm (Apache-2.0), which tests render the chart with, from the Go module proxy; nothing if it is there.
#
#   helm.sh          build it, 10 to 30 minutes of CPU, and print where it is
#   helm.sh --where  print where it is or would be
#
# Exit code 3: it is not there and cannot be built, and why. The tests that need it are skipped then.
set -euo pipefail

version=${HELM_VERSION:-v3.22.0}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/helm-$version
echo "$folder/helm"
if [ "${1:-}" = --where ] || [ -x "$folder/helm" ]; then exit 0; fi
if ! command -v go >/dev/null; then
  echo "helm.sh: there is no Go (1.25 or newer) to build Helm with" >&2
  exit 3
fi
mkdir -p "$folder"
# One at a time: the second one finds it done.
exec 9>"$folder/lock"
flock 9
if [ -x "$folder/helm" ]; then exit 0; fi
if ! GOBIN=$folder GOFLAGS=-modcacherw CGO_ENABLED=0 \
  timeout 5400 go install -p 1 -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@$version" >"$folder/log" 2>&1; then
  echo "helm.sh: Helm cannot be built: $(tail -n 3 "$folder/log")" >&2
  exit 3
fi
