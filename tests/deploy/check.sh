#!/bin/sh
# `make check-deploy`: each file in deploy/ held against the program, or the published schema, that will read it. Then a
# fault is planted in a copy of each kind of file, and must be found.
#
# Wants .venv (make install), .venv-deploy (tests/deploy/tools.sh) and .venv-envoy (tests/envoy/setup.sh); asks no
# network for anything. Kinds whose schemas Kubernetes does not publish have schemas of ours in tests/deploy/schemas.
# --keep writes deploy/rendered anew and does nothing else.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
bin=.venv-deploy/bin
[ "${1:-}" = --keep ] && exec $bin/python tests/deploy/render.py --keep
envoy=$(cat .venv-envoy/binary)
promtool=$(command -v promtool || echo $bin/promtool)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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

# finds WHAT FILE SED-SCRIPT CHECKER...: the checker rejects a copy of the file that the script has changed; {} stands for it.
finds() {
    what=$1 copy=$work/$(basename "$2")
    sed "$3" "$2" >"$copy"
    if cmp -s "$2" "$copy"; then
        printf 'WRONG   planted fault in %s: the script changes nothing\n' "$what"
        failed=1
        return
    fi
    shift 3
    if "$@" >/dev/null 2>&1; then
        printf 'WRONG   planted fault in %s: not found\n' "$what"
        failed=1
    else
        printf 'found   planted fault in %s\n' "$what"
    fi
}

mkdir "$work/rendered"
check "Dockerfile, by hadolint" $bin/hadolint --failure-threshold style deploy/Dockerfile
check "Dockerfile, its steps carried out and its command run" .venv/bin/python -m tests.deploy.exercise
check "compose file, against its schema" \
    $bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
check "compose file, its services run on this machine with traffic" .venv/bin/python -m tests.deploy.bare_compose
check "release workflow, against its schema" \
    $bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/release.yaml
for file in deploy/envoy/*.yaml; do
    check "$file, by Envoy" "$envoy" --mode validate --disable-hot-restart --log-level error -c "$file"
done
check "chart, by Helm's library and Kubernetes' schemas" $bin/python tests/deploy/render.py "$work/rendered"
check "chart, all value sets: kinds, pod security, references, configuration" \
    .venv/bin/python -m tests.deploy.manifests "$work"/rendered/*.yaml
check "Grafana's files" .venv/bin/python -m tests.deploy.grafana deploy/grafana
if [ -x "$promtool" ]; then
    check "prometheus.yaml and its rules, by promtool" "$promtool" check config deploy/prometheus/prometheus.yaml
    rules=$(grep -l '^groups:' deploy/prometheus/*.yaml deploy/prometheus/*/*.yaml 2>/dev/null || true)
    for file in $rules; do
        check "$file, by promtool" "$promtool" check rules "$file"
    done
    mkdir "$work/cases" && .venv/bin/python -m tests.deploy.rule_cases "$work/cases"
    check "each alert in a fault of its own, by promtool" "$promtool" test rules "$work/cases/faults.yaml"
    check "alerts in a recorded overload, by promtool" "$promtool" test rules "$work/cases/overload.yaml"
    check "no alert in a recorded calm hour, by promtool" "$promtool" test rules "$work/cases/calm.yaml"
else
    printf 'left out: prometheus.yaml, for there is no promtool\n'
fi

finds Dockerfile deploy/Dockerfile 's/^FROM python:.* AS build/FROM python AS build/' \
    $bin/hadolint --failure-threshold style "$work/Dockerfile"
finds "a step of the Dockerfile" deploy/Dockerfile 's/^COPY scorers scorers/COPY scorer scorers/' \
    .venv/bin/python -m tests.deploy.exercise "$work/Dockerfile"
cp -r deploy/compose "$work/compose"
finds "the configuration of the compose file's gateway" deploy/compose/hearth.yaml 's/^discovery:/discover:/' \
    sh -c 'cp "$1/hearth.yaml" "$1/compose/" && exec .venv/bin/python -m tests.deploy.bare_compose --folder "$1/compose"' - "$work"
finds "compose file" deploy/compose/compose.yaml 's/read_only: true/read_onyl: true/' \
    $bin/check-jsonschema --builtin-schema vendor.compose-spec "$work/compose.yaml"
finds "release workflow" .github/workflows/release.yaml 's/runs-on: ubuntu-24.04/run-on: ubuntu-24.04/' \
    $bin/check-jsonschema --builtin-schema vendor.github-workflows "$work/release.yaml"
finds "Envoy's configuration" deploy/envoy/own.yaml 's/static_resources:/static_resource:/' \
    "$envoy" --mode validate --disable-hot-restart --log-level error -c "$work/own.yaml"
finds "a rendering of a kind of Kubernetes" deploy/rendered/proxy.yaml 's/terminationGracePeriodSeconds:/terminationGraceSeconds:/' \
    $bin/kubernetes-validate --strict "$work/proxy.yaml"
finds "a rendering of another kind" deploy/rendered/picker.yaml 's/endpointPickerRef:/endpointPicker:/' \
    .venv/bin/python -m tests.deploy.manifests "$work/picker.yaml"
cp -rL deploy/charts/hearth "$work/chart"
finds "a template" deploy/charts/hearth/templates/service.yaml 's/{{- end }}//' \
    env CHART="$work/chart" sh -c 'cp "$1" "$CHART/templates/service.yaml" && exec "$2" -c "
import os, helm_python
helm_python.Chart.load(os.environ[\"CHART\"]).render({}, name=\"a\")"' - "$work/service.yaml" $bin/python
finds "the chart's values" deploy/charts/hearth/ci/01-default-values.yaml 's/{}/{replica: 3}/' \
    $bin/check-jsonschema --schemafile deploy/charts/hearth/values.schema.json "$work/01-default-values.yaml"
if [ -x "$promtool" ]; then
    finds prometheus.yaml deploy/prometheus/prometheus.yaml 's/scrape_interval:/scrape_intervall:/' \
        "$promtool" check config "$work/prometheus.yaml"
    rules=deploy/prometheus/hearth-rules.yaml
    finds "an expression of the rules" $rules 's/histogram_quantile(0.99, sum/histogram_quantile(0.99 sum/' \
        "$promtool" check rules "$work/hearth-rules.yaml"
    sed -i "s#$root/$rules#$work/hearth-rules.yaml#" "$work"/cases/*.yaml
    finds "an alert that never fires" $rules 's/> 14.4 \* 0.01/> 144 * 0.01/g' "$promtool" test rules "$work/cases/faults.yaml"
    finds "an alert that misses an overload" $rules 's/> 14.4 \* 0.01/> 144 * 0.01/g' \
        "$promtool" test rules "$work/cases/overload.yaml"
    finds "an alert that fires in a calm hour" $rules 's/> 14.4 \* 0.01/>= 0/g' "$promtool" test rules "$work/cases/calm.yaml"
fi
finds "Grafana's provisioning" deploy/grafana/provisioning/dashboards/hearth.yaml 's/type: file/type: files/' \
    sh -c 'mkdir -p "$1/g/provisioning/dashboards" && cp "$1/hearth.yaml" "$1/g/provisioning/dashboards/" && exec .venv/bin/python -m tests.deploy.grafana "$1/g"' - "$work"
exit $failed
