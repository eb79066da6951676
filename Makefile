# All targets but help and clean use .venv. It is made on first use, and again when requirements.lock or pyproject.toml
# changes.

PYTHON ?= python3
TORCH ?= torch==2.13.0
READY := .venv/ready
BIN := .venv/bin

.PHONY: help demo test test-all check docs format lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(READY)  ## Run the whole pipeline on the model in the package and answer from it, in minutes
	@CCOT_TYPED="make demo" $(BIN)/ccot demo

# One process per core, with one thread each, because the tests are many and small.
test: $(READY)  ## Run the fast tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

test-all: $(READY)  ## Run all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m ""

check: $(READY)  ## Check format, style, types, imports and spelling
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

docs: $(READY)  ## Write docs/cli.md from the commands' help, and the tables of the pages from docs/data
	$(BIN)/python docs/cli.py > docs/cli.md.part && mv docs/cli.md.part docs/cli.md
	$(BIN)/python docs/tables.py

format: $(READY)  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# All extras but harness, wandb and trackio, whose packages take hundreds of MB.
lock: $(READY)  ## Upgrade requirements.lock to the newest dependencies
	$(BIN)/uv pip compile pyproject.toml --upgrade --extra dev --extra gguf --extra plot --extra serve --extra tensorboard --universal --generate-hashes \
	  --no-emit-package torch --custom-compile-command "make lock" --output-file requirements.lock --quiet

clean:  ## Remove .venv and caches, but not build/, where the examples train
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist

# The lock pins everything but torch, because builds of torch need different packages. On Linux the default one brings
# gigabytes of CUDA packages; `make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"` does not.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is not Python 3.11 or later with venv and ensurepip" >&2; \
	  echo "fix:   apt install python3-venv (Debian, Ubuntu), or make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing into .venv, once: the packages of requirements.lock, then $(TORCH)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	@$(BIN)/pip install $(TORCH)
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
