# The few commands people type. Everything runs in .venv, made from the cpu lock.
PYTHON ?= python3
PROFILE ?= tiny
CORES ?= 2
NOTEBOOKS ?= $(wildcard notebooks/0[1-47]*.ipynb)
OLDEST := tests/test_trainer.py $(addprefix tests/training/test_,trl_names.py savings.py held_out.py rounds.py)
BIN := .venv/bin
READY := .venv/ready

# One thread a process: two trainings with two threads each run many times slower on two cores.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: run figures notebooks docs test test-oldest lab setup setup-engines bench fuzz lint clean

run: $(READY)  ## train, evaluate, compare: table and figures of PROFILE (default tiny), in runs/
	@gdro run $(PROFILE) --cores $(CORES)

figures: run notebooks  ## figures/ anew: those of the tiny profile's runs and of the teaching notebooks
	cp runs/$(PROFILE)/figures/* figures/
	python -m gdro.arena.greeting

notebooks: $(READY)  ## run NOTEBOOKS (default those that teach) and store them with their outputs
	python scripts/store_notebooks.py $(NOTEBOOKS)

docs: .venv-docs/ready  ## the site, with notebooks as they are stored and the API reference, in build/docs
	rm -rf build docs/api/generated
	.venv-docs/bin/python -m sphinx -W --keep-going -q -c docs -d build/doctrees . build/docs
	@echo "build/docs/index.html"

test: $(READY)  ## all tests
	python -m pytest -n $(CORES) --dist loadfile --no-loadscope-reorder

test-oldest: .venv-oldest/ready  ## the trainer's tests with the oldest TRL and transformers that pyproject.toml allows
	.venv-oldest/bin/python -m pytest -q $(OLDEST)

lab: $(READY)  ## JupyterLab on the notebooks
	jupyter lab notebooks

bench: $(READY)  ## our code beside the alternatives, in one run
	for file in benchmarks/*.py; do python $$file || exit 1; done

fuzz: $(READY)  ## random attacks on controller, rewards, trainings and arena: half an hour
	python tests/fuzz.py

lint: $(READY)
	ruff check . && ruff format --check . && mypy

setup: $(READY)

setup-engines: .venv-vllm/ready .venv-unsloth/ready  ## real vLLM and Unsloth, for the tests that need them

$(READY): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 13) else f"Python 3.11 or 3.12 is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@echo "Installing the locked packages into .venv: about three minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/cpu.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(READY)

.venv-docs/ready: requirements/docs.txt
	$(PYTHON) -m venv .venv-docs
	@echo "Installing the locked packages into .venv-docs: about a minute"
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	touch $@

# What does not agree with the cpu lock, each in an environment of its own.
.venv-%/ready: requirements/%-cpu.txt pyproject.toml
	$(PYTHON) -m venv .venv-$*
	@echo "Installing the locked packages into .venv-$*: about three minutes"
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements/$*-cpu.txt
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

clean:
	rm -rf runs .cache .snakemake
