# Everything lives in .venv inside the checkout; each target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# A second package in this checkout; the demonstration does without it.
STUDIES := packages/calibrant-studies

.PHONY: demo test tests other-processor lint types docs bench clean

demo: $(VENV)/.ready-user            ## the whole job on sample data; writes demo-report/
	$(BIN)/calibrant demo --out demo-report

test: lint types tests               ## what has to pass before a change lands

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-dev
	$(BIN)/pyright

tests: $(VENV)/.ready-dev
	$(BIN)/pytest

other-processor: $(VENV)/.ready-dev  ## laws and reference values, computed as an older processor does
	$(BIN)/python scripts/other_processor.py

docs: $(VENV)/.ready-dev             ## the site, in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky docs docs/_build/html

bench: benchmarks/.peers/.ready      ## times against the peers, in an environment of their own
	benchmarks/.peers/bin/python -m benchmarks --out benchmarks/results/latest.json

benchmarks/.peers/.ready: benchmarks/requirements-peers.txt benchmarks/requirements-peers-only.txt
	$(PYTHON) -m venv benchmarks/.peers
	benchmarks/.peers/bin/pip install --quiet --requirement benchmarks/requirements-peers.txt
	benchmarks/.peers/bin/pip install --quiet --no-deps --requirement benchmarks/requirements-peers-only.txt
	benchmarks/.peers/bin/pip install --quiet --editable .
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-user: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.ready-dev: pyproject.toml $(STUDIES)/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable $(STUDIES)
	touch $@ $(VENV)/.ready-user

clean:
	rm -rf $(VENV) demo-report docs/_build
