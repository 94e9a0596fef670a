# Everything a developer runs, each target with what it needs: `make` lists them.
# The machine needs Python 3.11 or newer (with venv) and make; all else goes into .venv.

PYTHON ?= python3
CASES ?= $(KOORD_POLICY_CASES)
BIN := .venv/bin
STAMP := .venv/.installed
RIVALS := .venv/.rivals-installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test check wheel bench fuzz soak golden golden-full golden-cases types clean

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)  ## Make .venv with the project in it: the command is .venv/bin/koord-policy

# The stamp comes last: an interrupted installation is done again, a finished one costs nothing.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "koord-policy needs Python 3.11 or newer, and \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1): run \`make PYTHON=/path/to/python3.11 venv\`" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "\`$(PYTHON)\` cannot make virtual environments: install its venv module (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## Schedule the example cluster's pending pods under the shipped policies and explain the outcome
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## Run all tests and say what was skipped; with KOORD_POLICY_CASES=DIR the golden cases of that directory too
	$(BIN)/python -m pytest -n auto -rs

check: $(STAMP) wheel  ## Lint, check types and import directions, compare the wheel with the folders
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

wheel: $(STAMP)  ## Build the wheel and compare it with the folders
	$(BIN)/python -m pytest -q tests/test_wheel.py

# Without a network, or on a machine that they have no wheel for, the rivals' figures are missing and say so.
$(RIVALS): $(STAMP)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $(RIVALS)

bench: $(STAMP) $(RIVALS)  ## Run the benchmarks; BENCH="NAME ... --json FILE" picks some and writes the figures
	$(BIN)/python -m tests.bench $(BENCH)

fuzz: $(STAMP)  ## Try other examples of all property tests, then look for expressions that break the engine; FUZZ="--seconds N" says for how long (600)
	$(BIN)/python -m pytest -n auto -q -m hypothesis --hypothesis-profile explore
	$(BIN)/python -m tests.fuzz $(FUZZ)

soak: $(STAMP)  ## Run the extender under faults for 20 minutes; SOAK="--minutes N" says for how long
	$(BIN)/python -m tests.soak $(SOAK)

golden: golden-cases $(STAMP)  ## Run the golden cases of CASES=DIR against the pending lists
	$(BIN)/python -m tests.golden '$(CASES)' $(GOLDEN)

golden-full: golden-cases $(STAMP)  ## The same with every seed of every workload
	$(BIN)/python -m tests.golden '$(CASES)' --full $(GOLDEN)

golden-cases:
	@test -n '$(CASES)' || { echo 'which golden cases? run `make golden CASES=DIR` or set KOORD_POLICY_CASES' >&2; exit 2; }

types: $(STAMP)  ## Generate schemas/kubernetes/core.json from the installed kubernetes package
	$(BIN)/python tools/generate_kubernetes_types.py

clean:  ## Remove .venv and everything that was built
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
