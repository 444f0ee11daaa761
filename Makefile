# Everything a stranger needs; `make` alone lists it.
# A Python with wheels for all dependencies; `make setup PYTHON=...` chooses another.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
COLLECTED := $(VENV)/.collected
MUTANTS ?= 60
# Where it is set, each process of a test compiles all of Perkey anew: a second of processor time.
unexport PYTHONDONTWRITEBYTECODE
NOT_FAST := broker or spark or java or long or push
# What has none of it: each worker would import it for nothing.
WITHOUT_FAST := $(addprefix --ignore=tests/integration/,spark matrix processes page workers ledger)
# Most of a test is waiting: five workers fill two cores. They share one plain broker
# (tests/support/one_broker.py); tests are dealt out one by one: tests/support/dealing.py.
# Not `--dist loadgroup`: xdist 3.8 never ends with it once a worker has died.
PYTEST := $(BIN)/python -m pytest -n 5 --dist load --maxschedchunk 1 -p tests.support.cost --durations=15
# pytest compiles its own way (18 processor seconds), and each of the workers would do it again.
COLLECT := $(BIN)/python -m pytest --collect-only -q -p no:xdist
# A test that not even its time-out can end (it waits in C, or in its tear-down): its worker prints
# all stacks and goes, the test counts as failed, the others go on. More than any test of a push may take.
NO_HANG := -o faulthandler_timeout=630 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help

.PHONY: help mutate setup site demo test test-fast test-page spark-matrix broker-matrix python-matrix chaos-short test-all lint types bench dist docs lock need-broker

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(COLLECTED) ## Make .venv with every extra, from the lock file

$(STAMP): pyproject.toml requirements-dev.txt
	@[ -x $(BIN)/python ] || [ -n "$(PYTHON)" ] || { echo "Perkey needs Python 3.11 or newer: apt install python3 python3-venv (Debian 12, Ubuntu 24.04), brew install python (macOS), or pyenv install 3.12" >&2; exit 2; }
	@[ -x $(BIN)/python ] || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python cannot make virtual environments: apt install python3-venv" >&2; exit 2; }
	@[ -x $(BIN)/python ] || { echo "Making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python .ci/install.py
	@$(BIN)/python -m compileall -q src tests simulators benchmarks demo
	@touch $@

# Of no use to the demo. Without Java there is no archive, and no test that needs one.
$(COLLECTED): $(STAMP)
	@$(COLLECT) tests/unit >/dev/null 2>&1 & $(COLLECT) --ignore=tests/unit tests >/dev/null 2>&1; wait
	@$(BIN)/python -m tests.support.spark_archive >/dev/null 2>&1 || true
	@touch $@

need-broker: $(STAMP)
	@$(BIN)/python -m perkey.broker

demo: need-broker ## The main job from end to end, with its proof in demo-out/
	$(BIN)/python -m demo

test: need-broker $(COLLECTED) ## Everything a push must pass
	$(PYTEST) $(NO_HANG) -m "not long"

test-fast: $(STAMP) ## What needs no broker, no Spark and no Java (under a minute)
	$(PYTEST) --dist worksteal $(WITHOUT_FAST) -m "not ($(NOT_FAST))"

# The tests of the page want a browser, and are left out without one:
# apt-get install chromium chromium-driver (Debian); screenshots land in test-out/page/ and test-out/site/
test-page: need-broker site ## The page and the site in a real Chromium (apt-get install chromium chromium-driver)
	$(BIN)/python -m pytest tests/integration/page

spark-matrix: need-broker ## Each of Perkey's ways on Spark 3.5, 4.0, 4.1, 4.2 and 4.3 (15 minutes)
	$(BIN)/python -m pytest -rA tests/integration/spark/test_versions.py

broker-matrix: need-broker ## The contract of the consumer and the app on brokers 3.9 to 4.3 (10 minutes)
	@for version in 3.9.1 4.0.1 4.1.1 4.2.0 4.3.1; do \
	    echo "== Apache Kafka $$version"; \
	    PERKEY_TEST_KAFKA=$$version $(BIN)/python -m pytest -q -n 2 -p tests.support.other_broker -m "not long" tests/contract || exit 1; \
	done

# Each has its own environment, from the same lock; with pyenv: PYENV_VERSION=3.12.1:3.13.0 make python-matrix
PYTHONS := 3.12 3.13
LANE ?= tests/unit
python-matrix: ## The unit tests on the newer Pythons (PYTHONS=3.13 LANE=tests/contract for others)
	@for version in $(PYTHONS); do \
	    echo "== Python $$version"; \
	    { [ -x .venv-$$version/bin/python ] || python$$version -m venv .venv-$$version; } && \
	    .venv-$$version/bin/python .ci/install.py && .venv-$$version/bin/python -m perkey.broker && \
	    .venv-$$version/bin/python -m pytest -q -n 2 -m "not long" $(LANE) || exit 1; \
	done

chaos-short: need-broker ## Faults of three brokers: is every partition read again at once?
	$(BIN)/python -m pytest -rA tests/integration/processes/test_three_brokers.py

test-all: need-broker ## All tests: kills, churn, many seeds, all on the real broker (hours)
	$(PYTEST)

lint: $(STAMP) ## Style: ruff's rules and its format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Types: mypy, strict
	$(BIN)/mypy

bench: need-broker ## Measure, beside the Java Parallel Consumer
	$(BIN)/python -m benchmarks

mutate: $(STAMP) ## Break the source in one place at a time: does a test notice? (an hour; MUTANTS=60)
	for package in codec core runtime; do \
	    $(BIN)/python -m tests.support.mutate $$package --sample $(MUTANTS) || exit 1; done

dist: need-broker ## Build sdist and wheel into dist/, check them, run the README's example from the wheel
	@rm -rf dist
	$(BIN)/python -m build --no-isolation
	PERKEY_DIST=dist $(BIN)/python -m pytest tests/integration/test_dist.py

docs: $(STAMP) ## Generate the diagrams in docs/ from the tables in the code
	$(BIN)/python docs/generate.py

site: $(STAMP) ## Build the site into site-out/, from the repository alone; a dead link is an error
	@rm -rf site-out
	$(BIN)/python -m sphinx -q -E -W --keep-going -j auto -d .sphinx -b html docs site-out
	@echo "site-out/index.html: open it in a browser"

lock: ## Bring requirements-dev.txt up to date with pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --group site --universal --python-version 3.11 --upgrade \
	    --generate-hashes --no-header --no-annotate --no-emit-index-url -o requirements-dev.txt
