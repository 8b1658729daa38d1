# The one list of commands: people, README and CI use these targets. `make help` prints them.
# POSIX sh and GNU make 4 are enough; everything else is installed by `make setup`.

# Models to serve: names of folders in models/
MODELS ?= resnet50 bert
PYTHON ?= python3
RUN_DIR ?= run

#? MODELS            names of folders in models/            (resnet50 bert)
#? PRECISION         fp32 | bf16 | int8 | auto              (fp32)
#?                   auto: timed here, the fastest that passed the accuracy gate, for each model
#? PROFILE           throughput | latency                   (throughput)
#? WORKERS           workers per model, 1 or more           (from the machine)
#? CORES_PER_WORKER  physical cores of one worker           (from the machine)
#? ALLOCATOR         jemalloc | tcmalloc | system           (jemalloc)
#? OPENMP            intel | gnu                            (intel)
#? PORT              the REST port; the four after it too   (8080)
#? WEIGHTS           auto | pretrained | random | a path    (auto)
#? CALIBRATION       a path: inputs INT8 scales come from   (synthetic)
#? EVAL              a path: held-out inputs for the gate   (synthetic)
#?                   these three for single models: WEIGHTS=resnet50=PATH,bert=random
#? ALLOW_PICKLE      1: read .pt, .pth, .bin without a process of their own (0)
#? RUN_DIR           plan, state and logs of one server     (run)
#? FOREGROUND        1: keep the server in this terminal    (0: in the background)
#? TOPOLOGY          folder of a recorded machine           (this machine)
#? DRY_RUN           1: `make config` prints, writes nothing (0)
#? FORMAT            text | json, for `make verify`         (text)
#? TARGET            rows of `make targets`                 (all)
#? MODEL             of `make ladder`: resnet50 | bert       (none)
#? RESUME            a ladder that was cut off, or latest   (a new one)
#? SECONDS, REPEATS  of each turn of the ladder             (3.75, 3)
#? RESULT OUTPUT     ladder and folder of its report        (latest; terminal only)
#? REQUESTS          of `make soak`, 1004 or more           (20000)
#? EXPERIMENT        names of `make harm`                  (all)
#? BODIES SEED       how many of `make fuzz`, which ones    (5500, 7)
#? SCENARIO          names in loadtest/scenarios, or files   (all that fit)
#? DURATION, USERS, RATE, DRIVER, PAYLOADS, PROCESSES  change one thing of a scenario (see README)
#? SLO_P99_MS        the limit `make loadtest-peak` searches for
#? A, B              two results, or two RUN_DIRs for the gate; BOUND (0.05), PAIRS (10)
#? TORCH_INDEX       an index's address | default           (CPU-only wheels if reachable)
#? IMAGE             the container image's name             (cpu-kit:latest)
#? ENGINE            docker | podman | buildah              (the first that answers)
#? CPUS CPUSET MEMORY  limits of `make image-run`           (none)
#? TOKEN_FILE        the token of `make image-run`          (made anew)
#? STORE             archives `make image-run` mounts       (model-store)
#? BIND_MEMORY       1: CAP_SYS_NICE, to bind memory        (0)
#? NETWORK CA_FILE   of downloads in `make image`           (engine's; none)
#? PYTHON            Python 3.10-3.13 for the environment   (python3)

VENV_PYTHON := .venv/bin/python
AUTO = $(filter auto,$(PRECISION))
TIMINGS = $(RUN_DIR)/timings.json
PLAN_INPUTS = --models '$(MODELS)' --precision '$(PRECISION)' --profile '$(PROFILE)' \
	--workers '$(WORKERS)' --cores-per-worker '$(CORES_PER_WORKER)' \
	--allocator '$(ALLOCATOR)' --openmp '$(OPENMP)' --port '$(PORT)' \
	--topology '$(TOPOLOGY)' --run-dir '$(RUN_DIR)' $(if $(AUTO),--timings '$(TIMINGS)')
WEIGHTS_INPUTS = --models '$(MODELS)' --weights '$(WEIGHTS)' --calibration '$(CALIBRATION)' --eval '$(EVAL)' \
	--allow-pickle '$(ALLOW_PICKLE)'
# MODELS only when given: an image without archives is the default.
IMAGE_MODELS = $(if $(filter file,$(origin MODELS)),,$(MODELS))
IMAGE_INPUTS = --engine '$(ENGINE)' --tag '$(or $(IMAGE),cpu-kit:latest)' --network '$(NETWORK)' \
	--models '$(IMAGE_MODELS)'
