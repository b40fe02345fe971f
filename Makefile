# `make run` and `make test` install what they need. They need Python 3.11 to 3.13 and make.

VENV := .venv
BIN := $(VENV)/bin

# The Python that creates the environment: the first with ensurepip and venv, else the first of a supported version.
# To choose another: make run PYTHON=/opt/python3.12/bin/python3
CANDIDATES := python3 python3.13 python3.12 python3.11
VERSION_WILL_DO := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell \
	for needed in 'import ensurepip, venv; ' ''; do \
		for python in $(CANDIDATES); do \
			if $$python -c "$${needed}$(VERSION_WILL_DO)" 2>/dev/null; then echo $$python; exit; fi; \
		done; \
	done)

# Installs the versions that requirements/NAME.txt lists: $(call locked,NAME,FLAGS). With `make LOCKED= VENV=.venv/newest test`
# the newest that pyproject.toml allows are installed instead.
LOCKED := yes
locked = $(if $(LOCKED),$(BIN)/python -m pip install --no-deps $(2) --requirement requirements/$(1).txt)

# What `make run` installs beside the plain package: the options of docs/quickstart.md.
RUN_EXTRAS := glossary system-audio
comma := ,
space := $(subst ,, )

# Installs system packages as root; otherwise prints how to install them: $(call system_packages,NAMES,REASON)
system_packages = \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -q && apt-get install -y -q --no-install-recommends $(1); \
	else \
		echo "$(2): install it, on Debian and Ubuntu with: sudo apt-get install $(1)" >&2; \
		false; \
	fi

# Write bytecode even if the environment forbids it: tests start many processes, which would each compile every module.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run quick test style types tests real agents npu bench documents hooks lock dist clean

help: ## List the commands
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo "Another Python: make run PYTHON=/opt/python3.12/bin/python3. More: CONTRIBUTING.md."

run: $(VENV)/.portaudio ## Start the daemon on the microphone; more flags in ARGS='--port 9000'
	@echo "The program is $(BIN)/streamer; source $(BIN)/activate puts it on the PATH of a terminal."
	@$(BIN)/streamer run --config config.yaml --fallback examples/kennedy.flac $(ARGS)

quick: WHICH := -m 'not slow'
quick: style types tests ## All except the tests marked slow

test: style types tests ## Everything that must pass

style: $(VENV)/.test ## Lint and layout
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test ## Static types
	$(BIN)/mypy

tests: $(VENV)/.test $(VENV)/.portaudio ## All tests; some of them with ARGS='tests/unit/audio -k mel'
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(WHICH) $(ARGS)

# REAL_WEIGHTS=DIR uses DIR/tiny.en and DIR/base.
real: $(VENV)/.test $(if $(REAL_WEIGHTS),,$(VENV)/.real) ## Compare published weights with other programs; fetches them once
	$(BIN)/pytest -m real tests/reference/published $(ARGS)

agents: $(VENV)/.agents ## Test the plugins for Pipecat and LiveKit Agents, in an environment of their own
	$(VENV)/agents/bin/python -m pytest tests/plugins/agents/test_pipecat.py tests/plugins/agents/test_livekit.py $(ARGS)

npu: $(VENV)/.test ## Compile graphs for Intel's NPUs without one, under wine64; models in ARGS='base tiny.en'
	$(BIN)/python -m tools.npu $(or $(ARGS),base tiny.en)

bench: $(VENV)/.test ## Measure delay, flicker and cost; more with ARGS='sessions --corpus DIR'
	$(BIN)/python tools/benchmark.py $(or $(ARGS),stream)

hooks: $(VENV)/.test ## Let git check style and types before each commit
	$(BIN)/python -m pip install 'pre-commit>=4.0'
	$(BIN)/pre-commit install

documents: $(VENV)/.test ## Generate config.yaml, its schema, the tables of docs/, streamer.1, the sentences of refusals
	$(BIN)/python -m tools.documents
	$(BIN)/pytest --quiet --rewrite-refusals --ignore=tests/reference tests

lock: $(VENV)/.created ## Renew requirements/: the newest versions that pyproject.toml allows, with digests
	$(BIN)/python -m pip install --upgrade uv
	$(BIN)/uv pip compile --quiet --upgrade --extra test --output-file requirements/test.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --constraint requirements/test.txt $(RUN_EXTRAS:%=--extra %) \
		--output-file requirements/run.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --no-deps --group apart --output-file requirements/apart.txt

dist: $(VENV)/.created ## Build wheel, source archive and bill of materials (CycloneDX, of what requirements/run.txt locks) in dist/
	$(BIN)/python -m pip install --upgrade uv 'cyclonedx-bom>=7'
	rm -rf dist
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/uv build --out-dir dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file dist/streamer-captions.cdx.json requirements/run.txt

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find streamer tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: a step is repeated only when what it depends on changes.

$(VENV)/.created:
	@set -e; \
	python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
		echo "no Python 3.11 to 3.13 found: install one, or name it with make PYTHON=..." >&2; \
		exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
		version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$(call system_packages,python$$version-venv,Python's venv module is missing); \
	fi; \
	echo "Making the environment $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.created pyproject.toml requirements/run.txt
	$(call locked,run)
	$(BIN)/python -m pip install $(if $(LOCKED),--no-deps) --editable '.[$(subst $(space),$(comma),$(RUN_EXTRAS))]'
	@touch $@

$(VENV)/.test: $(VENV)/.created pyproject.toml requirements/test.txt requirements/apart.txt
	@# Not compiled: of torch and transformers most modules are never imported.
	$(call locked,test,--no-compile)
	@# Only torch is not locked. Its builds for CPUs and for CUDA have the same version and different digests.
	$(BIN)/python -m pip install --no-compile --editable '.[test]'
	$(BIN)/python -m pip install --no-deps --upgrade --target $(VENV)/apart --requirement requirements/apart.txt
	@touch $(VENV)/.run $@

$(VENV)/.real: $(VENV)/.test
	$(BIN)/streamer models pull tiny.en
	$(BIN)/streamer models pull base
	@touch $@

# Pipecat needs older versions of some packages than are locked. What it does not need is the tests' own.
$(VENV)/.agents: $(VENV)/.test
	$(BIN)/python -m venv $(VENV)/agents
	tests=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "$$tests" > $$($(VENV)/agents/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth
	$(VENV)/agents/bin/python -m pip install --no-compile --editable '.[pipecat,livekit]'
	@touch $@

# Only the microphone needs PortAudio: a failure is printed and stops nothing.
$(VENV)/.portaudio: $(VENV)/.run
	@if $(BIN)/python -c 'import sounddevice' 2>/dev/null \
		|| { $(call system_packages,libportaudio2,The PortAudio library is missing and no microphone can be used); }; \
	then touch $@; fi
