#!/bin/sh
# Makes .venv-rivals: the Rust routers that bench/overhead compares with, in a venv of their own so that their pinned
# dependencies never meet the gateway's. A second run is free while the stamp matches.
set -eu

PINS="smg==1.13.0 vllm-router==0.1.17"

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../.venv-rivals
stamp=$venv/installed
python=${PYTHON:-python3}

[ "$(cat "$stamp" 2>/dev/null)" = "$PINS" ] && exit 0
rm -rf "$venv"
"$python" -m venv "$venv" || {
    echo "rivals: the venv module is missing; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
}
# shellcheck disable=SC2086  # the pins are words
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $PINS
echo "$PINS" >"$stamp"
