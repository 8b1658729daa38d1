# Targets are commands of `python3 -m setup`, which completes the environment as far as one needs it, and runs it there.
# Settings are NAME=VALUE on the command line: docs/settings.md.
# A value becomes a quoted word of a command and is never expanded as text of make: only `value` names one.
quote = '$(subst ','\'',$(1))'
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
define NEWLINE


endef
$(foreach name,$(GIVEN),$(if $(findstring $(NEWLINE),$(value $(name))),\
	$(error $(name) must be one line: got $(value $(name)))))
# Below another make the command line holds that one's values too, which are no business of ours.
GOALS := $(if $(filter 0,$(MAKELEVEL)),--goals=$(MAKECMDGOALS),--below)
SETTINGS = $(call quote,$(GOALS)) $(foreach name,$(GIVEN),$(call quote,$(name)=$(value $(name))))
# What only looks at a server, or ends it, runs by the environment that is there.
CHOSEN = $(or $(if $(filter command,$(origin PYTHON)),$(value PYTHON)),$(value KIT_PYTHON),python3)
LOOK = @$(call quote,$(or $(firstword $(wildcard .venv/bin/python .venv-current/bin/python)),$(CHOSEN))) -m setup
RUN = @$(call quote,$(CHOSEN)) -m setup
CURRENT = tests/config/test_launcher.py tests/config/test_backends.py tests/handlers/backends/test_backends.py \
	tests/handlers/backends/test_inductor.py tests/models/test_trained_backends.py tests/models/test_trained_embeddings.py
COMMANDS = serve reload models model plan tune profile loadtest compare image setup doctor loadtest-ui loadtest-slo \
	loadtest-gate soak ablation benchmark report audit load-tools benchmark-tools dev
.PHONY: $(COMMANDS) help help-dev status verify stop clean distclean test test-unit test-e2e test-reliability \
	test-current test-current-quick test-fleet image-test lint docs format lock
MAKEFLAGS += --no-print-directory --no-builtin-rules
.NOTPARALLEL:
# Values reach programs as arguments only, a caller's PYTHONPATH not at all. Without byte code workers compile torch anew.
unexport $(GIVEN) MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHONPATH PYTHONHOME PYTHONIOENCODING PYTHONDONTWRITEBYTECODE PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_CONSTRAINT
# Whatever the locale: `→` must not end a command in a Latin-1 one.
export PYTHONUTF8 := 1

help: #- Print what people use
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@printf '\nSettings, as in `make serve PRECISION=bf16 WORKERS=2`, with their (defaults)\n\n'
	$(LOOK) help
	@printf '\nAll settings: docs/settings.md; the other commands: make help-dev\n'
help-dev: #- Print the commands for who works on the kit, and all settings
	@awk 'BEGIN { FS = ":.*#- " } /^[a-z0-9-]+:.*#- / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile
	@printf '\nSettings, with their (defaults); who reads them: docs/settings.md\n\n'
	$(LOOK) help all

