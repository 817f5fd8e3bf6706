# Every target first installs what it needs into .venv; Python 3.11+ with venv and pip is all it takes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
WORKERS ?= 6
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal

ifdef UV
INSTALL := VIRTUAL_ENV=$(abspath $(VENV)) uv pip install --quiet --compile-bytecode
else
INSTALL := sh scripts/install $(BIN)/python
endif

.PHONY: run demo test test-slow check collected format bench chaos peers docs lock release clean help
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Gofer needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Could not make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.runtime: requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing Gofer into $(VENV). This takes a minute or two, once."
	@$(INSTALL) --require-hashes -r requirements.lock
	@$(INSTALL) --require-hashes -r requirements-build.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q platform integrations sandbox rehearsal supervisor
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@echo "Installing the development tools into $(VENV) …"
	@$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

run: $(VENV)/.runtime ## install, show the path of one message, then serve
	@GOFER_LOG_TO=$${GOFER_LOG_TO:-file} exec $(BIN)/gofer serve --demo

demo: $(VENV)/.runtime ## a throw-away instance: signed webhooks in, delivered replies out
	@$(BIN)/gofer demo

check: $(VENV)/.dev ## ruff, mypy strict, import contracts, names
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@PYTHONPATH=. $(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check-names

test: $(VENV)/.dev ## checks, and every test that is not slow by nature
	@$(MAKE) --no-print-directory -j2 check collected
	@$(PYTEST) -m "not slow and not chaos and not peer" $(ARGS)

test-slow: $(VENV)/.dev ## the slow tests, which tests/README.md names with reasons
	@sh scripts/browser >/dev/null || true
	@$(PYTEST) -m "slow and not chaos and not peer" $(ARGS)

# Have pytest write what it makes of the tests' code while mypy is at work.
collected: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true

format: $(VENV)/.dev ## apply ruff's fixes and formatting
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

CYCLES ?= 200

chaos: $(VENV)/.dev ## kill and stop processes under load: make chaos CYCLES=200
	@$(BIN)/pytest -n 4 --dist worksteal -m chaos -q
	@PYTHONPATH=tests $(BIN)/python -m chaos --cycles $(CYCLES) $(ARGS)

peers: $(VENV)/.dev ## try it against other people's programs, which are installed into .bench first
	@$(BIN)/pytest -m peer -q $(ARGS)

bench: $(VENV)/.dev ## every figure beside its floor or peer
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.dev ## build the documentation site into .site; a warning is an error
	@$(BIN)/zensical build --clean --strict

lock: $(VENV)/.dev ## renew the pinned requirements (needs uv)
	@sh scripts/lock

release: $(VENV)/.dev ## build the packages and the list of what is in them, into dist
	@PYTHON=$(PYTHON) sh scripts/release $(BIN)

clean: ## remove the environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .bench .release .artefacts .site .cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