SETUP = $(PYTHON) -m server.setup --torch-index '$(TORCH_INDEX)'
SERVER = $(or $(wildcard $(VENV_PYTHON)),$(PYTHON)) -m server
CODE = $(wildcard config docker handlers loadtest models server)
LOADTEST = $(VENV_PYTHON) -m loadtest
LOAD_INPUTS = --run-dir '$(RUN_DIR)' --url '$(URL)' --scenario '$(SCENARIO)' --duration '$(DURATION)' \
	--users '$(USERS)' --rate '$(RATE)' --driver '$(DRIVER)' --payloads '$(PAYLOADS)' --processes '$(PROCESSES)'
# With --check they only judge their values: before archives are built for minutes.
TARGETS = $(VENV_PYTHON) -m loadtest.targets --store run/test-store $(foreach row,$(TARGET),'$(row)')
SOAK = $(VENV_PYTHON) -m loadtest.soak --store run/test-store $(if $(REQUESTS),--requests '$(REQUESTS)')
HARM_INPUTS = --store run/test-store $(if $(PRECISION),--precision '$(PRECISION)') $(if $(PORT),--port '$(PORT)')
HARM = $(VENV_PYTHON) -m loadtest.harm $(HARM_INPUTS) $(foreach name,$(EXPERIMENT),'$(name)')
FUZZ = $(VENV_PYTHON) -m loadtest.harm.fuzz $(HARM_INPUTS) \
	$(if $(BODIES),--bodies '$(BODIES)') $(if $(SEED),--seed '$(SEED)')
LADDER = $(VENV_PYTHON) -m loadtest.ladder --store run/test-store --model '$(MODEL)' --resume '$(RESUME)' \
	$(if $(SECONDS),--seconds '$(SECONDS)') $(if $(REPEATS),--repeats '$(REPEATS)')
# Load goes to the server that runs, whatever its precision; one is started only where none does.
ASKED_LOAD = $(filter loadtest loadtest-ui loadtest-peak,$(MAKECMDGOALS))
NO_SERVER = $(shell $(SERVER) status --run-dir '$(RUN_DIR)' >/dev/null 2>&1 || echo serve)
SERVE_FIRST := $(if $(ASKED_LOAD),$(if $(URL),,$(NO_SERVER)))
E2E = tests/end_to_end
IMAGE_TESTS = tests/image
# The option when the switch is 1; `inputs` refuses what is neither 0 nor 1.
FLAG = $(if $(filter 1,$(1)),$(2))
# A dry run reads an environment that is there as it is: a plan is wanted, not an installation.
SETUP_TO_PLAN = $(if $(and $(filter 1,$(DRY_RUN)),$(wildcard .venv/setup.json)),,setup)
# It takes no timings either. Otherwise they come after the archives and before the plan.
TIMINGS_TO_PLAN = $(if $(AUTO),$(if $(filter 1,$(DRY_RUN)),,timings))

# A server is never started from half of a dry run.
DRY_RUN_BUT_NOT_CONFIG = $(and $(filter 1,$(DRY_RUN)),$(filter serve models,$(MAKECMDGOALS)))
$(if $(DRY_RUN_BUT_NOT_CONFIG),$(error DRY_RUN=1 is of `make config` alone: got make $(MAKECMDGOALS)))

MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.NOTPARALLEL:
# The values above reach the programs as arguments only. A caller's PYTHONPATH must not reach them at all.
unexport MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHONPATH PYTHONHOME PYTHONIOENCODING PYTHON
unexport MODELS PRECISION PROFILE WORKERS CORES_PER_WORKER ALLOCATOR OPENMP PORT WEIGHTS CALIBRATION EVAL
unexport ALLOW_PICKLE RUN_DIR
unexport FOREGROUND TOPOLOGY DRY_RUN FORMAT TARGET REQUESTS TORCH_INDEX
unexport MODEL RESUME SECONDS REPEATS RESULT OUTPUT EXPERIMENT BODIES SEED
unexport IMAGE ENGINE CPUS CPUSET MEMORY TOKEN_FILE STORE BIND_MEMORY NETWORK CA_FILE
# Every Python below prints and reads UTF-8, whatever the locale: `→` must not end a command in a Latin-1 one.
export PYTHONUTF8 := 1
unexport SCENARIO DURATION USERS RATE DRIVER PAYLOADS PROCESSES SLO_P99_MS A B BOUND PAIRS URL

