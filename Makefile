# `make demo` and `make test` need Python 3.11 or newer and nothing else: each sets up the virtual environment first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= runs/demo

.PHONY: demo test lint check bench docs clean

# torch goes in first and alone, so that no other package can pull another build of it
$(BIN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(BIN)/.installed
	rm -rf $(OUT)
	$(BIN)/fedprior compare --methods local,fedavg,fedavg_ft,fedprox,fedmap --data synthetic data.skew=label \
		--rounds 60 --workers 2 --seed 0 --out $(OUT)

test: $(BIN)/.installed
	$(BIN)/python -m pytest -n 2

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

bench: $(BIN)/.installed
	$(BIN)/python benchmarks/engine.py

docs: $(BIN)/.installed
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
