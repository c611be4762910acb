# The few commands people type. Everything runs in .venv, made from the cpu lock.
PYTHON ?= python3
PROFILE ?= tiny
CORES ?= 2
# those that teach; 05 and 06 show runs, 08 trains a pretrained model for ten minutes
NOTEBOOKS ?= $(filter-out notebooks/05% notebooks/06% notebooks/08%,$(wildcard notebooks/*.ipynb))
OLDEST := tests/test_trainer.py $(addprefix tests/training/test_,trimming.py same_gradient.py rounds.py private_names.py)
BIN := .venv/bin
READY := .venv/ready

# One thread a process: two trainings with two threads each run many times slower on two cores.
export OMP_NUM_THREADS := 1
export HF_HUB_DISABLE_TELEMETRY := 1
# uv leaves compiling to the first import, which must keep what it compiled: else each process imports
# for twelve seconds in place of six
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/$(BIN):$(PATH)

# $(call install,ENVIRONMENT,ARGUMENTS): with uv where it is installed, from the indexes that pip is
# configured with; with pip otherwise, or where uv finds no torch there.
pip-has = $${PIP_$(1):-$$(pip config get global.$(2) 2>/dev/null)}
install = ( command -v uv >/dev/null \
	&& export UV_INDEX_STRATEGY=unsafe-best-match UV_LINK_MODE=copy \
		UV_DEFAULT_INDEX="$(call pip-has,INDEX_URL,index-url)" \
		UV_INDEX="$(call pip-has,EXTRA_INDEX_URL,extra-index-url)" \
		UV_FIND_LINKS="$(call pip-has,FIND_LINKS,find-links)" \
	&& uv pip install --quiet --python $(1)/bin/python $(2) ) \
	|| $(1)/bin/pip install --quiet --disable-pip-version-check $(2)

.PHONY: run smol figures notebooks docs test test-gpu test-oldest lab slides setup setup-engines lint clean

run: $(READY)  ## train, evaluate, compare: table and figures of PROFILE (default tiny), in runs/
	@gdro run $(PROFILE) --cores $(CORES)

smol: .venv-vllm/ready  ## train a pretrained model, GRPO and pivotal: a table, figures, texts before and after
	@.venv-vllm/bin/gdro run smol --cores $(CORES)

figures: run notebooks  ## redraw figures/: those of the tiny profile's runs and of the teaching notebooks
	papermill --no-progress-bar notebooks/06_results.ipynb runs/$(PROFILE)/06_results.ipynb -p profile $(PROFILE)

notebooks: $(READY)  ## run NOTEBOOKS (default those that teach) and store them with their outputs
	python scripts/store_notebooks.py $(NOTEBOOKS)

docs: .venv-docs/ready  ## the site, with notebooks as they are stored and the API reference, in build/docs
	rm -rf build docs/api/generated
	.venv-docs/bin/python -m sphinx -W --keep-going -q -c docs -d build/doctrees . build/docs
	@echo "build/docs/index.html"

test: $(READY)  ## all tests
	python -m pytest -n $(CORES) --dist loadgroup --no-loadscope-reorder

# a process a test: vLLM keeps its GPU until its process ends, and Unsloth must come before TRL
test-gpu:  ## what needs a GPU, with the environment of docs/gpu-box.md
	@failed=0; if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		echo "skipped: torch finds no GPU here"; else \
		found=$$(python -m pytest -q --collect-only -m gpu tests/gpu) || { echo "$$found"; exit 1; }; \
		for test in $$(echo "$$found" | grep ::); do \
			python -m pytest -q -m gpu "$$test" || failed=1; done; fi; exit $$failed

# one method is killed and resumed here, and two processes train with the newest TRL alone
test-oldest: .venv-oldest/ready  ## the trainer's tests with the oldest TRL and transformers that pyproject.toml allows
	.venv-oldest/bin/python -m pytest -q -n $(CORES) --dist loadgroup $(OLDEST) \
		-k "not two_processes and (not killed or both)"

lab: $(READY)  ## JupyterLab on the first notebook
	jupyter lab notebooks/00_grpo_and_gdro.ipynb

slides: $(READY)  ## the lecture's deck, docs/slides.ipynb, in build/slides.slides.html
	jupyter nbconvert --to slides docs/slides.ipynb --output-dir build \
		--SlidesExporter.reveal_width=1280 --SlidesExporter.reveal_height=720

lint: $(READY)
	ruff check . && ruff format --check . && mypy && lint-imports

setup: $(READY)

setup-engines: .venv-vllm/ready .venv-unsloth/ready .venv-verl/ready  ## real vLLM, Unsloth and verl, for the tests that need them

$(READY): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@echo "Installing the locked packages into .venv: about three minutes with pip, less with uv"
	@$(call install,.venv,-r requirements/cpu.txt)
	@$(call install,.venv,--no-deps -e .)
	touch $(READY)

.venv-docs/ready: requirements/docs.txt
	$(PYTHON) -m venv .venv-docs
	@echo "Installing the locked packages into .venv-docs: about a minute"
	@$(call install,.venv-docs,-r requirements/docs.txt)
	touch $@

# What does not agree with the cpu lock, each in an environment of its own.
vpath %-cpu.txt requirements .ci
.venv-%/ready: %-cpu.txt pyproject.toml
	$(PYTHON) -m venv .venv-$*
	@echo "Installing the locked packages into .venv-$*: about three minutes"
	@$(call install,.venv-$*,--no-deps -r $<)
	@$(call install,.venv-$*,--no-deps -e .)
	touch $@

clean:
	rm -rf runs .cache
