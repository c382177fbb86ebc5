#!/bin/sh
# Sees to an nginx on the path, for the tests with a real one in front. Root gets Debian's package, others are told its
# name; where there is one, nothing is done.
set -eu

command -v nginx >/dev/null && exit 0

say() { printf 'nginx: %s\n' "$*" >&2; }

install_nginx() {
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light >/dev/null
}

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "the tests need a real nginx: apt-get install nginx-light, and run make again"
    exit 1
fi
say "installing nginx-light"
install_nginx || install_nginx
command -v nginx >/dev/null
