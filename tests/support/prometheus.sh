#!/usr/bin/env bash
# Unpacks Prometheus and promtool (Apache-2.0) from Debian's package, without installing it; does nothing if they are present.
#
#   prometheus.sh          unpack them, some seconds, and print their directory
#   prometheus.sh --where  print where they are or would be
#
# Exit code 3: they cannot be fetched; the reason is printed. The tests that need them are then skipped.
set -euo pipefail

folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/prometheus
echo "$folder/usr/bin"
if [ "${1:-}" = --where ] || [ -x "$folder/usr/bin/promtool" ]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "prometheus.sh: this is no Debian system, so Prometheus cannot be fetched" >&2
  exit 3
fi
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -x "$folder/usr/bin/promtool" ]; then exit 0; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
if ! (cd "$scratch" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }) \
  >"$folder/log" 2>&1; then
  echo "prometheus.sh: Prometheus cannot be fetched: $(tail -n 2 "$folder/log")" >&2
  exit 3
fi
dpkg-deb -x "$scratch"/prometheus_*.deb "$folder"
if [ ! -x "$folder/usr/bin/promtool" ]; then
  echo "prometheus.sh: Debian's package of Prometheus has no promtool here" >&2
  exit 3
fi
