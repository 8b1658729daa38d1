# The one list of commands: people, README and CI use these targets. `make help` prints them.
# POSIX sh and GNU make 4 are enough; everything else is installed by `make setup`.

# Models to serve: names of folders in models/
MODELS ?= resnet50 bert
PYTHON ?= python3
RUN_DIR ?= run

# Values become text of commands as quoted words alone, and are never expanded as text of make: whatever is in them
# reaches a program as it was given. Only these three, and `value`, name a value that can be given.
quote = '$(subst ','\'',$(1))'
given = $(call quote,$(value $(1)))
listed = -- $(foreach one,$(value $(1)),$(call quote,$(one)))

ANY_PYTHON = $(call quote,$(or $(firstword $(wildcard .venv/bin/python .venv-current/bin/python)),$(value PYTHON)))
# The table of knobs (config/knobs/table.py) judges what was given, here and in the environment, before anything
# runs, and says which package set BACKEND means and which are knobs. A Python that cannot do that says so, and
# stops the set-up too.
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
# make would expand a command line's values for the programs' environment, and leaves newlines out of $(shell …).
unexport $(GIVEN)
define NEWLINE


endef
$(foreach name,$(GIVEN),$(if $(findstring $(NEWLINE),$(value $(name))),\
	$(error refused: $(name) must be one line: got $(value $(name)))))
CHECKED := $(shell cd $(call quote,$(dir $(lastword $(MAKEFILE_LIST)))) && \
	$(ANY_PYTHON) -X utf8 -S -E -m config.knobs check $(call quote,$(MAKECMDGOALS)) '$(MAKELEVEL)' \
	$(foreach name,$(GIVEN),$(call quote,$(name)=$(value $(name)))))
$(if $(filter refused:,$(firstword $(CHECKED))),$(error $(CHECKED)))
KNOBS := $(wordlist 2,$(words $(CHECKED)),$(CHECKED))
# Each package set has an environment and archives of its own: .venv-current, model-store-current.
SET := $(firstword $(CHECKED))
SUFFIX := $(addprefix -,$(filter-out ipex,$(SET)))
VENV := .venv$(SUFFIX)
VENV_PYTHON := $(VENV)/bin/python
TIMINGS = $(value RUN_DIR)/timings.json
TUNED_PLAN = $(value RUN_DIR)/tuned.json
PLAN_INPUTS = --models=$(call given,MODELS) --precision=$(call given,PRECISION) --backend=$(call given,BACKEND) --profile=$(call given,PROFILE) \
	--workers=$(call given,WORKERS) --cores-per-worker=$(call given,CORES_PER_WORKER) \
	--allocator=$(call given,ALLOCATOR) --openmp=$(call given,OPENMP) --port=$(call given,PORT) \
	--batch=$(call given,BATCH) --delay-ms=$(call given,DELAY_MS) --slo-p99-ms=$(call given,SLO_P99_MS) \
	--instances=$(call given,INSTANCES) --deadline-ms=$(call given,DEADLINE_MS) \
	--tls-cert=$(call given,TLS_CERT) --tls-key=$(call given,TLS_KEY) \
	--topology=$(call given,TOPOLOGY) --run-dir=$(call given,RUN_DIR) $(if $(value TOPOLOGY),,--timings=$(call quote,$(TIMINGS))) \
	$(if $(filter 0,$(value TUNED)),,--tuned=$(call quote,$(TUNED_PLAN)))
BUILD_INPUTS = --models=$(call given,MODELS) --precision=$(call given,PRECISION) --backend=$(call given,BACKEND) \
	--weights=$(call given,WEIGHTS) --calibration=$(call given,CALIBRATION) --eval=$(call given,EVAL) --allow-pickle=$(call given,ALLOW_PICKLE)
# MODELS only when given: an image without archives is the default.
IMAGE_MODELS = $(if $(filter file,$(origin MODELS)),,$(value MODELS))
IMAGE_ARGS = $(foreach name,BACKEND WEIGHTS TORCH_INDEX,$(if $(value $(name)),--build-arg $(name)=$(call given,$(name)))) \
	$(if $(IMAGE_MODELS),--build-arg MODELS=$(call quote,$(IMAGE_MODELS)))
