#!/bin/sh
# Sees to a headless Chromium with its driver, and to axe-core, for the tests of the operators' page. Root gets Debian's
# packages, others are told their names. axe-core is unpacked into .venv-page, and is no part of anything that ships.
set -eu

AXE="axe-core@4.11.0"
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
folder=$root/.venv-page

say() { printf 'page: %s\n' "$*" >&2; }

install_chromium() {
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null
}

if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "the tests need a real browser: apt-get install chromium chromium-driver, and run make again"
        exit 1
    fi
    say "installing chromium"
    install_chromium || install_chromium
fi
sh "$root/tests/deploy/prometheus.sh"
[ "$(cat "$folder/installed" 2>/dev/null)" = "$AXE" ] && exit 0
command -v npm >/dev/null || { say "the accessibility checks need npm: apt-get install npm, and run make again"; exit 1; }
say "fetching $AXE"
rm -rf "$folder" && mkdir -p "$folder"
(cd "$folder" && npm pack --silent "$AXE" >/dev/null && tar -xzf axe-core-*.tgz package/axe.min.js && rm axe-core-*.tgz)
printf '%s\n' "$AXE" >"$folder/installed"