.PHONY: help
help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@printf '\nValues, as in `make serve PRECISION=bf16 WORKERS=2`, with their (defaults):\n'
	@sed -n 's/^#? /  /p' Makefile

.PHONY: setup
setup: ## Install what is missing: system packages, .venv; then look for conflicts
	@$(SETUP)

.PHONY: models
models: inputs setup ## Build the archives that are missing or out of date into model-store/
	@$(VENV_PYTHON) -m models build $(WEIGHTS_INPUTS)

.PHONY: config
config: inputs $(SETUP_TO_PLAN) $(TIMINGS_TO_PLAN) ## Plan for this machine (or TOPOLOGY) and write config.properties
	@$(if $(filter 1,$(DRY_RUN)),:,$(VENV_PYTHON) -m server check-plan $(PLAN_INPUTS))
	@$(VENV_PYTHON) -m config $(PLAN_INPUTS) $(call FLAG,$(DRY_RUN),--dry-run)

.PHONY: serve
serve: check-ports config models ## All of the above, then start, wait until ready, verify, and say how to call it
	@$(VENV_PYTHON) -m server start --run-dir '$(RUN_DIR)' $(call FLAG,$(FOREGROUND),--foreground) -- $(PLAN_INPUTS)

.PHONY: status
status: ## Say what is running: workers, weights, precision, failures
	@$(SERVER) status --run-dir '$(RUN_DIR)'

.PHONY: verify
verify: ## Compare the live workers with the plan; exit 1 on any difference
	@$(SERVER) verify --run-dir '$(RUN_DIR)' --format '$(or $(FORMAT),text)'

.PHONY: curl
curl: ## Print the lines that call the models, with a good token
	@$(SERVER) curl --run-dir '$(RUN_DIR)'

.PHONY: stop
stop: ## Stop the server and every process of it
	@$(SERVER) stop --run-dir '$(RUN_DIR)'

.PHONY: image
image: ## Build the container image with docker, podman or buildah; MODELS= bakes archives in
	@$(PYTHON) -m docker.image build $(IMAGE_INPUTS) --weights '$(WEIGHTS)' --torch-index '$(TORCH_INDEX)' \
		--ca-file '$(CA_FILE)'

.PHONY: image-run
image-run: ## Run it in this terminal: not root, read-only, no capabilities; CPUS, CPUSET, MEMORY limit it
	@$(PYTHON) -m docker.image run $(IMAGE_INPUTS) --store '$(or $(STORE),model-store)' --port '$(PORT)' \
		--cpus '$(CPUS)' --cpuset '$(CPUSET)' --memory '$(MEMORY)' --token-file '$(TOKEN_FILE)' \
		--bind-memory '$(BIND_MEMORY)' --precision '$(PRECISION)' --profile '$(PROFILE)' \
		--workers '$(WORKERS)' --cores-per-worker '$(CORES_PER_WORKER)' \
		--allocator '$(ALLOCATOR)' --openmp '$(OPENMP)'

.PHONY: image-test
image-test: dev ## Build the image and run it under limits and faults (10 to 30 minutes)
	@KIT_ENGINE='$(ENGINE)' KIT_NETWORK='$(NETWORK)' KIT_CA_FILE='$(CA_FILE)' KIT_STORE='$(STORE)' \
		KIT_TORCH_INDEX='$(TORCH_INDEX)' KIT_PORT='$(PORT)' $(VENV_PYTHON) -m pytest $(IMAGE_TESTS) -v -s

.PHONY: test
test: test-unit test-e2e ## Run all tests

.PHONY: test-unit
test-unit: dev ## Run the tests that need no server
	@$(VENV_PYTHON) -m pytest tests --ignore=$(E2E) --ignore=$(IMAGE_TESTS)

.PHONY: test-e2e
test-e2e: dev ## Run the tests that talk to a real TorchServe
	@[ ! -d $(E2E) ] || $(VENV_PYTHON) -m pytest $(E2E)

.PHONY: compare-stock
compare-stock: ## Measure ResNet-50 over REST against plain TorchServe (7 minutes)
	@$(SETUP) --with loadtest
	@$(VENV_PYTHON) -m models build --models resnet50 --weights random --store run/test-store
	@$(VENV_PYTHON) -m loadtest.targets --store run/test-store resnet50-fp32 resnet50-bf16

.PHONY: targets
targets: ## Measure the speed targets against their baselines (25 minutes; TARGET=row for one)
	@$(SETUP) --with loadtest
	@$(TARGETS) --check
	@$(VENV_PYTHON) -m models build --models 'resnet50 bert' --weights random --store run/test-store
	@$(TARGETS)

