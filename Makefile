# Everything a developer runs, each target with what it needs: `make` lists them.
# The machine needs Python 3.11 or newer (with venv) and make; all else goes into .venv.

PYTHON ?= python3
CASES ?= $(KOORD_POLICY_CASES)
BIN := .venv/bin
STAMP := .venv/.installed
TOOLS := .venv/.tools-installed
RIVALS := .venv/.rivals-installed
WEB_TOOLS := .venv/.web-tools-installed
WEB := engine/console/static/index.html

# Tests and benchmarks start many interpreters, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo console web test coverage check docs lint-policies wheel release bench fuzz soak soak-live image e2e golden golden-full golden-cases types lock clean

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)  ## Make .venv with the project and what it needs to run: the command is .venv/bin/koord-policy

# The stamp comes last: an interrupted installation is done again, a finished one costs nothing. Modules are compiled
# when they are first imported: most of the client's are never.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
$(STAMP): pyproject.toml requirements/build.txt requirements/runtime.txt src/koordpolicy/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "koord-policy needs Python 3.11 or newer, and \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1): run \`make PYTHON=/path/to/python3.11 venv\`" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "\`$(PYTHON)\` cannot make virtual environments: install its venv module (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --require-hashes --no-deps --requirement requirements/build.txt --requirement requirements/runtime.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

# The tools of developers go into the same .venv.
$(TOOLS): $(STAMP) requirements/dev.txt
	$(PIP_INSTALL) --require-hashes --no-deps --requirement requirements/dev.txt
	@touch $(TOOLS)

demo: $(STAMP)  ## Schedule the example cluster's pending pods under the shipped policies and explain the outcome
	$(BIN)/python examples/demo.py

# Node.js comes as a package of the environment, so that the machine needs none.
$(WEB_TOOLS): $(STAMP) requirements/web.txt
	$(PIP_INSTALL) --require-hashes --no-deps --requirement requirements/web.txt
	@touch $(WEB_TOOLS)

$(WEB): $(WEB_TOOLS) tools/build_console.py $(wildcard web/*.json web/src/* web/src/views/*)
	$(BIN)/python tools/build_console.py
	@touch $(WEB)

web: $(WEB)  ## Build the pages of the console, with Node.js and the packages that web/package-lock.json locks

FLIGHT := build/flight
SHOWN = $(addprefix --policies policies/,scheduler descheduler qos)  # not those for traces, which decide otherwise
AGENT := --agent-recording examples/18-node-agent/metrics.jsonl --policies examples/18-node-agent/policy.yaml
console: $(WEB) $(FLIGHT)  ## Show the example cluster, an hour of it, and the shipped policies in a browser; CONSOLE="..." are further options
	$(BIN)/koord-policy console --cluster examples/cluster --recorded $(FLIGHT) $(SHOWN) $(AGENT) --open $(CONSOLE)

$(FLIGHT): $(STAMP) examples/record_morning.py $(wildcard examples/cluster/*)
	rm -rf $(FLIGHT)
	$(BIN)/python examples/record_morning.py $(FLIGHT)

test: $(TOOLS)  ## Run all tests and say what was skipped; with KOORD_POLICY_CASES=DIR the golden cases of that directory too, of openb a sample
	$(BIN)/python -m pytest -n auto --dist worksteal -rs

coverage: $(TOOLS)  ## Run all tests and show which lines and branches they reach: a table, and pages in build/coverage
	$(BIN)/python -m pytest -n auto --cov --cov-report=html --cov-report=term:skip-covered

check: $(TOOLS) $(WEB) wheel lint-policies docs  ## Lint, check types, import directions and links, test the pages' scripts, compare the wheel with the folders
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/build_console.py --check

docs: $(TOOLS)  ## Build the documentation site into build/site; a broken link is an error
	$(BIN)/python tools/build_site.py

# Each is checked by itself: two examples may name a policy alike. That of 06-cel-function needs the plugin beside it.
POLICY_SETS = policies $(filter-out examples/06-cel-function/%,$(wildcard examples/*/policy.yaml)) \
  $(wildcard examples/*/policies examples/*/base/policies examples/*/old examples/*/new)
