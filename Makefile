# Commands for users and developers. `make` alone prints this list.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Debian's own interpreter where it can make an environment: other uids can execute it, a python below /root they cannot.
PYTHON ?= $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)

# Paths and choices of these three, given to make or in the environment; see systemd/install.py.
export DESTDIR PREFIX WHEELS EXTRAS
INSTALLER = test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }; \
	$(PYTHON) -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "PYTHON=$(PYTHON): $(NO_PYTHON)" >&2; exit 1; }; exec $(PYTHON) -sB systemd/install.py

NO_PYTHON := no Python >= 3.11 that can make an environment. On Debian: apt install python3-venv
.PHONY: help run test demo quick counts check install uninstall wheels lint format events lock bench faults verdicts attacks fuzz peers vendors day

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/.ready: requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@echo "the first time: making the environment in $(VENV) with $(PYTHON), about half a minute (three at most) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q $(VENV)/lib watchdog 2>/dev/null || true
	@touch $@

run: $(BIN)/.ready ## your own daemon, in the foreground (the first time: half a minute to install)
	@exec $(BIN)/agent-watchdogd

test: $(BIN)/.ready ## the tests (a few minutes; real processes, real git, real SQLite)
	@$(BIN)/python -m compileall -q watchdog # else, with PYTHONDONTWRITEBYTECODE, each process would compile it again
	@$(BIN)/python -m pytest -n 8 --dist worksteal $(ARGS)

demo: $(BIN)/.ready ## a silent, a healthy and a crashed agent: about 20 seconds
	@$(BIN)/python -m tests.demo

install: ## root: for the host (PREFIX=/usr/local, DESTDIR=); any other user: for yourself. EXTRAS="postgres mcp"
	@$(INSTALLER) install

uninstall: ## what install put there; data and edited configuration stay
	@$(INSTALLER) uninstall

wheels: ## download what install needs into wheels/ (WHEELS=DIR), for a host without network
	@$(INSTALLER) wheels

lint: $(BIN)/.ready ## formatting, lint and types, without the tests
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/mypy --no-error-summary

quick: lint ## in half a minute: formatting, lint, types, then the tests of the layout, core and configuration
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/test_layout.py tests/core tests/config $(ARGS)

counts: $(BIN)/.ready ## how easy the code is to enter, in counts; those of a checkout elsewhere: TREE=DIR
	@$(BIN)/python -m tests.counts $(TREE)

check: lint test ## formatting, lint, types, then the tests

format: $(BIN)/.ready ## let ruff format and fix what it can
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

events: $(BIN)/.ready ## write again what is generated: the configuration file, tables in documents, man pages, completions, tests/WORKS_WITH.md
	@$(BIN)/python -m tests.config_file && $(BIN)/python -m tests.documents && $(BIN)/python -m tests.manual && $(BIN)/python -m tests.works_with

lock: ## make both lock files again (needs uv)
	@uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.lock
	@uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --extra mcp --extra postgres --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock

bench: $(BIN)/.ready ## figures beside a bare loop and other programs, into tests/bench/RESULTS.md (9 minutes; QUICK=1: 4)
	@$(BIN)/python -m tests.bench.run $(ARGS)

faults: $(BIN)/.ready ## injects faults, and prints the table of outcomes (4 minutes; FULL=1: all runs, into tests/faults/RESULTS.md)
	@RESULTS=$(FULL:1=faults) $(BIN)/python -m pytest -q -r fE -n 3 --dist worksteal -m faults tests/faults $(ARGS)

verdicts: $(BIN)/.ready ## situations of agents and their verdicts, with the confusion matrix (FULL=1: into tests/verdicts/RESULTS.md)
	@RESULTS=$(FULL:1=verdicts) $(BIN)/python -m pytest -q -r fE -n 3 --dist worksteal -m faults tests/verdicts $(ARGS)

attacks: $(BIN)/.ready ## what a hostile user tries on root's daemon: each row is a test that was seen to succeed before its fix (needs root)
	@$(BIN)/python -m pytest -q -r fEs -n 2 --dist loadfile -m attacks tests/attacks $(ARGS)

fuzz: $(BIN)/.ready ## hostile input: bodies, datagrams, sources, files (2 minutes; FUZZ_SECONDS=N)
	@$(BIN)/python -m pytest -q -n 2 -m fuzz tests/fuzz $(ARGS)

peers: $(BIN)/.ready ## ours beside real hcom and agent-relay, installed below /tmp (PEERS=DIR; 3 minutes)
	@$(BIN)/python -m tests.peers.tools
	@$(BIN)/python -m pytest -q -n 0 -m peers tests/peers $(ARGS)

vendors: $(BIN)/.ready ## the vendors' own programs from npm, step by step (VENDORS=DIR; 15 minutes; SHARE=1: 3; FULL=1: into tests/vendors/RESULTS.md)
	@$(BIN)/python -m tests.vendors.programs $(VERSIONS)
	@RESULTS=$(FULL:1=vendors) $(BIN)/python -m pytest -q -r fE -n $(if $(SHARE),4,3) --dist worksteal -m vendors tests/vendors $(ARGS)

day: $(BIN)/.ready ## twenty sessions of these programs, two daemons, operators (root; SEED=N MINUTES=30: as told in tests/vendors/RESULTS.md)
	@$(BIN)/python -m tests.vendors.programs pinned
	@SEED=$(SEED) MINUTES=$(or $(MINUTES),30) $(BIN)/python -m pytest -q -r fE -n 0 -s -m day tests/vendors/test_day.py $(ARGS)