.PHONY: ceiling
ceiling: load-tools ## What one core's arithmetic allows at best, against what the models reach
	@$(VENV_PYTHON) -m loadtest.ceiling

.PHONY: ladder
ladder: ## What each setting is worth, one after the other: MODEL=resnet50|bert (25 minutes; RESUME=latest)
	@$(SETUP) --with loadtest
	@$(LADDER) --check
	@$(VENV_PYTHON) -m models build --models 'resnet50 bert' --weights random --store run/test-store
	@$(LADDER)

.PHONY: ladder-report
ladder-report: load-tools ## Its table again; with OUTPUT=docs as Markdown and PNG
	@$(VENV_PYTHON) -m loadtest.ladder --report '$(or $(RESULT),latest)' --model '$(MODEL)' --output '$(OUTPUT)'

.PHONY: soak
soak: ## Send 20,000 mixed requests; exit 1 when the workers' memory grows beyond 5 %
	@$(SETUP) --with loadtest
	@$(SOAK) --check
	@$(VENV_PYTHON) -m models build --models 'resnet50 bert' --weights random --store run/test-store
	@$(SOAK)

.PHONY: harm
harm: ## Overload, dear bodies, lost workers: does the server stand? (10 minutes; EXPERIMENT=name for one)
	@$(SETUP) --with loadtest
	@$(HARM) --check
	@$(VENV_PYTHON) -m models build --models 'resnet50 bert' --weights random --store run/test-store
	@$(HARM)

.PHONY: fuzz
fuzz: dev ## Send 5,500 broken bodies; exit 1 on any 5xx, lost worker or grown memory (5 minutes)
	@$(FUZZ) --check
	@$(VENV_PYTHON) -m models build --models 'resnet50 bert' --weights random --store run/test-store
	@$(FUZZ)

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
load-tools:
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
lock: dev ## Renew requirements/constraints.txt and hashes/ after a change in requirements/
	@$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check uv
	@UV_PYTHON_DOWNLOADS=never .venv/bin/uv pip compile --quiet --universal --python-version 3.10 --no-header --annotation-style line \
		$(filter-out %/constraints.txt,$(wildcard requirements/*.txt)) -o requirements/constraints.txt
	@unhashed=$$(grep -oE '^(nvidia-[a-z0-9-]+|triton|torch|torchvision)==' requirements/constraints.txt | \
		sed 's/==//; s/^/--no-emit-package /') && \
	for set in $(filter-out constraints,$(basename $(notdir $(wildcard requirements/*.txt)))); do \
		UV_PYTHON_DOWNLOADS=never .venv/bin/uv pip compile --quiet --universal --python-version 3.10 --no-header \
			--no-annotate --generate-hashes $$unhashed -c requirements/constraints.txt \
			requirements/$$set.txt -o requirements/hashes/$$set.txt || exit 1; \
	done

.PHONY: clean
clean: ## Stop the server, remove built archives and the kit's files in RUN_DIR; keep .venv
	@$(SERVER) clean --run-dir '$(RUN_DIR)'
	@rm -rf -- model-store/*.mar model-store/*.part .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: distclean
distclean: clean ## As clean, and remove .venv
	@$(SETUP) --unused
	@rm -rf -- .venv

# Judge the values at once, before anything long runs.
.PHONY: inputs
inputs:
	@$(SETUP) --inputs --models '$(MODELS)' --format '$(FORMAT)' \
		--foreground '$(FOREGROUND)' --dry-run '$(DRY_RUN)' -- $(PLAN_INPUTS)
	@$(PYTHON) -m models check $(WEIGHTS_INPUTS)

# What PRECISION=auto goes by. Not beside a server that would have to be stopped anyway.
.PHONY: timings
timings: inputs setup check-plan models
	@job=$$($(VENV_PYTHON) -m config $(PLAN_INPUTS) --timing-job) && \
		$(VENV_PYTHON) -m models time --job "$$job" --output '$(TIMINGS)'

# What PORT and RUN_DIR alone can tell: before anything is installed, built or written.
.PHONY: check-ports
check-ports: inputs
	@$(PYTHON) -m server check-ports $(PLAN_INPUTS)

.PHONY: check-plan
check-plan:
	@$(VENV_PYTHON) -m server check-plan $(PLAN_INPUTS)

# Tools of the development targets, on top of what serving needs.
.PHONY: dev
dev:
	@$(SETUP) --with dev
