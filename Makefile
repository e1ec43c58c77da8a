# The commands a person needs. Each sets up .venv first when it is missing or older than what defines it.
PYTHON ?= python3
# Kept bytecode: with it each process of pytest takes 4 s of a processor to collect the tests, instead of compiling them.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
EXPORTS_VENV := .venv-exports
INTEGRATIONS_VENV := .venv-integrations

.DEFAULT_GOAL := help
.PHONY: help env demo demo-chat test test-long test-exhaustive test-exports test-integrations check bench modules clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

env: $(STAMP)  ## set up the environment in .venv

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tokenmill needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Remedy: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	UV_FIND_LINKS="$${UV_FIND_LINKS-$$(echo $$PIP_FIND_LINKS | tr ' ' ,)}" $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode \
		-c constraints.txt -e '.[clean,datatrove,experiments,gguf,html,hub,ray,train,dev]'
	touch $(STAMP)

demo: $(STAMP)  ## corpus, shards, validation, training and samples on this machine, no network
	PYTHON=$(BIN)/python sh recipes/demo.sh

demo-chat: $(STAMP)  ## the demo's model learns to answer: conversations, weights, an answer, a GGUF file; no network
	PYTHON=$(BIN)/python sh recipes/demo-chat.sh

test: $(STAMP)  ## run the tests, but for those marked `long`
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not long'

test-long: $(STAMP)  ## run the tests that take many seconds each: builds and trainings that are killed, clusters, real text
	$(BIN)/python -m pytest -n 3 --dist worksteal -m long

test-exhaustive: $(STAMP)  ## the same with more kills and documents, trainings side by side, and a signal or a fault at each call (days)
	TOKENMILL_EXHAUSTIVE_TESTS=1 $(BIN)/python -m pytest tests/pipeline/test_same_bytes.py tests/pipeline/test_given_ids.py tests/trainer/test_crashes.py \
		tests/pipeline/test_contamination_scripts.py tests/pipeline/test_shipped_recipes.py tests/test_signals.py tests/test_fuzz.py tests/test_anomalies.py

test-exports: $(STAMP) $(EXPORTS_VENV)/.stamp  ## read exports with the libraries they are for, in an environment of their own
	rm -rf out/test-exports
	$(BIN)/python -m tests.exports.write_exports out/test-exports
	$(EXPORTS_VENV)/bin/python tests/exports/read_exports.py out/test-exports
	$(BIN)/python -m pytest tests/trainer/test_gguf.py

$(EXPORTS_VENV)/.stamp: constraints-exports.txt
	$(PYTHON) -m venv --clear $(EXPORTS_VENV)
	$(EXPORTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r $<
	touch $@

test-integrations: $(INTEGRATIONS_VENV)/.stamp  ## train with other trainers, killed and resumed; score exported models by lm-evaluation-harness (an environment of their own; minutes)
	$(INTEGRATIONS_VENV)/bin/python -m pytest -o addopts=--import-mode=importlib --confcutdir=tests/integrations tests/integrations

$(INTEGRATIONS_VENV)/.stamp: constraints-integrations.txt pyproject.toml
	$(PYTHON) -m venv --clear $(INTEGRATIONS_VENV)
	$(INTEGRATIONS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $< -e '.[torch]' accelerate einops grain \
		lightning lm_eval pytest pytest-timeout spmd_types torch_checkpointing torchdata transformers tyro
	$(INTEGRATIONS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $< --no-deps torchtitan
	touch $@

check: $(STAMP)  ## lint, format, spelling, types, import rules, size
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.size

bench: $(STAMP)  ## measure speed and memory on real text (minutes)
	$(BIN)/python -m tests.benchmarks.bench

modules: $(STAMP)  ## list every module: its first line, its public functions and classes
	@$(BIN)/python -m tests.support.modules

clean:  ## remove what the commands above wrote
	rm -rf out $(VENV) $(EXPORTS_VENV) $(INTEGRATIONS_VENV) .pytest_cache .ruff_cache .hypothesis
