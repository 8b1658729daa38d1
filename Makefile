# The one list of commands: people, README and CI use these targets. `make help` prints them.
# POSIX sh and GNU make 4 are enough; everything else is installed by `make setup`.

# Models to serve: names of folders in models/
MODELS ?= resnet50 bert
PYTHON ?= python3
RUN_DIR ?= run

# Each stack has an environment and archives of its own: .venv-current, model-store-current.
SUFFIX := $(addprefix -,$(filter-out ipex,$(STACK)))
VENV := .venv$(SUFFIX)
VENV_PYTHON := $(VENV)/bin/python
ANY_PYTHON = $(or $(wildcard $(VENV_PYTHON)),$(PYTHON))
# The table of knobs (config/knobs/table.py) judges the names that were given, here and in the environment, before
# anything runs, and says which are knobs. A Python that cannot do that says so, and stops the set-up too.
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
KNOBS := $(shell cd '$(dir $(lastword $(MAKEFILE_LIST)))' && \
	$(ANY_PYTHON) -S -E -m config.knobs check '$(MAKECMDGOALS)' '$(MAKELEVEL)' '$(GIVEN)')
$(if $(filter refused:,$(firstword $(KNOBS))),$(error $(KNOBS)))
TIMINGS = $(RUN_DIR)/timings.json
TUNED_PLAN = $(RUN_DIR)/tuned.json
PLAN_INPUTS = --models '$(MODELS)' --precision '$(PRECISION)' --backend '$(BACKEND)' --profile '$(PROFILE)' \
	--workers '$(WORKERS)' --cores-per-worker '$(CORES_PER_WORKER)' \
	--allocator '$(ALLOCATOR)' --openmp '$(OPENMP)' --port '$(PORT)' \
	--batch '$(BATCH)' --delay-ms '$(DELAY_MS)' --queue '$(QUEUE)' --slo-p99-ms '$(SLO_P99_MS)' \
	--front '$(FRONT)' --instances '$(INSTANCES)' --cores '$(CORES)' --deadline-ms '$(DEADLINE_MS)' \
	--tls-cert '$(TLS_CERT)' --tls-key '$(TLS_KEY)' \
	--topology '$(TOPOLOGY)' --run-dir '$(RUN_DIR)' $(if $(TOPOLOGY),,--timings '$(TIMINGS)') \
	$(if $(filter 0,$(TUNED)),,--tuned '$(TUNED_PLAN)')
BUILD_INPUTS = --models '$(MODELS)' --precision '$(PRECISION)' --backend '$(BACKEND)' \
	--weights '$(WEIGHTS)' --calibration '$(CALIBRATION)' --eval '$(EVAL)' --allow-pickle '$(ALLOW_PICKLE)'
# MODELS only when given: an image without archives is the default.
IMAGE_MODELS = $(if $(filter file,$(origin MODELS)),,$(MODELS))
IMAGE_INPUTS = --engine '$(ENGINE)' --tag '$(or $(IMAGE),cpu-kit:latest)' --network '$(NETWORK)' \
	--models '$(IMAGE_MODELS)'
SETUP = $(PYTHON) -m setup --stack '$(STACK)' --torch-index '$(TORCH_INDEX)'
SERVER = $(ANY_PYTHON) -m server
LOCKS := requirements$(addprefix /,$(filter-out ipex,$(STACK)))
CODE = $(wildcard config docker handlers loadtest models server setup)
LOADTEST = $(VENV_PYTHON) -m loadtest
LOAD_INPUTS = --run-dir '$(RUN_DIR)' --url '$(URL)' --scenario '$(SCENARIO)' --duration '$(DURATION)' \
	--users '$(USERS)' --rate '$(RATE)' --driver '$(DRIVER)' --payloads '$(PAYLOADS)' --processes '$(PROCESSES)'
# With --check they only judge their values: before archives are built for minutes.
TIMING = --seconds '$(SECONDS)' --repeats '$(REPEATS)' --resume '$(RESUME)'
STARTS = --store run/test-store$(SUFFIX)
TARGETS = $(LOADTEST) targets $(STARTS) $(TIMING) $(foreach row,$(TARGET),'$(row)')
LADDER = $(LOADTEST) ladder $(STARTS) $(TIMING) --model '$(MODEL)' --rungs '$(RUNGS)'
TUNE = $(LOADTEST) tune --percentile '$(PERCENTILE)' --budget-minutes '$(BUDGET_MINUTES)' \
	--payloads '$(PAYLOADS)' --resume '$(RESUME)' --grid '$(GRID)' --mix '$(MIX)'
