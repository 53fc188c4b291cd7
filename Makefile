# make check   runs the probes on this machine's GPU, or judges the recorded run where there is none
# make test    linters, types, then every test
# make lint    linters and types only
# make fuzz    100,000 broken inputs at random; FUZZ_ARGS="trace --examples 1000" for fewer
# make audit   known weaknesses and the licences of the packages that the action pins
# make docs    makes docs/action.md and the reusable workflow's inputs from action.yml, docs/causes.md from the causes
# make lock    pins the packages of the action's own environment anew, with their hashes
# make bench   times the reading of traces beside other programs (tests/benchmarks/README.md)
# make clean   removes the environments and the caches of the tools
#
# All of it happens in an own environment in .venv. PYTHON is the Python it is made with (3.10 or newer);
# TORCH_PYTHON is the one with the torch under test, in which nothing is ever installed.

PYTHON ?= python3
TORCH_PYTHON ?= $(PYTHON)
VENV ?= .venv
TEST_TORCH ?= torch==2.13.0
# More workers than cores: half the time of the slow tests goes into waiting.
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder
FUZZ_ARGS ?= --examples 100000
# What may stand beside Apache-2.0: nothing that asks for more than naming it. certifi's list is under MPL 2.0, unchanged.
LICENCES := MIT;BSD;Apache;PSF-2.0;Python Software Foundation License;Mozilla Public License 2.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Another Python, or another list of files, makes another stamp, so the environment is never of yesterday.
python_version := $(shell $(PYTHON) -c 'import sys; sys.version_info >= (3, 10) and print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
sources := $(shell find runner checks -type f -not -path '*/__pycache__/*' | LC_ALL=C sort)
made := $(VENV)/made-$(python_version)
installed := $(VENV)/installed-$(firstword $(shell echo '$(sources)' | cksum))
test_ready := $(VENV)/test-ready

.PHONY: check test lint fuzz audit docs lock bench clean
.DELETE_ON_ERROR:

check: $(installed)
	@why="$$($(TORCH_PYTHON) checks/__main__.py --describe 2>/dev/null </dev/null \
		| $(BIN)/python -c 'import json, sys; print(json.loads(sys.stdin.read() or "{\"error\": \"it cannot be run\"}")["error"] or "")')"; \
	if [ -z "$$why" ]; then \
		echo "make check: running the probes on this machine"; \
		$(BIN)/symmem-check run --python "$(TORCH_PYTHON)"; \
	else \
		echo "make check: nothing can be run with $(TORCH_PYTHON) here ($$why), so the recorded run is judged instead"; \
		$(BIN)/symmem-check run --replay; \
	fi

test: lint $(installed)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(test_ready)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-actions action.yml $(wildcard .github/actions/*/action.yml)
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/actionlint -shellcheck $(BIN)/shellcheck .github/workflows/*.yml
	$(BIN)/zizmor --quiet --offline action.yml .github

fuzz: $(test_ready)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

# Nothing of the auditors goes where the tests run, nor among the packages that they look at.
audit: $(made)
	$(PYTHON) -m venv --clear $(VENV)/auditors
	$(VENV)/auditors/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 pip-licenses==5.5.5
	for lock in requirements/*.txt; do \
		$(PYTHON) -m venv --clear $(VENV)/pinned && \
		$(VENV)/pinned/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $$lock && \
		$(VENV)/auditors/bin/pip-licenses --python $(VENV)/pinned/bin/python --from=mixed --partial-match --allow-only '$(LICENCES)' && \
		$(VENV)/auditors/bin/pip-audit --strict --require-hashes --disable-pip -r $$lock || exit 1; \
	done

docs: $(test_ready)
	$(BIN)/python -m runner.action_reference >docs/action.md
	$(BIN)/python -m runner.judge.causes_page >docs/causes.md
	$(BIN)/python -m tests.workflows.mirror

# Two providers of machines need more than the rest does, and have a lock of their own.
lock: $(made)
	$(PIP) uv==0.13.9
	for extra in "" ec2 kubernetes; do \
		UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.10 \
			$${extra:+--extra $$extra} --generate-hashes --no-annotate --output-file requirements/action$${extra:+-$$extra}.txt || exit 1; \
	done

# The other programs live in an environment of their own; PEERS= leaves them out.
PEERS ?= $(VENV)-peers
BENCH_ARGS ?=

bench: $(installed) $(if $(PEERS),$(PEERS)/made)
	$(BIN)/python -m tests.benchmarks.bench --folder $(VENV)-traces $(if $(PEERS),--peers $(PEERS)/bin/python) $(BENCH_ARGS)

$(VENV)-peers/made:
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis 'pandas<3' ijson isal
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-peers $(VENV)-traces .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

$(made):
	@test -n "$(python_version)" || { echo "symmem-check needs Python 3.10 or newer, and '$(PYTHON)' is none; set PYTHON=/path/to/python3" >&2; exit 1; }
	@if [ -e "$(VENV)" ] && ! ls -d "$(VENV)"/made-* >/dev/null 2>&1; then \
		echo "$(VENV) is there and was not made by this Makefile; give another folder with VENV=" >&2; exit 1; fi
	rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) can't make an environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@touch $(VENV)/made-by-make
	$(PIP) hatchling
	@touch $@

$(installed): pyproject.toml $(sources) | $(made)
	$(PIP) --no-build-isolation .
	@rm -f $(VENV)/installed-* && touch $@

$(test_ready): pyproject.toml | $(made)
	$(PIP) --no-build-isolation '.[test]' '$(TEST_TORCH)'
	@touch $@