lint-policies: $(STAMP)  ## Lint the shipped policies and those of the examples, set by set, and check their layout
	$(BIN)/koord-policy fmt --check policies examples
	@for set in $(POLICY_SETS); do echo "koord-policy lint --strict $$set"; $(BIN)/koord-policy lint --strict $$set || exit 1; done

release: $(TOOLS) $(WEB)  ## Build wheel and source distribution into dist/ and try both in fresh environments; RELEASE="--tag vX.Y.Z" checks the tag
	$(BIN)/python tools/release.py $(RELEASE)

image: $(WEB)  ## Build the image of all servers with podman, buildah or docker; IMAGE="--tag NAME --wheels DIR" says how (docs/deployment.md)
	$(BIN)/python tools/build_image.py $(IMAGE)

wheel: $(TOOLS) $(WEB)  ## Build the wheel and compare it with the folders
	$(BIN)/python -m pytest -q tests/test_wheel.py

# Without a network, or on a machine that they have no wheel for, the rivals' figures are missing and say so.
$(RIVALS): $(TOOLS) requirements/bench.txt
	-$(PIP_INSTALL) --require-hashes --no-deps --requirement requirements/bench.txt
	@touch $(RIVALS)

bench: $(TOOLS) $(WEB) $(RIVALS)  ## Run the benchmarks; BENCH="NAME ... --json FILE" picks some and writes the figures
	$(BIN)/python -m tests.bench $(BENCH)

fuzz: $(TOOLS)  ## Try other examples of all property tests, then look for expressions that break the engine; FUZZ="--seconds N" says for how long (600)
	$(BIN)/python -m pytest -n auto -q -m hypothesis --hypothesis-profile explore
	$(BIN)/python -m tests.fuzz $(FUZZ)

soak: $(TOOLS)  ## Run the extender under faults for 20 minutes; SOAK="--minutes N" says for how long
	$(BIN)/python -m tests.soak $(SOAK)

soak-live: $(TOOLS)  ## Run two replicas of the live scheduler under faults for 15 minutes; SOAK="--minutes N --seed N" says how
	$(BIN)/python -m tests.soak.live $(SOAK)

e2e: $(TOOLS) $(WEB)  ## Run the live tests on a real kube-apiserver and etcd, built once with Go, and in Chromium; E2E="..." are pytest's arguments
	$(BIN)/python -m tests.e2e $(E2E)

golden: golden-cases $(TOOLS)  ## Run the golden cases of CASES=DIR against the pending lists
	$(BIN)/python -m tests.golden '$(CASES)' $(GOLDEN)

golden-full: golden-cases $(TOOLS)  ## The same with every seed of every workload
	$(BIN)/python -m tests.golden '$(CASES)' --full $(GOLDEN)

golden-cases:
	@test -n '$(CASES)' || { echo 'which golden cases? run `make golden CASES=DIR` or set KOORD_POLICY_CASES' >&2; exit 2; }

# What is locked stays where it is as long as pyproject.toml permits it. The files hold for all platforms and versions
# of Python that the project supports, and name no index.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-emit-find-links --custom-compile-command 'make lock' $(LOCK)
lock: $(TOOLS)  ## Renew requirements/*.txt after a change of pyproject.toml; LOCK=--upgrade brings all packages up to date
	$(COMPILE) pyproject.toml --output-file requirements/runtime.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(COMPILE) - --constraint requirements/runtime.txt --output-file requirements/build.txt
	$(COMPILE) pyproject.toml --extra dev --constraint requirements/runtime.txt --constraint requirements/build.txt --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra bench --constraint requirements/dev.txt --output-file requirements/bench.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["web"], sep="\n")' \
	  | $(COMPILE) - --constraint requirements/dev.txt --output-file requirements/web.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["certificates"], sep="\n")' \
	  | $(COMPILE) - --constraint requirements/dev.txt --output-file requirements/certificates.txt

types: $(TOOLS)  ## Generate schemas/kubernetes/core.json from the installed kubernetes package
	$(BIN)/python tools/generate_kubernetes_types.py

clean:  ## Remove .venv and everything that was built
	rm -rf .venv dist build engine/console/static .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