SETUP = $(call given,PYTHON) -m setup --set=$(SET) --torch-index=$(call given,TORCH_INDEX)
SERVER = $(ANY_PYTHON) -m server
CODE = $(wildcard config docker handlers loadtest models server setup)
LOADTEST = $(VENV_PYTHON) -m loadtest
LOAD_INPUTS = --run-dir=$(call given,RUN_DIR) --url=$(call given,URL) --scenario=$(call given,SCENARIO) --duration=$(call given,DURATION) \
	--users=$(call given,USERS) --rate=$(call given,RATE) --payloads=$(call given,PAYLOADS) --processes=$(call given,PROCESSES) \
	--locustfile=$(call given,LOCUSTFILE)
# What these start servers from; they build it with random weights once their values are checked.
STARTS = --store run/test-store$(SUFFIX)
# Load goes to the server that runs, whatever its precision; one is started only where none does.
ASKED_LOAD = $(filter loadtest loadtest-ui loadtest-slo soak,$(MAKECMDGOALS))
NO_SERVER = $(shell $(SERVER) status --run-dir=$(call given,RUN_DIR) >/dev/null 2>&1 || echo serve)
SERVE_FIRST := $(if $(ASKED_LOAD),$(if $(value URL),,$(NO_SERVER)))
E2E = tests/end_to_end
RELIABILITY = tests/reliability
IMAGE_TESTS = tests/image
# The option when the switch is 1.
FLAG = $(if $(filter 1,$(1)),$(2))
# A plan reads the archives, and is what a running server is compared with; there are no timings of another
# machine. A dry run takes what is there: a plan is wanted, no installation and no build.
BEFORE_PLAN = $(if $(filter 1,$(value DRY_RUN)),there,models check-plan $(if $(value TOPOLOGY),,timings))

# A server is never started from half of a dry run.
DRY_RUN_BUT_NOT_PLAN = $(and $(filter 1,$(value DRY_RUN)),$(filter serve models,$(MAKECMDGOALS)))
$(if $(DRY_RUN_BUT_NOT_PLAN),$(error DRY_RUN=1 is of `make plan` alone: got make $(MAKECMDGOALS)))

MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.NOTPARALLEL:
# The values above reach the programs as arguments only. A caller's PYTHONPATH must not reach them at all.
# Byte code is written when a module is first imported (uv writes none): without it each worker compiles torch anew.
unexport MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHONPATH PYTHONHOME PYTHONIOENCODING PYTHONDONTWRITEBYTECODE $(KNOBS)
# Every Python below prints and reads UTF-8, whatever the locale: `→` must not end a command in a Latin-1 one.
export PYTHONUTF8 := 1

.PHONY: help
help: #- Print what people use
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@printf '\nSettings, as in `make serve PRECISION=bf16 WORKERS=2`, with their (defaults)\n\n'
	@$(ANY_PYTHON) -m config.knobs help
	@printf '\nAll settings: docs/knobs.md; the other commands: make help-dev\n'

.PHONY: help-dev
help-dev: #- Print the commands for who works on the kit, and all settings
	@awk 'BEGIN { FS = ":.*#- " } /^[a-z0-9-]+:.*#- / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@printf '\nSettings, with their (defaults); who reads them: docs/knobs.md\n\n'
	@$(ANY_PYTHON) -m config.knobs help all

.PHONY: setup
setup: #- Install what is missing: system packages, .venv
	@$(SETUP)

.PHONY: doctor
doctor: #- Say what the machine lacks, and install nothing
	@$(call given,PYTHON) -m setup --doctor

.PHONY: model
model: setup ## Write models/<name>/model.yaml for a Hugging Face folder, or a state dict: FROM=/data/ticket-router
	@$(VENV_PYTHON) -m models new --from=$(call given,FROM) --serve-as=$(call given,SERVE_AS) --handler=$(call given,HANDLER) \
		--arch=$(call given,ARCH)

.PHONY: models
models: $(if $(filter-out models,$(MAKECMDGOALS)),inputs,build-inputs) setup ## Build what is missing, out of date or newly asked for (PRECISION, BACKEND) into model-store/
	@$(VENV_PYTHON) -m models build $(BUILD_INPUTS)

.PHONY: plan
plan: inputs $(BEFORE_PLAN) ## Build what is missing, plan for this machine (or TOPOLOGY), write config.properties
	@$(VENV_PYTHON) -m config $(PLAN_INPUTS) $(call FLAG,$(value DRY_RUN),--dry-run)

.PHONY: serve
serve: check-ports models plan ## All of the above, then start, wait until ready, verify, and say how to call it
	@$(VENV_PYTHON) -m server start --run-dir=$(call given,RUN_DIR) $(call FLAG,$(value FOREGROUND),--foreground) -- $(PLAN_INPUTS)

