# Everything lives in .venv inside the checkout; each target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# `make tests CONSTRAINTS=/dev/null` takes the newest of everything.
CONSTRAINTS := constraints.txt
# Minutes that `make fuzz` takes.
MINUTES := 10
# What `make bench-check` compares with; the newest tag v* if empty.
AGAINST :=
# What `make oldest` runs: tests that need no extra.
OLDEST_TESTS := tests/test_formats_of_releases.py tests/test_cli_terminal.py tests/test_monitor.py \
	tests/test_groups.py tests/test_auto.py tests/test_confidence_maps.py tests/test_matrix.py \
	tests/test_metrics_binned.py tests/test_metrics_smooth.py tests/test_shard_sums.py \
	tests/test_verdict.py tests/test_release.py tests/test_deprecation.py
# A second package in this checkout; the demonstration does without it.
STUDIES := packages/calibrant-studies

# What a process has compiled, the others of the tests needn't.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests other-processor oldest fuzz lint types docs bench bench-check release prepare-release clean

demo: $(VENV)/.ready-user            ## the whole job on sample data; writes demo-report/
	$(BIN)/calibrant demo --out demo-report

test: lint types tests               ## what has to pass before a change lands

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-dev
	$(BIN)/pyright

tests: $(VENV)/.ready-dev
	$(BIN)/pytest --durations=10

other-processor: $(VENV)/.ready-dev  ## laws and reference values, computed as an older processor does
	$(BIN)/python scripts/other_processor.py

docs: $(VENV)/.ready-dev             ## the site, in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky docs docs/_build/html

oldest: $(VENV)/.ready-oldest        ## some tests with the oldest dependencies that are allowed
	$(VENV)/oldest/$(notdir $(BIN))/python -m pytest -W ignore::DeprecationWarning \
		-W ignore::PendingDeprecationWarning $(OLDEST_TESTS)

fuzz: $(VENV)/.ready-dev             ## damaged and strange files, for MINUTES
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

release: $(VENV)/.ready-release      ## builds both packages in dist/, checks them, tries the wheels
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist $(STUDIES)
	$(BIN)/python -m scripts.release.check dist

prepare-release: $(VENV)/.ready-dev  ## make prepare-release VERSION=0.2.0
	$(BIN)/python -m scripts.release.prepare $(VERSION)

bench: benchmarks/.peers/.ready      ## times against the peers, in an environment of their own
	benchmarks/.peers/$(notdir $(BIN))/python -m benchmarks --out benchmarks/results/latest.json

bench-check: benchmarks/.peers/.ready ## that every benchmark runs, and none 15 % slower than AGAINST, or the last release
	benchmarks/.peers/$(notdir $(BIN))/python -m benchmarks --quick --out benchmarks/results/latest.json
	benchmarks/.peers/$(notdir $(BIN))/python -m benchmarks.gate $(if $(AGAINST),--against $(AGAINST)) \
		--out benchmarks/results/ratios.json

benchmarks/.peers/.ready: benchmarks/requirements-peers.txt benchmarks/requirements-peers-only.txt
	$(PYTHON) -m venv benchmarks/.peers
	benchmarks/.peers/$(notdir $(BIN))/pip install --quiet --requirement benchmarks/requirements-peers.txt
	benchmarks/.peers/$(notdir $(BIN))/pip install --quiet --no-deps --requirement benchmarks/requirements-peers-only.txt
	benchmarks/.peers/$(notdir $(BIN))/pip install --quiet --editable .
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-user: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.ready-dev: pyproject.toml $(STUDIES)/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]' --editable $(STUDIES)
	touch $@ $(VENV)/.ready-user

$(VENV)/.ready-release: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade build twine
	touch $@

$(VENV)/.ready-oldest: pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/oldest
	$(BIN)/python -m scripts.release.oldest > $(VENV)/oldest.txt
	$(VENV)/oldest/$(notdir $(BIN))/python -m pip install --quiet --requirement $(VENV)/oldest.txt \
		--editable . pytest pytest-xdist hypothesis pyyaml
	touch $@

clean:
	rm -rf $(VENV) demo-report docs/_build dist