PROFILED = $(LOADTEST) profile $(STARTS) --model '$(MODEL)' --against '$(AGAINST)' --seconds '$(SECONDS)' \
	--precision '$(PRECISION)'
SOAK = $(LOADTEST) soak $(STARTS) --minutes '$(MINUTES)'
HARM = $(LOADTEST) harm $(STARTS) --precision '$(PRECISION)' --port '$(PORT)' \
	$(foreach name,$(EXPERIMENT),'$(name)')
CHAOS = $(LOADTEST) chaos $(STARTS) $(foreach name,$(EXPERIMENT),'$(name)')
FUZZ = $(LOADTEST) fuzz $(STARTS) --precision '$(PRECISION)' --port '$(PORT)' --bodies '$(BODIES)' --seed '$(SEED)'
# With every precision: what is measured is served in several.
TEST_MODELS = resnet50 bert
BUILD_TEST_STORE = $(VENV_PYTHON) -m models build --models '$(TEST_MODELS)' --weights random --precision auto \
	--store run/test-store$(SUFFIX)
# Load goes to the server that runs, whatever its precision; one is started only where none does.
ASKED_LOAD = $(filter loadtest loadtest-ui loadtest-peak,$(MAKECMDGOALS))
NO_SERVER = $(shell $(SERVER) status --run-dir '$(RUN_DIR)' >/dev/null 2>&1 || echo serve)
SERVE_FIRST := $(if $(ASKED_LOAD),$(if $(URL),,$(NO_SERVER)))
E2E = tests/end_to_end
IMAGE_TESTS = tests/image
# The option when the switch is 1; `inputs` refuses what is neither 0 nor 1.
FLAG = $(if $(filter 1,$(1)),$(2))
# A dry run reads an environment that is there as it is: a plan is wanted, not an installation.
SETUP_TO_PLAN = $(if $(and $(filter 1,$(DRY_RUN)),$(wildcard $(VENV)/setup.json)),,setup)
# It takes no timings either, and there are none of another machine. Otherwise they come after the archives and
# before the plan.
TIMINGS_TO_PLAN = $(if $(or $(TOPOLOGY),$(filter 1,$(DRY_RUN))),,timings)

# A server is never started from half of a dry run.
DRY_RUN_BUT_NOT_CONFIG = $(and $(filter 1,$(DRY_RUN)),$(filter serve models,$(MAKECMDGOALS)))
$(if $(DRY_RUN_BUT_NOT_CONFIG),$(error DRY_RUN=1 is of `make config` alone: got make $(MAKECMDGOALS)))

MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.NOTPARALLEL:
# The values above reach the programs as arguments only. A caller's PYTHONPATH must not reach them at all.
unexport MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHONPATH PYTHONHOME PYTHONIOENCODING $(KNOBS)
# Every Python below prints and reads UTF-8, whatever the locale: `→` must not end a command in a Latin-1 one.
export PYTHONUTF8 := 1

.PHONY: help
help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@printf '\nKnobs, as in `make serve PRECISION=bf16 WORKERS=2`, with their (defaults); who reads them: docs/knobs.md\n\n'
	@$(ANY_PYTHON) -m config.knobs help

.PHONY: setup
setup: ## Install what is missing: system packages, .venv; then look for conflicts
	@$(SETUP) --backend '$(BACKEND)'

.PHONY: models
models: inputs setup ## Build what is missing, out of date or newly asked for (PRECISION) into model-store/
	@$(VENV_PYTHON) -m models build $(BUILD_INPUTS)

.PHONY: config
config: inputs $(SETUP_TO_PLAN) $(TIMINGS_TO_PLAN) ## Plan for this machine (or TOPOLOGY) and write config.properties
	@$(if $(filter 1,$(DRY_RUN)),:,$(VENV_PYTHON) -m server check-plan $(PLAN_INPUTS))
	@$(VENV_PYTHON) -m config $(PLAN_INPUTS) $(call FLAG,$(DRY_RUN),--dry-run)

