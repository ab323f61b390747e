# make demo   set up and watch an incident being diagnosed and healed (no root, no torch)
# make test   everything CI checks: lint, types, imports, tests (installs what it needs)
# make bench  measurements against named peers; exits 1 when a bar is missed
# make resample  record the samples anew from the labs

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint bench resample clean

demo: $(VENV)/.demo
	$(BIN)/llmdiag demo ghost-key

test: $(VENV)/.dev
	bash tests/setup-servers.sh $(VENV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	LLMDIAG_STRICT=1 $(BIN)/python -m pytest -q

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench

resample: $(VENV)/.dev
	$(BIN)/python samples/resample.py

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e ".[demo]"
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