.PHONY: reload
reload: check-reload setup models ## New archives or other knobs without losing a request
	@$(VENV_PYTHON) -m server reload --run-dir=$(call given,RUN_DIR) -- $(PLAN_INPUTS)

.PHONY: status
status: ## Say what runs: workers, weights, failures, ports, and lines that call the models
	@$(SERVER) status --run-dir=$(call given,RUN_DIR)

.PHONY: verify
verify: ## Compare the live workers with the plan; exit 1 on any difference
	@$(SERVER) verify --run-dir=$(call given,RUN_DIR)

.PHONY: stop
stop: ## Stop the server and every process of it
	@$(SERVER) stop --run-dir=$(call given,RUN_DIR)

.PHONY: image
image: ## Build the container image with docker (docs/container.md); MODELS= with WEIGHTS= bakes archives in
	@docker build --file docker/Dockerfile --tag $(call quote,$(or $(value IMAGE),cpu-kit:latest)) $(IMAGE_ARGS) \
		--build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null)" .

.PHONY: image-test
image-test: dev #- Build the image and run it under limits and faults (tests/image/conftest.py says with what)
	@$(VENV_PYTHON) -m pytest $(IMAGE_TESTS) -v -s

.PHONY: test
test: test-unit test-e2e #- Run all tests

# Without the pool: where Triton is installed, whoever imports IPEX starts a process of 600 MB that compiles nothing
# here (torch/_inductor/async_compile.py).
.PHONY: test-unit
test-unit: dev #- Run the tests that need no server
	@TORCH_WARM_POOL=0 $(VENV_PYTHON) -m pytest tests --ignore=$(E2E) --ignore=$(IMAGE_TESTS) --ignore=$(RELIABILITY) \
		-n auto --dist loadfile --no-loadscope-reorder

.PHONY: test-e2e
test-e2e: dev #- Run the tests that talk to a real TorchServe
	@[ ! -d $(E2E) ] || $(VENV_PYTHON) -m pytest $(E2E)
	@[ ! -d $(RELIABILITY) ] || $(VENV_PYTHON) -m pytest $(RELIABILITY) -m quick

.PHONY: test-reliability
test-reliability: dev #- Faults under load, hostile requests, 5,500 broken bodies (20 minutes)
	@$(VENV_PYTHON) -m pytest $(RELIABILITY)

CURRENT_TESTS = tests/config/test_launcher.py tests/config/test_sets.py $(CURRENT_E2E) \
	tests/handlers/backends/test_backends.py tests/handlers/backends/test_inductor.py \
	tests/models/test_trained_backends.py tests/models/test_trained_embeddings.py

CURRENT_E2E = $(E2E)/test_current.py

.PHONY: test-current test-current-quick
test-current-quick: override CURRENT_TESTS = $(CURRENT_E2E)
test-current-quick: test-current #- Of these the one that serves INT8 by OpenVINO
test-current: #- Tests of the package set of OpenVINO and inductor: launcher, backends, INT8 over REST
	@$(call given,PYTHON) -m setup --set current --torch-index=$(call given,TORCH_INDEX) --with dev
	@TORCH_WARM_POOL=0 .venv-current/bin/python -m pytest $(CURRENT_TESTS)

.PHONY: ablation
ablation: load-tools #- What each setting is worth: MODELS=resnet50|bert|densenet121 (30 minutes); STEPS=backends: each backend
	@$(LOADTEST) ablation $(STARTS) --duration=$(call given,DURATION) --resume=$(call given,RESUME) --models=$(call given,MODELS) \
		--steps=$(call given,STEPS)

# What it finds must not depend on what it found before.
tune: override TUNED := 0

.PHONY: tune
tune: load-tools inputs ## Find and prove the plan that serves the most within SLO_P99_MS (15 minutes a model)
	@$(LOADTEST) tune --budget-minutes=$(call given,BUDGET_MINUTES) --payloads=$(call given,PAYLOADS) --resume=$(call given,RESUME) \
		--mix=$(call given,MIX) -- $(PLAN_INPUTS) -- $(BUILD_INPUTS)

.PHONY: profile
profile: load-tools ## Why it is faster: MODELS=resnet50|bert beside AGAINST=stock|off|a RUN_DIR (11 minutes)
	@$(LOADTEST) profile $(STARTS) --models=$(call given,MODELS) --against=$(call given,AGAINST) --duration=$(call given,DURATION) \
		--precision=$(call given,PRECISION)

