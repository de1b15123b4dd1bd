# make conformance IMPL=torch    check an implementation; the report goes to report/
# make test                      check everything the project claims about itself
# make lint                      formatting, lint and types
# make docs                      the documentation, into docs/_build/html; warnings are errors
# make reports                   check the implementations that the documentation shows, into docs/reports
# make bench                     compare the speed of implementations; IMPL and AGAINST name them
#
# Each sets up .venv first. PYTHON chooses the interpreter; if that one has torch, it is used, otherwise the version in
# constraints.txt is installed. ARGS are handed on to pytest; JOBS is the number of processes that run checks (3 by
# default, since they wait for their ranks most of the time) or tests (2).

PYTHON ?= python3
VENV ?= .venv
IMPL ?= reference
AGAINST ?= torch
JOBS ?=
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: conformance test lint docs reports bench clean

conformance: $(READY)
	$(BIN)/pytest conformance -n $(or $(JOBS),3) $(foreach impl,$(IMPL),--impl=$(impl)) $(ARGS)

test: $(READY)
	$(BIN)/pytest tests -n $(or $(JOBS),2) --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -n -q -j auto docs docs/_build/html

reports: $(READY)
	$(BIN)/python docs/_ext/refresh_reports.py $(ARGS)

bench: $(READY)
	$(BIN)/pytest bench --impl=$(IMPL) --impl=$(AGAINST) $(ARGS)

clean:
	rm -rf $(VENV) build dist report docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(PYTHON) scripts/share_torch.py $(BIN)/python; \
	if $(BIN)/python -c 'import torch' 2>/dev/null; \
	then echo "using the torch that $(PYTHON) has"; $(BIN)/python -m pip install -q -e '.[dev,docs]'; \
	else $(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,docs]'; fi
	@touch $@