.PHONY: serve
serve: check-ports config models ## All of the above, then start, wait until ready, verify, and say how to call it
	@$(VENV_PYTHON) -m server start --run-dir '$(RUN_DIR)' $(call FLAG,$(FOREGROUND),--foreground) -- $(PLAN_INPUTS)

.PHONY: reload
reload: check-reload setup models ## New archives or other knobs without losing a request, where a door is in front
	@$(VENV_PYTHON) -m server reload --run-dir '$(RUN_DIR)' -- $(PLAN_INPUTS)

.PHONY: status
status: ## Say what is running: workers, engine, precision, weights, failures
	@$(SERVER) status --run-dir '$(RUN_DIR)'

.PHONY: verify
verify: ## Compare the live workers with the plan; exit 1 on any difference
	@$(SERVER) verify --run-dir '$(RUN_DIR)' --format '$(or $(FORMAT),text)'

.PHONY: curl
curl: ## Print the lines that call the models, with a good token
	@$(SERVER) curl --run-dir '$(RUN_DIR)'

.PHONY: systemd-unit
systemd-unit: ## Print a systemd unit that serves what is planned (docs/systemd.md)
	@$(ANY_PYTHON) -m server.unit --run-dir '$(RUN_DIR)' -- $(PLAN_INPUTS)

.PHONY: stop
stop: ## Stop the server and every process of it
	@$(SERVER) stop --run-dir '$(RUN_DIR)'

.PHONY: image
image: ## Build the container image with docker, podman or buildah; MODELS= bakes archives in
	@$(PYTHON) -m docker.image build $(IMAGE_INPUTS) --stack '$(STACK)' --weights '$(WEIGHTS)' --backend '$(BACKEND)' \
		--torch-index '$(TORCH_INDEX)' --ca-file '$(CA_FILE)'

.PHONY: image-run
image-run: ## Run it in this terminal: not root, read-only, no capabilities; CPUS, CPUSET, MEMORY limit it
	@$(PYTHON) -m docker.image run $(IMAGE_INPUTS) --store '$(or $(STORE),model-store$(SUFFIX))' --port '$(PORT)' \
		--cpus '$(CPUS)' --cpuset '$(CPUSET)' --memory '$(MEMORY)' --token-file '$(TOKEN_FILE)' \
		--bind-memory '$(BIND_MEMORY)' --precision '$(PRECISION)' --backend '$(BACKEND)' --profile '$(PROFILE)' \
		--workers '$(WORKERS)' --cores-per-worker '$(CORES_PER_WORKER)' \
		--allocator '$(ALLOCATOR)' --openmp '$(OPENMP)' --batch '$(BATCH)' --delay-ms '$(DELAY_MS)' \
		--queue '$(QUEUE)' --slo-p99-ms '$(SLO_P99_MS)' --tuned '$(TUNED)' \
		--front '$(FRONT)' --instances '$(INSTANCES)' --cores '$(CORES)' --deadline-ms '$(DEADLINE_MS)' \
		--tls-cert '$(TLS_CERT)' --tls-key '$(TLS_KEY)'

.PHONY: image-test
image-test: dev ## Build the image and run it under limits and faults (10 to 30 minutes)
	@KIT_ENGINE='$(ENGINE)' KIT_NETWORK='$(NETWORK)' KIT_CA_FILE='$(CA_FILE)' KIT_STORE='$(STORE)' \
		KIT_TORCH_INDEX='$(TORCH_INDEX)' KIT_PORT='$(PORT)' $(VENV_PYTHON) -m pytest $(IMAGE_TESTS) -v -s

.PHONY: test
test: test-unit test-e2e ## Run all tests

# Without the pool: where Triton is installed, whoever imports IPEX starts a process of 600 MB that compiles nothing
# here (torch/_inductor/async_compile.py).
.PHONY: test-unit
test-unit: dev ## Run the tests that need no server
	@TORCH_WARM_POOL=0 $(VENV_PYTHON) -m pytest tests --ignore=$(E2E) --ignore=$(IMAGE_TESTS) \
		-n auto --dist loadfile --no-loadscope-reorder