serve: ## Build what is missing, plan, start, wait until ready, verify, and say how to call it
reload: ## Move to new archives or other settings without losing a request
models: ## Build what is missing, out of date or newly given (PRECISION, BACKEND) into model-store/
model: ## Write models/<name>/model.yaml for a Hugging Face folder, or a state dict: FROM=/data/ticket-router
plan: ## Print the plan for this machine (or TOPOLOGY) with all reasons; builds and writes nothing
tune: ## Find the plan that serves the most within SLO_P99_MS, by live A/B (15 minutes a model)
profile: ## Profile MODELS=resnet50|bert beside stock TorchServe, threads to operators; ARGS="--against off" (11 minutes)
loadtest: ## Measure throughput and latency of the running server (6 minutes)
compare: ## Compare two results, ARGS="--a X --b Y": fail on a regression
image: ## Build the container image with docker (docs/docker.md); MODELS= with WEIGHTS= bakes archives in
setup: #- Install what is missing: system packages, .venv
doctor: #- Say what the machine lacks, and install nothing
loadtest-ui: #- Run the same load from Locust's own web page
loadtest-slo: #- Search the highest rate whose p99 keeps SLO_P99_MS
loadtest-gate: #- Compare two running servers in turns, ARGS="--a RUN_DIR --b RUN_DIR": fail on a regression
soak: #- 10-minute soak test of the running server at 80 % of its peak: memory and latency must not grow
ablation: #- Measure what each setting brings: MODELS=resnet50|bert; ARGS="--steps backends": each backend (30 minutes)
benchmark: #- Measure beside plain TorchServe and LitServe with OpenVINO; make benchmark-tools before (50 minutes a model)
report: #- Render the tables and the page of a saved result again: the latest, or ARGS="RESULT…"
audit: #- List known vulnerabilities of what is installed (exit 3: no advisories can be reached)
$(COMMANDS):
	$(RUN) $@ $(SETTINGS)
status: ## Say what runs: workers, weights, failures, ports, and lines that call the models
verify: ## Compare the live workers with the plan; exit 1 on any difference
stop: ## Stop the server and every process of it
status verify stop:
	$(LOOK) $@ $(SETTINGS)
clean: #- Stop the server, remove built archives and the kit's files in RUN_DIR; keep .venv and tuned.json
	$(LOOK) $@ $(SETTINGS)
	@rm -rf -- model-store*/*.mar model-store*/*.part .pytest_cache .mypy_cache .ruff_cache .hypothesis
distclean: clean #- As clean, and remove .venv, .venv-current, .venv-fleet
	$(RUN) $@ $(SETTINGS)
	@rm -rf -- .venv .venv-current .venv-fleet
test: test-unit test-e2e #- Run all tests
# Without the pool: with Triton, whoever imports IPEX starts 600 MB that compile nothing (torch/_inductor/async_compile.py).
test-unit: dev #- Run the tests that need no server
	@TORCH_WARM_POOL=0 .venv/bin/python -m pytest tests $(addprefix --ignore=tests/,end_to_end fleet image reliability) -n auto --dist loadfile --no-loadscope-reorder
test-e2e: dev #- Run the tests that talk to a real TorchServe
	@.venv/bin/python -m pytest tests/end_to_end
	@.venv/bin/python -m pytest tests/reliability -m quick
test-reliability: dev #- Faults under load, hostile requests, 5,500 broken bodies (20 minutes)
	@.venv/bin/python -m pytest tests/reliability
test-current: #- Tests of the package set of OpenVINO and inductor: launcher, backends, INT8 over REST
	$(RUN) $@ $(SETTINGS)
	@TORCH_WARM_POOL=0 .venv-current/bin/python -m pytest $(if $(QUICK),,$(CURRENT)) tests/end_to_end/test_current.py
test-current-quick: QUICK := 1
test-current-quick: test-current #- Of these the one that serves INT8 by OpenVINO
test-fleet: dev #- Clients of standard protocols, Kubernetes manifests, a Docker Swarm of three hosts (15 minutes)
	@.venv/bin/python -m pytest tests/fleet -v
image-test: dev #- Build the image and run it under limits and faults (tests/image/conftest.py says with what)
	@.venv/bin/python -m pytest tests/image -v -s
lint: dev #- Check style, format and types
	@.venv/bin/python -m ruff check . && .venv/bin/python -m ruff format --check . && .venv/bin/python -m mypy config deploy docker handlers loadtest models server setup
docs: dev #- Write the parts of docs/ that are made from code
	@.venv/bin/python -m tests.docs.write
format: dev #- Rewrite the sources in the common format
	@.venv/bin/python -m ruff check --fix-only --quiet . && .venv/bin/python -m ruff format .
lock: dev #- Renew the locked files of requirements/ after a change in one of its *.in
	@sh requirements/lock.sh .venv/bin/uv
