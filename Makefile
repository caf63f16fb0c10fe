# The commands people type; bare `make` prints them.

VENV := .venv
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	if $$python -c '$(SUPPORTED)' 2>/dev/null; then echo $$python; break; fi; done)
PACKAGES := $(VENV)/packages-installed
PROJECT := $(VENV)/project-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(PROJECT) ## environment, Java, jars: everything the other commands need
	@$(BIN)/python -m jobs.install_runtime

$(PACKAGES): requirements.lock
	@"$(PYTHON)" -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "error: Python 3.11 to 3.13 is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo "error: $(PYTHON) cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@touch $@

$(PROJECT): $(PACKAGES) pyproject.toml
	$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation -q -e .
	@touch $@

.PHONY: demo
demo: install ## private answers about real people's film choices, in about two minutes
	@$(BIN)/python -m jobs.make_demo_lake
	@$(BIN)/python notebooks/demo.py

LONG := tests/e2e/test_demo.py tests/e2e/test_forty_days.py # so that both processes take as long

.PHONY: test
test: lint types ## everything that has to pass; whole programs run beside their parts
	@$(BIN)/python -m pytest -p no:cacheprovider tests/unit tests/statistical tests/spark $(LONG) \
		> $(VENV)/tests-of-parts.txt 2>&1 & parts=$$!; trap "kill $$parts" INT TERM; \
	$(BIN)/python -m pytest tests/e2e $(addprefix --ignore=,$(LONG)); programs=$$?; \
	wait $$parts; parts=$$?; cat $(VENV)/tests-of-parts.txt; \
	exit $$((programs + parts))

.PHONY: test-unit test-spark test-e2e test-statistical
test-unit: install ## the tests that need neither Spark nor Java
test-spark: install ## the tests of steps on Spark
test-e2e: install ## the tests that run whole programs
test-statistical: install ## the tests that draw samples
test-unit test-spark test-e2e test-statistical:
	$(BIN)/python -m pytest tests/$(@:test-%=%)

.PHONY: format
format: install ## rewrite the code in the one format
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

.PHONY: lint
lint: install ## style, and which module may import which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache

.PHONY: types
types: install ## static types
	$(BIN)/mypy

.PHONY: bench
bench: install ## speed, beside the fastest plain query
	@for bench in tests/bench/bench_*.py; do \
		echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

.PHONY: wheel
wheel: install ## dist/discreet-*.whl, to install on a cluster
	$(BIN)/pip wheel --disable-pip-version-check --no-deps --no-build-isolation -q -w dist .

.PHONY: clean
clean: ## remove what can be made again; the environment and the lake stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse artifacts pictures $(VENV)/spark-local/*
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