.PHONY: soak
soak: load-tools $(SERVE_FIRST) #- The running server at 80 % of its peak for ten minutes: do memory and latency stay?
	@$(LOADTEST) soak --run-dir=$(call given,RUN_DIR) --processes=$(call given,PROCESSES) --duration=$(call given,DURATION)

.PHONY: report
report: load-tools #- Tables and pages of kept results again: the latest, or RESULT
	@$(LOADTEST) report $(call listed,RESULT)

.PHONY: loadtest
loadtest: load-tools $(SERVE_FIRST) ## Measure throughput and latency of the running server (6 minutes)
	@$(LOADTEST) run $(LOAD_INPUTS) --driver=$(call given,DRIVER)

.PHONY: loadtest-ui
loadtest-ui: load-tools $(SERVE_FIRST) #- The same load with Locust's own web page
	@$(LOADTEST) ui $(LOAD_INPUTS)

.PHONY: loadtest-slo
loadtest-slo: load-tools $(SERVE_FIRST) #- Search the highest rate whose p99 keeps SLO_P99_MS
	@$(LOADTEST) slo $(LOAD_INPUTS) --slo-p99-ms=$(call given,SLO_P99_MS)

.PHONY: loadtest-gate
loadtest-gate: load-tools #- Two running servers, RUN_DIRs A and B, in turns: fail on a regression
	@$(LOADTEST) gate $(LOAD_INPUTS) --a=$(call given,A) --b=$(call given,B) --bound=$(call given,BOUND)

.PHONY: compare
compare: load-tools ## Two results, A and B, side by side: fail on a regression
	@$(LOADTEST) compare --a=$(call given,A) --b=$(call given,B) --bound=$(call given,BOUND)

.PHONY: load-tools
load-tools:
	@$(SETUP) --with loadtest

.PHONY: lint
lint: dev #- Check style, format and types
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy $(CODE)

.PHONY: format
format: dev #- Rewrite the sources in the common format
	@$(VENV_PYTHON) -m ruff check --fix-only --quiet .
	@$(VENV_PYTHON) -m ruff format .

.PHONY: audit
audit: #- Known vulnerabilities of what is installed, and which are accepted why (exit 3: nobody can be asked)
	@$(SETUP) --with audit
	@sh requirements/audit.sh $(VENV_PYTHON)

.PHONY: lock
lock: dev #- Renew the locked files of requirements/ after a change in one of its *.in
	@sh requirements/lock.sh $(VENV)/bin/uv

.PHONY: clean
clean: #- Stop the server, remove built archives and the kit's files in RUN_DIR; keep .venv and tuned.json
	@$(SERVER) clean --run-dir=$(call given,RUN_DIR)
	@rm -rf -- model-store*/*.mar model-store*/*.part .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: distclean
distclean: clean #- As clean, and remove .venv and .venv-current
	@for set in ipex current; do $(call given,PYTHON) -m setup --unused --set=$$set || exit 1; done
	@rm -rf -- .venv .venv-current

# Judge the values at once, before anything long runs.
.PHONY: inputs
inputs:
	@$(call given,PYTHON) -m config --check $(PLAN_INPUTS)
	@$(call given,PYTHON) -m models check $(BUILD_INPUTS)

# A build may be of several precisions, a plan of one.
.PHONY: build-inputs
build-inputs:
	@$(call given,PYTHON) -m models check $(BUILD_INPUTS)

# What batches are planned by. Not beside a server that would have to be stopped anyway.
.PHONY: timings
timings: inputs models check-plan
	@job=$$($(VENV_PYTHON) -m config $(PLAN_INPUTS) --timing-job) && \
		$(VENV_PYTHON) -m models time --job "$$job" --output=$(call quote,$(TIMINGS))

# What PORT and RUN_DIR alone can tell: before anything is installed, built or written.
.PHONY: check-ports
check-ports: inputs
	@$(call given,PYTHON) -m server check-ports $(PLAN_INPUTS)

# What the running door has for good: before a second package set is installed, or archives are built.
.PHONY: check-reload
check-reload: inputs
	@$(call given,PYTHON) -m server check-reload $(PLAN_INPUTS)

.PHONY: check-plan
check-plan: models
	@$(VENV_PYTHON) -m server check-plan $(PLAN_INPUTS)

.PHONY: there
there: inputs
	@[ -x $(VENV_PYTHON) ] || { echo 'refused: DRY_RUN=1 installs nothing: got no $(VENV); do: make setup'; exit 2; } >&2

# Tools of the development targets, on top of what serving needs.
.PHONY: dev
dev:
	@$(SETUP) --with dev