.PHONY: test-e2e
test-e2e: dev ## Run the tests that talk to a real TorchServe
	@[ ! -d $(E2E) ] || $(VENV_PYTHON) -m pytest $(E2E)

CURRENT_TESTS = tests/config/test_launcher.py tests/config/test_stacks.py $(E2E)/test_current.py \
	tests/handlers/engines/test_engines.py tests/handlers/engines/test_inductor.py \
	tests/models/test_trained_engines.py

.PHONY: test-current
test-current: ## Tests of STACK=current, with the torch of its environment: launcher, engines, INT8 over REST
	@$(PYTHON) -m setup --stack current --torch-index '$(TORCH_INDEX)' --with dev
	@TORCH_WARM_POOL=0 .venv-current/bin/python -m pytest $(CURRENT_TESTS)

.PHONY: targets
targets: load-tools ## Measure the speed targets against their baselines (30 minutes; TARGET=row for one)
	@$(TARGETS) --check
	@$(BUILD_TEST_STORE)
	@$(TARGETS)

.PHONY: ceiling
ceiling: load-tools ## What one core's arithmetic allows at best, against what the models reach
	@$(LOADTEST) ceiling

ladder profile: override TEST_MODELS = $(MODEL)

.PHONY: ladder
ladder: load-tools ## What each setting is worth: MODEL=resnet50|bert|densenet121 (30 minutes); RUNGS=engines|starts: each engine
	@$(LADDER) --check
	@$(BUILD_TEST_STORE) $(if $(filter engines starts,$(RUNGS)),--backend auto)
	@$(if $(filter engines starts,$(RUNGS)),,$(BUILD_TEST_STORE) --backend inductor --precision fp32)
	@$(LADDER)

# What it finds must not depend on what it found before.
tune: override TUNED := 0

.PHONY: tune
tune: load-tools tune-inputs timings ## Find and prove the plan that serves the most within SLO_P99_MS (15 minutes a model)
	@$(TUNE) -- $(PLAN_INPUTS)

.PHONY: tune-inputs
tune-inputs:
	@$(TUNE) --check -- $(PLAN_INPUTS)

.PHONY: profile
profile: load-tools ## Why it is faster: MODEL=resnet50|bert beside AGAINST=stock|off|a RUN_DIR, threads to primitives (11 minutes)
	@$(PROFILED) --check
	@$(BUILD_TEST_STORE)
	@$(PROFILED)

.PHONY: soak
soak: load-tools ## Both models behind the door at 80 % of their peak for ten minutes: do memory and latency stay?
	@$(SOAK) --check
	@$(BUILD_TEST_STORE)
	@$(SOAK)

.PHONY: harm
harm: load-tools ## Overload, dear bodies, lost workers: does the server stand? (10 minutes; EXPERIMENT=name for one)
	@$(HARM) --check
	@$(BUILD_TEST_STORE)
	@$(HARM)

.PHONY: chaos
chaos: load-tools ## Fault after fault under load: who is answered, when is all well again? (15 minutes; EXPERIMENT=name)
	@$(CHAOS) --check
	@$(BUILD_TEST_STORE)
	@$(CHAOS)

.PHONY: fuzz
fuzz: dev ## Send 5,500 broken bodies; exit 1 on any 5xx, lost worker or grown memory (5 minutes)
	@$(FUZZ) --check
	@$(BUILD_TEST_STORE)
	@$(FUZZ)

.PHONY: report
report: load-tools ## Tables and pages of kept results again: the latest, or RESULT; OUTPUT=docs writes Markdown
	@$(LOADTEST) report --output '$(OUTPUT)' $(foreach result,$(RESULT),'$(result)')

.PHONY: loadtest
loadtest: load-tools $(SERVE_FIRST) ## Measure throughput and latency of the running server (6 minutes)
	@$(LOADTEST) run $(LOAD_INPUTS)

.PHONY: loadtest-ui
loadtest-ui: load-tools $(SERVE_FIRST) ## The same load with Locust's own web page
	@$(LOADTEST) ui $(LOAD_INPUTS)

