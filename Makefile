# Two commands do all set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV_STAMP := $(VENV)/.dev-installed
CORE_STAMP := $(VENV)/.core-installed

.PHONY: demo test lint parity figures clean

demo: $(CORE_STAMP)
	$(BIN)/kvtwin demo

test: $(DEV_STAMP)
	$(BIN)/python -m pytest -rs

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Compare with the real vLLM scheduler on N fresh random cases (sets up the oracle on first use: minutes, gigabytes).
N ?= 300
parity: $(DEV_STAMP)
	$(BIN)/python -m tests.parity.fresh --count $(N) $(if $(SEED),--seed $(SEED))

# The figures of docs/accuracy.md, from the public traces.
TRACES ?= ../shared/traces
figures: $(CORE_STAMP)
	$(BIN)/python -m tests.figures $(TRACES)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CORE_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(CORE_STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info
