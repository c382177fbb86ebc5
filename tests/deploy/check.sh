#!/bin/sh
# `make check-deploy`: each file in deploy/ held against the program, or the published schema, that will read it.
#
# Wants .venv (make install), .venv-deploy (tests/deploy/tools.sh) and .venv-envoy (tests/envoy/setup.sh); asks no
# network for anything. The kinds of Gateway API and InferencePool have no schema here that could be asked offline: ours
# in tests/deploy/schemas say of them what the documents say.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
bin=.venv-deploy/bin
envoy=$(cat .venv-envoy/binary)
promtool=$(command -v promtool || echo $bin/promtool)
failed=0

# Say what was checked; where it is wrong, show why and go on.
check() {
    what=$1
    shift
    if output=$("$@" 2>&1); then
        printf 'ok      %s\n' "$what"
    else
        printf 'WRONG   %s\n%s\n' "$what" "$output"
        failed=1
    fi
}

check "Dockerfile, by hadolint" $bin/hadolint --failure-threshold style deploy/Dockerfile
check "Dockerfile, its steps carried out and its command run" .venv/bin/python -m tests.deploy.exercise
check "compose file, against its schema" \
    $bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
for file in deploy/envoy/*.yaml; do
    check "$file, by Envoy" "$envoy" --mode validate --disable-hot-restart --log-level error -c "$file"
done
for file in deploy/kubernetes/*.yaml; do
    case $file in */kustomization.yaml) continue ;; esac
    check "$file, against Kubernetes' schemas" $bin/kubernetes-validate --strict --quiet "$file"
done
if [ -x "$promtool" ]; then
    check "prometheus.yaml, by promtool" "$promtool" check config deploy/prometheus/prometheus.yaml
else
    printf 'left out: prometheus.yaml, for there is no promtool\n'
fi
exit $failed