.PHONY: loadtest-peak
loadtest-peak: load-tools $(SERVE_FIRST) ## Search the highest rate whose p99 keeps SLO_P99_MS
	@$(LOADTEST) peak $(LOAD_INPUTS) --slo-p99-ms '$(SLO_P99_MS)'

.PHONY: loadtest-gate
loadtest-gate: load-tools ## Two running servers, RUN_DIRs A and B, in turns: fail on a regression
	@$(LOADTEST) gate $(LOAD_INPUTS) --a '$(A)' --b '$(B)' --bound '$(BOUND)' --pairs '$(PAIRS)'

.PHONY: compare
compare: load-tools ## Two results, A and B, side by side: fail on a regression
	@$(LOADTEST) compare --a '$(A)' --b '$(B)' --bound '$(BOUND)'

.PHONY: load-tools
load-tools: ## Install what the load tests need (for a machine that only sends)
	@$(SETUP) --with loadtest

.PHONY: lint
lint: dev ## Check style, format and types
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy $(CODE)

.PHONY: format
format: dev ## Rewrite the sources in the common format
	@$(VENV_PYTHON) -m ruff check --fix-only --quiet .
	@$(VENV_PYTHON) -m ruff format .

.PHONY: audit
audit: ## Known holes of what is installed, and which are accepted why (exit 3: PyPI cannot be asked)
	@$(SETUP) --with audit
	@$(VENV_PYTHON) -m server.audit

.PHONY: lock
lock: dev ## Renew constraints.txt and hashes/ of STACK after a change in requirements/
	@$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check uv
	@UV_PYTHON_DOWNLOADS=never $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 --no-header --annotation-style line \
		$(filter-out %/constraints.txt,$(wildcard $(LOCKS)/*.txt)) -o $(LOCKS)/constraints.txt
	@unhashed=$$(grep -oE '^((cuda|nvidia)-[a-z0-9-]+|triton|torch|torchvision)==' $(LOCKS)/constraints.txt | \
		sed 's/==//; s/^/--no-emit-package /') && \
	for set in $(filter-out constraints,$(basename $(notdir $(wildcard $(LOCKS)/*.txt)))); do \
		UV_PYTHON_DOWNLOADS=never $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 --no-header \
			--no-annotate --generate-hashes $$unhashed -c $(LOCKS)/constraints.txt \
			$(LOCKS)/$$set.txt -o $(LOCKS)/hashes/$$set.txt || exit 1; \
	done

.PHONY: clean
clean: ## Stop the server, remove built archives and the kit's files in RUN_DIR; keep .venv and tuned.json
	@$(SERVER) clean --run-dir '$(RUN_DIR)'
	@rm -rf -- model-store$(SUFFIX)/*.mar model-store$(SUFFIX)/*.part .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: distclean
distclean: clean ## As clean, and remove .venv
	@$(SETUP) --unused
	@rm -rf -- $(VENV)

# Judge the values at once, before anything long runs.
.PHONY: inputs
inputs:
	@$(SETUP) --inputs \
		--foreground '$(FOREGROUND)' --dry-run '$(DRY_RUN)' --tuned '$(TUNED)' -- $(PLAN_INPUTS)
	@$(PYTHON) -m models check $(BUILD_INPUTS)

# What batches, and auto, go by. Not beside a server that would have to be stopped anyway.
.PHONY: timings
timings: inputs setup check-plan models
	@job=$$($(VENV_PYTHON) -m config $(PLAN_INPUTS) --timing-job) && \
		$(VENV_PYTHON) -m models time --job "$$job" --output '$(TIMINGS)'

# What PORT and RUN_DIR alone can tell: before anything is installed, built or written.
.PHONY: check-ports
check-ports: inputs
	@$(PYTHON) -m server check-ports $(PLAN_INPUTS)

# What the running door has for good: before a second stack is installed, or archives are built.
.PHONY: check-reload
check-reload: inputs
	@$(PYTHON) -m server check-reload --stack '$(STACK)' $(PLAN_INPUTS)

.PHONY: check-plan
check-plan:
	@$(VENV_PYTHON) -m server check-plan $(PLAN_INPUTS)

# Tools of the development targets, on top of what serving needs.
.PHONY: dev
dev:
	@$(SETUP) --with dev
