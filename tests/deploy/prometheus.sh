#!/bin/sh
# Unpacks Prometheus out of Debian's package into .venv-prometheus, without installing it; a second run does nothing.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
folder=$root/.venv-prometheus
[ -x "$folder/usr/bin/prometheus" ] && exit 0

printf 'prometheus: unpacking Debian'"'"'s package\n' >&2
rm -rf "$folder" && mkdir -p "$folder"
(cd "$folder" && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } 2>/dev/null)
dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" ./usr/bin/prometheus && rm "$folder"/prometheus_*.deb
