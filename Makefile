# make demo      set up and watch an incident being diagnosed and healed (no root, no torch)
# make test      everything CI checks: lint, types, imports, tests (installs what it needs)
# make bench     measurements against named peers; exits 1 when a bar is missed
# make corpus    every rule over every sample: confusion matrix, answers in the first line, false accusations
# make labs      every lab five times, idle and beside a neighbour that wants the processors: does a snapshot name the rule?
# make dist      llmdiag in one file for hosts without a network, in dist/; DIST_PYTHON=3.12 DIST_MACHINE=aarch64 for other hosts
# make oracle    write tests/tensors/data anew with the packages that own the formats, each in an environment of its own
# make resample  record the samples anew from the labs; SAMPLES="cpu-spin/incident" records some

PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
STUDIO  ?= /tmp/llmdiag-studio
SAMPLES ?=
# more files at a time than the two processors it is meant for: some only wait; in the order of tests/conftest.py
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder
PYTEST := LLMDIAG_STRICT=1 $(BIN)/python -m pytest -q
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-live test-unhurried lint bench corpus labs dist oracle resample clean

demo: $(VENV)/.demo
	$(BIN)/llmdiag demo ghost-key

test: lint
	bash tests/setup-servers.sh
	$(PYTEST) -m "not live and not unhurried" -n 4 $(SIDE_BY_SIDE)
	$(MAKE) -k -j 2 --output-sync=target --no-print-directory test-live test-unhurried

# labs keep time and mostly wait; what needs a processor and nothing else takes what they leave
test-live:
	$(PYTEST) -m live -n 3 $(SIDE_BY_SIDE)

test-unhurried:
	nice -n 10 env $(PYTEST) -m "unhurried and not live" -n 2 -p no:cacheprovider $(SIDE_BY_SIDE)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench
	LLMDIAG_SWEEP=full $(BIN)/python -m pytest -q tests/cache/test_kill.py tests/decode/test_decode.py

corpus: $(VENV)/.dev
	$(BIN)/python -m tests.corpus

labs: $(VENV)/.dev
	LLMDIAG_LAB_TIMES=5 $(BIN)/python -m pytest -q tests/live/test_signature_labs.py

dist: $(VENV)/.dist
	$(BIN)/python -m diag.archive.build $(if $(DIST_PYTHON),--python $(DIST_PYTHON)) $(if $(DIST_MACHINE),--machine $(DIST_MACHINE))

# ORACLE="msprobe sglang" writes some. What they wrote is kept with the sources; the tests need none of these packages.
oracle:
	$(PYTHON) tests/oracle/run.py $(ORACLE)

# A record holds the paths, packages and environment of the place where it was made, so that place is a bare one.
resample:
	rm -rf $(STUDIO)
	$(PYTHON) -m venv $(STUDIO)/venv
	$(STUDIO)/venv/bin/pip install -q ".[demo]"
	cp -rp samples $(STUDIO)
	cd $(STUDIO) && env -i PATH=/usr/bin:/bin HOME=$(STUDIO) LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 \
	  venv/bin/python samples/resample.py $(SAMPLES)
	cd $(STUDIO)/samples && find . -name '*.zip' -newer $(STUDIO)/venv/pyvenv.cfg -exec cp --parents {} "$(CURDIR)/samples" \;
	rm -rf $(STUDIO)

$(VENV)/.python:
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "$(PYTHON) is not a Python 3.11 or newer with venv: apt install python3-venv, or make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.python
	$(BIN)/pip install -q -e ".[demo]"
	touch $@

$(VENV)/.dist: pyproject.toml | $(VENV)/.python
	$(BIN)/pip install -q -e ".[dist]"
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	$(BIN)/pip install -q -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
