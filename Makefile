# `make demo` and `make test` need Python 3.11 or newer and nothing else: each sets up the virtual environment first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FLOWER := $(VENV)-flower/bin
OUT ?= runs/demo

.PHONY: demo federation federation-test federation-faults federation-bench test lint check bench docs docs-site dist clean

# torch goes in first and alone, so that no other package can pull another build of it
$(BIN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(BIN)/.installed
	rm -rf $(OUT)
	$(BIN)/python examples/hospitals.py $(OUT)/hospitals.csv
	$(BIN)/fedprior compare $(OUT)/hospitals.csv --site hospital --target outcome --out $(OUT)/comparison

# Flower asks for older versions of some packages: a real federation has an environment of its own
$(FLOWER)/.installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(VENV)-flower
	$(FLOWER)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt torch
	$(FLOWER)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt \
		--editable '.[flower,privacy,ray]' hypothesis psutil pytest pytest-timeout
	touch $@

federation: $(FLOWER)/.installed
	$(FLOWER)/fedprior federation try

# five methods for real, the guide's walk-through, Flower's simulation engine, every method on Flower's serialisation
federation-test: $(FLOWER)/.installed
	$(FLOWER)/python -m pytest -m 'not slow' tests/federation

federation-bench: $(FLOWER)/.installed
	$(FLOWER)/python benchmarks/federation.py

# the slow faults for real, with Flower's own time limits
federation-faults: $(FLOWER)/.installed
	$(FLOWER)/python -m pytest -m slow tests/federation

test: $(BIN)/.installed
	$(BIN)/python -m pytest -n 2

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/*.compose.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

check: lint test

bench: $(BIN)/.installed
	$(BIN)/python benchmarks/engine.py --repeats 5

docs: $(BIN)/.installed
	$(BIN)/python docs/generate.py

# tutorials are executed; a broken link or a missing reference fails
docs-site: $(BIN)/.docs-installed
	$(BIN)/python docs/build_site.py

$(BIN)/.docs-installed: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

# the files of a release, and the wheel alone in an environment of its own
dist:
	rm -rf dist build/release build/smoke
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check build twine
	build/release/bin/python -m build
	build/release/bin/twine check --strict dist/*
	! $(PYTHON) -m zipfile --list dist/fedprior-*.whl | grep -E 'tables/[^ ]*/results/'
	$(PYTHON) -m venv build/smoke
	build/smoke/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	build/smoke/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/fedprior-*.whl
	cd build/smoke && bin/fedprior doctor && bin/fedprior papers && \
		bin/fedprior compare --methods fedmap --data digits data.clients=6 --rounds 3 --workers 1 --out runs/smoke

clean:
	rm -rf $(VENV) $(VENV)-flower runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
