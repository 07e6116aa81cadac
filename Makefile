# The lab in a few commands. `make help` lists them; every target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.installed
PORT   ?= 8888
# a cell that runs longer than this is stopped: nothing in the lab may hang
CELL_TIMEOUT ?= 300
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.DEFAULT_GOAL := help
.PHONY: help install lab test lint notebooks seeds book browser exercises pairs fuzz doctor-eval gpu-check bench constraints clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv and install the lab under constraints.txt (does nothing when there is nothing to do)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "the lab needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (choose another: make PYTHON=python3.12 ...)")'
	@test -x $(PY) || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (several minutes the first time; torch is the largest part)"
	$(BIN)/pip install -q -c constraints.txt 'setuptools>=77.0.3' wheel
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,dask]'
	@touch $@

lab: install  ## open JupyterLab on the tour; stays in the foreground until you stop it with Ctrl-C
	$(BIN)/jupyter-lab --config=tools/jupyter_server_config.py --ServerApp.port=$(PORT)

lint: install  ## ruff, mypy, import layers, notebook pairs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PY) tools/pairs.py --check

test: lint  ## what CI runs first: lint, types, layers and the tests
	$(PY) -m pytest -n 2 --dist worksteal -m "not fuzz and not browser_all"

notebooks: install  ## run every notebook through papermill; writes build/notebooks/ and the claims table
	$(PY) -m labkit.cli.main notebooks run --timeout $(CELL_TIMEOUT)

seeds: install  ## run every notebook under three seeds: no verdict may depend on luck
	$(PY) -m labkit.cli.main notebooks seeds --seeds 1,2,3 --kernels 2 --timeout $(CELL_TIMEOUT)

book: install  ## run every notebook, two at once, and write the static site build/book/
	$(PY) -m labkit.cli.main notebooks book --timeout $(CELL_TIMEOUT)

browser: install  ## every notebook and panel in Chromium
	$(PY) -m pytest tests/browser -m browser_all $(BROWSER_ARGS)

exercises: install  ## regenerate exercises/ from solutions/
	$(PY) -m labkit.cli.main exercises generate

pairs: install  ## rewrite notebooks/*.ipynb from their reviewed .py source
	$(PY) tools/pairs.py

fuzz: install  ## long fuzzing (about an hour)
	$(PY) -m pytest -n 2 -m fuzz --timeout 3600

doctor-eval: install  ## the doctor on 780 generated incidents
	$(PY) -m labkit.cli.main doctor incidents evaluate

gpu-check: install  ## a GPU's acceptance, under 4 minutes
	$(PY) tools/gpu_check.py

bench: install  ## the CPU benchmarks, each a table and one JSON line
	for b in allocators simulator tensor_executor; do $(PY) benchmarks/$$b.py || exit 1; done

constraints: install  ## rewrite constraints.txt from what is installed
	$(PY) tools/constraints.py

clean:  ## remove what was built (not .venv)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
