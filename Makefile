# The README's commands. `make` alone prints this list.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Debian's own interpreter where it can make an environment: other uids can execute it, a python below /root they cannot.
PYTHON ?= $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)

.PHONY: help run test demo check lint format events lock

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/.ready: requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 that can make an environment. On Debian: apt install python3-venv" >&2; exit 1; }
	@echo "the first time: making the environment in $(VENV) with $(PYTHON), about half a minute (three at most) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q $(VENV)/lib watchdog 2>/dev/null || true
	@touch $@

run: $(BIN)/.ready ## your own daemon, in the foreground (the first time: half a minute to install)
	@exec $(BIN)/agent-watchdogd

test: $(BIN)/.ready ## the tests (a few minutes; real processes, real git, real SQLite)
	@$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

demo: $(BIN)/.ready ## a silent, a healthy and a crashed agent, in under a minute
	@$(BIN)/python -m tests.demo

lint: $(BIN)/.ready ## formatting, lint and types, without the tests
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/mypy --no-error-summary

check: lint test ## formatting, lint, types, then the tests

format: $(BIN)/.ready ## let ruff format and mend what it can
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

events: $(BIN)/.ready ## the README's table of log events anew
	@$(BIN)/python -m tests.readme

lock: ## both lock files anew (needs uv)
	@uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.lock
	@uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --extra postgres --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock
