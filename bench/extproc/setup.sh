#!/bin/sh
# Makes .venv-grpc: grpc.aio, for the bare handler that ours is measured against. The gateway itself needs no grpc.
set -eu

PINS="grpcio==1.85.1 protobuf==7.35.1 uvloop==0.22.1"

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
venv=$root/.venv-grpc
stamp=$venv/installed

[ "$(cat "$stamp" 2>/dev/null)" = "$PINS" ] && exit 0
printf 'grpc-venv: installing %s\n' "$PINS" >&2
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
# shellcheck disable=SC2086  # the pins are words
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $PINS
printf '%s\n' "$PINS" >"$stamp"
