# Each target makes its own .venv; nothing outside this folder is written.
#   make demo    the main job on one machine, no GPU
#   make test    the whole suite        make quick   its quick part (under a minute)
#   make lint    ruff, mypy --strict, import contracts, shellcheck
#   make test-engines   real vLLM, SGLang and load clients on the CPU; installs them first (8 GB, python3.11 on PATH)
#   make bench   the benchmarks: ratios against something else in the same run
#
# PYTHON   interpreter for the venv (3.10 to 3.13)
# ENGINES  folder of the environments of real engines; what is installed there is kept
# PIP_ARGS extra arguments for pip, e.g. the index of PyTorch's CPU builds (a plain Linux install of torch is a CUDA build)

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
ENGINES ?= $(CURDIR)/.venv-engines
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install -c constraints.txt $(PIP_ARGS)
# Whole files to a worker, in the order of the folders: the long ones come first, and none is left for the end.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-engines quick lint bench clean
.DELETE_ON_ERROR:

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13)))' \
	  || { echo "orch needs Python 3.10 to 3.13; this is $$($(PYTHON) --version): make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/demo-ready: $(VENV)/made setup.cfg pyproject.toml constraints.txt
	@echo "installing into $(VENV) (torch is the large part) …"
	$(PIP) -e '.[kernel,demo]'
	@touch $@

$(VENV)/test-ready: $(VENV)/made setup.cfg pyproject.toml constraints.txt
	@echo "installing into $(VENV) (torch is the large part) …"
	$(PIP) -e '.[kernel,demo,test]'
	@touch $@

$(VENV)/lint-ready: $(VENV)/made setup.cfg pyproject.toml constraints.txt
	$(PIP) -e '.[demo,test,dev]'
	@touch $@

demo: $(VENV)/demo-ready
	$(BIN)/orch demo

test: $(VENV)/test-ready
	$(PYTEST)

test-engines: $(VENV)/test-ready
	PIP_ARGS='$(PIP_ARGS)' sh tests/engines/install.sh '$(ENGINES)' vllm sglang models
	PIP_ARGS='$(PIP_ARGS)' sh tests/engines/install_clients.sh '$(ENGINES)' sglang-0.5.9 guidellm aiperf
	ORCH_TEST_ENGINES='$(ENGINES)' $(BIN)/python -m pytest -m engines -s tests/engines

quick: $(VENV)/test-ready
	$(PYTEST) -m 'not integration and not kernel and not slow'

lint: $(VENV)/lint-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/shellcheck --shell=sh orchestrator/agent/*.sh orchestrator/connection/*.sh tests/engines/*.sh

bench: $(VENV)/test-ready
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) build dist *.egg-info
