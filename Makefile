# Each target is one line that calls the program; `make help` lists them.
# Values come from the command line as environment variables, so that no shell reads them: EXP="my run" is safe.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

EXP ?= byt5_tiny_demo
DATASET ?= wikitext
TASK_IS_GIVEN := $(filter-out undefined,$(origin TASK))
TASK ?= wikitext_span_corruption
# Large pages for malloc: XLA's CPU backend otherwise loses a quarter of its time to page faults.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

# Some systems set it to the machine's.
ifeq ($(origin NAME),environment)
NAME :=
endif
# Make reads `$` in values; here a value is the text that was typed: PROMPT='It costs $5'.
VALUES := EXP DATASET TASK GIN FILES FIELDS LIMIT ON_BAD_LINE FORCE RUNNER BEAM_OPTIONS STAGING MODULE_IMPORT PROMPT INPUT OUTPUT SPLIT RUN
VALUES += JOBS STEP STEPS RECORDED KILLS KILL_SEED PRICE_PER_HOUR SKIP_NONFINITE SECONDS TESTS ROWS REPEATS
VALUES += HUB CONFIG REVISION SELECT MAX_MB
VALUES += MESH DEVICE DEVICES CELLS
VALUES += CHECKPOINT NAME FORMAT SENTINELS ENGINE INITIAL LOGGER PIP_CONF
VALUES += COORDINATOR PROCESSES PROCESS
VALUES += SIZE EXTRA_IDS MODEL SAMPLE SEED CHARACTER_COVERAGE NORMALIZATION VOCAB TOKENIZER EOS_TOKEN PAD_TOKEN TEXT IDS
define literal
override $(1) := $$(value $(1))
endef
$(foreach name,$(VALUES),$(eval $(call literal,$(name))))
export $(VALUES) GLIBC_TUNABLES

# The kind of machine chooses the lock: cpu, cuda, tpu or apple. The one that was installed stays until another is named.
MACHINES := apple cpu cuda tpu
MACHINE_ORIGIN := $(firstword $(origin MACHINE))
MACHINE ?= $(patsubst .venv/.installed-%,%,$(firstword $(wildcard $(MACHINES:%=.venv/.installed-%))))
ifeq ($(strip $(MACHINE)),)
MACHINE := $(shell sh requirements/machine)
endif
ifeq ($(filter $(MACHINES),$(MACHINE)),)
$(error MACHINE=$(MACHINE) is none of: $(MACHINES))
endif
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo "$$p" && break; done)
NO_PYTHON = echo "make: Python 3.11, 3.12 or 3.13 is needed and was not found; name one with PYTHON=/path/to/python3" >&2; exit 1

INSTALLED := .venv/.installed-$(MACHINE)
# An image is for GPUs, wherever it is made, unless MACHINE= is given.
IMAGE := $(if $(filter command environment,$(MACHINE_ORIGIN)),$(MACHINE),cuda)
GPUS := $(if $(filter cuda,$(IMAGE)),--gpus all)
IMAGE_REVISION = $(shell git rev-parse HEAD 2>/dev/null)$(shell [ -z "$$(git status --porcelain 2>/dev/null)" ] || echo +)
PROGRAM := .venv/bin/python -m t5xpg

GIN_OPTION = $${GIN:+"--gin-overrides=$$GIN"}
RUN_OPTION = $${RUN:+"--run=$$RUN"}
LOGGER_OPTION = $${LOGGER:+"--logger=$$LOGGER"}
MODULES = $${MODULE_IMPORT:+"--module-import=$$MODULE_IMPORT"}
STEP_OPTION = $${STEP:+"--step=$$STEP"}
HOSTS_OPTIONS = $${COORDINATOR:+"--coordinator=$$COORDINATOR"} $${PROCESSES:+"--processes=$$PROCESSES"} $${PROCESS:+"--process=$$PROCESS"}
STEPS_OPTION = $${STEPS:+"--steps=$$STEPS"}
DATA_OPTIONS = $${FIELDS:+"--fields=$$FIELDS"} $${HUB:+"--hub=$$HUB"} $${CONFIG:+"--config=$$CONFIG"} $${REVISION:+"--revision=$$REVISION"} \
	$${SELECT:+"--select=$$SELECT"} $${MAX_MB:+"--max-mb=$$MAX_MB"}
VOCAB_OPTIONS = $${SIZE:+"--size=$$SIZE"} $${EXTRA_IDS:+"--extra-ids=$$EXTRA_IDS"} $${MODEL:+"--model=$$MODEL"} \
	$${SAMPLE:+"--sample=$$SAMPLE"} $${SEED:+"--seed=$$SEED"} $${CHARACTER_COVERAGE:+"--character-coverage=$$CHARACTER_COVERAGE"} \
	$${NORMALIZATION:+"--normalization=$$NORMALIZATION"} $${VOCAB:+"--name=$$VOCAB"} $${TOKENIZER:+"--tokenizer=$$TOKENIZER"} \
	$${EOS_TOKEN:+"--eos-token=$$EOS_TOKEN"} $${PAD_TOKEN:+"--pad-token=$$PAD_TOKEN"}
MESH_OPTIONS = $${MESH:+"--mesh=$$MESH"} $${DEVICE:+"--device=$$DEVICE"} $${DEVICES:+"--devices=$$DEVICES"}
VERIFIED = $(if $(filter-out 0 no false,$(VERIFY)),--verify)
FORCED = $(if $(filter-out 0 no false,$(FORCE)),--force)

.PHONY: help install demo data vocab tokens cache check estimate plan train record eval infer export import report reproduce prove-resume prove-hosts sweep test bench bench-peers fuzz \
	lint format goldens lock docker-build docker-train clean clean-runs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## install the packages of this kind of machine into .venv (MACHINE=cpu|cuda|tpu|apple, PYTHON=python3)

$(INSTALLED): requirements/$(MACHINE).txt requirements/bootstrap.txt requirements/install.py pyproject.toml
	@python="$(PYTHON)"; [ -n "$$python" ] || { $(NO_PYTHON); }; "$$python" requirements/install.py "$(MACHINE)"

demo: $(INSTALLED) ## the whole chain on text that is already on the machine: export, cache, train, evaluate, fill in blanks, report
	@$(PROGRAM) demo $(GIN_OPTION) $(RUN_OPTION)

data: $(INSTALLED) ## export a dataset to JSONL (DATASET=wikitext, FILES="train=a.txt validation=b.txt", FIELDS=en,de, HUB=a/dataset CONFIG= REVISION=, SELECT='a*', LIMIT=n, MAX_MB=n, ON_BAD_LINE=skip, FORCE=1)
	@$(PROGRAM) data "$$DATASET" $${FILES:+"--files=$$FILES"} $(DATA_OPTIONS) $${LIMIT:+"--limit=$$LIMIT"} $${ON_BAD_LINE:+"--on-bad-line=$$ON_BAD_LINE"} $(FORCED) $(VERIFIED)

vocab: $(INSTALLED) ## train a SentencePiece vocabulary (DATASET=wikitext, SIZE=32000, EXTRA_IDS=100, MODEL=unigram|bpe, SAMPLE=1000000 lines or 200MB, SEED=0, BYTE_FALLBACK=1, NORMALIZATION=identity, CHARACTER_COVERAGE=, VOCAB=name, FORCE=1; TOKENIZER=file VOCAB=name: take one)
	@$(PROGRAM) vocab "$$DATASET" $(VOCAB_OPTIONS) $(if $(filter-out 0 no false,$(BYTE_FALLBACK)),--byte-fallback) $(FORCED) $(VERIFIED)

tokens: $(INSTALLED) ## show a text as tokens and ids (TASK=pydocs_span_corruption or TOKENIZER=file, TEXT="The <extra_id_0> sat", or IDS=383,105)
	@$(PROGRAM) tokens "$${TOKENIZER:-$$TASK}" $${TEXT:+"--text=$$TEXT"} $${IDS:+"--ids=$$IDS"}

cache: $(INSTALLED) ## cache a task with SeqIO (TASK=wikitext_span_corruption, RUNNER=DaskRunner, BEAM_OPTIONS=, STAGING=folder, MODULE_IMPORT=, FORCE=1)
	@$(PROGRAM) cache "$$TASK" $${RUNNER:+"--runner=$$RUNNER"} $${BEAM_OPTIONS:+"--beam-options=$$BEAM_OPTIONS"} $${STAGING:+"--staging=$$STAGING"} $(MODULES) $(FORCED) $(VERIFIED)

check: $(INSTALLED) ## say everything that can be known before training (EXP=, GIN=, RUN=, LOGGER=, VERIFY=1; for devices that are not here MESH= DEVICE= DEVICES= as of plan)
	@$(PROGRAM) check "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $(LOGGER_OPTION) $(MESH_OPTIONS) $(VERIFIED)

estimate: $(INSTALLED) ## time some steps: parameters, memory, time and cost of the whole run (EXP=, GIN=, PRICE_PER_HOUR=)
	@$(PROGRAM) estimate "$$EXP" $(GIN_OPTION) $${PRICE_PER_HOUR:+"--price-per-hour=$$PRICE_PER_HOUR"}

plan: $(INSTALLED) ## memory, collectives, time and MFU of a step on devices that are not here (EXP=, MESH=data_parallel or data=8,model=4, DEVICE=h100, DEVICES=n, GIN=, JSON=1, OUTPUT=file.json)
	@$(PROGRAM) plan "$$EXP" $(GIN_OPTION) $(MESH_OPTIONS) $${OUTPUT:+"--output=$$OUTPUT"} $(if $(filter-out 0 no false,$(JSON)),--json)

train: $(INSTALLED) ## train an experiment, or continue it where it stopped (EXP=byt5_tiny_mps, GIN="--gin.TRAIN_STEPS=200", RUN=folder, RECORDED=folder, LOGGER=wandb, PROFILE=1, SKIP_NONFINITE=n, VERIFY=1; on several hosts COORDINATOR=host:port PROCESSES=n PROCESS=0…; ENGINE=t5x: by T5X itself, INITIAL=checkpoint)
	@$(PROGRAM) train "$$EXP" $(GIN_OPTION) $${SKIP_NONFINITE:+"--gin.SKIP_NONFINITE=$$SKIP_NONFINITE"} $(RUN_OPTION) $(LOGGER_OPTION) $${RECORDED:+"--recorded=$$RECORDED"} $(HOSTS_OPTIONS) $(VERIFIED) $(if $(filter-out 0 no false,$(PROFILE)),--profile) $${ENGINE:+"--engine=$$ENGINE"} $${INITIAL:+"--initial=$$INITIAL"}

record: $(INSTALLED) ## write the batches of a run, to train from them without TensorFlow (EXP=, STEPS=1000, GIN=, OUTPUT=folder, FORCE=1)
	@$(PROGRAM) record "$$EXP" $(GIN_OPTION) $(STEPS_OPTION) $${OUTPUT:+"--output=$$OUTPUT"} $(FORCED) $(VERIFIED)

eval: $(INSTALLED) ## measure a run's last checkpoint on the validation split (EXP=, SPLIT=test for another one, TASK= for another task of the same ids, STEP=n or best, GIN=, RUN=, VERIFY=1)
	@$(PROGRAM) eval "$$EXP" $(STEP_OPTION) $(GIN_OPTION) $(RUN_OPTION) $${SPLIT:+"--split=$$SPLIT"} $(if $(TASK_IS_GIVEN),$${TASK:+"--task=$$TASK"}) $(VERIFIED)

infer: $(INSTALLED) ## fill in blanks (EXP=, PROMPT="The <extra_id_0> ruined my sleep", or INPUT=file.jsonl or SPLIT=validation with OUTPUT=file.jsonl; STEP=n or best; GIN="--gin.decoding.DecodingConfig.method=beam")
	@$(PROGRAM) infer "$$EXP" $(STEP_OPTION) $(GIN_OPTION) $(RUN_OPTION) $${PROMPT:+"--prompt=$$PROMPT"} $${INPUT:+"--input=$$INPUT"} $${SPLIT:+"--split=$$SPLIT"} $${OUTPUT:+"--output=$$OUTPUT"}

export: $(INSTALLED) ## write a run's checkpoint for transformers, and compare, or for T5X (EXP=, RUN=, FORMAT=hf or t5x, OUTPUT=folder)
	@$(PROGRAM) export "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $${FORMAT:+"--format=$$FORMAT"} $${OUTPUT:+"--output=$$OUTPUT"}

import: $(INSTALLED) ## make a run of a checkpoint of transformers, T5X or Mesh-TensorFlow (CHECKPOINT=google/byt5-small or a folder, NAME=, TOKENIZER=, SENTINELS=, OPTIMIZER=1, FORCE=1)
	@$(PROGRAM) import "$$CHECKPOINT" $${NAME:+"--name=$$NAME"} $${TOKENIZER:+"--tokenizer=$$TOKENIZER"} $${SENTINELS:+"--sentinels=$$SENTINELS"} $(if $(filter-out 0 no false,$(OPTIMIZER)),--optimizer) $(FORCED)

report: $(INSTALLED) ## publish a run: results.json, the README's results block and the curve of experiments/EXP
	@$(PROGRAM) report "$$EXP" $(RUN_OPTION)

reproduce: $(INSTALLED) ## train again in a clean run directory and compare with the published results (EXP=, STEPS=n, RUN=)
	@$(PROGRAM) reproduce "$$EXP" $(STEPS_OPTION) $(RUN_OPTION)

prove-resume: $(INSTALLED) ## kill a run again and again, and compare it with one that was not (EXP=, KILLS=20, KILL_SEED=0, GIN=, RUN=)
	@$(PROGRAM) prove-resume "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $${KILLS:+"--kills=$$KILLS"} $${KILL_SEED:+"--kill-seed=$$KILL_SEED"}

prove-hosts: $(INSTALLED) ## train on 1, 2 and 4 processes of this machine, kill one, go on with another number, and compare (EXP=, PROCESSES=4, GIN=, RUN=)
	@$(PROGRAM) prove-hosts "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $${PROCESSES:+"--processes=$$PROCESSES"}

sweep: $(INSTALLED) ## train the runs of a sweep or a matrix, or those that are left (EXP=optimizers_tiny, JOBS=1, RUN=, CELLS='*,lm,*' of a matrix; TIMES=1: measure steps of a sweep)
	@$(PROGRAM) sweep "$$EXP" $(RUN_OPTION) $${JOBS:+"--jobs=$$JOBS"} $${CELLS:+"--cells=$$CELLS"} $(if $(filter-out 0 no false,$(TIMES)),--times)

test: $(INSTALLED) ## run the tests (TESTS="tests/models tests/optim/test_step.py" for a part)
	@set -f; .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $$TESTS

bench: $(INSTALLED) ## measure speeds beside those of other programs, about 25 minutes (ROWS="step caching" for some, REPEATS=n)
	@set -f; .venv/bin/python -m benchmarks $${REPEATS:+"--repeats=$$REPEATS"} -- $$ROWS

bench-peers: ## install what `make bench` compares with into .venv-bench: torch and transformers
	@python="$(PYTHON)"; [ -n "$$python" ] || { $(NO_PYTHON); }; "$$python" -m venv .venv-bench && .venv-bench/bin/python -m pip install --quiet --require-hashes -r requirements/bench.txt

fuzz: $(INSTALLED) ## look for inputs that break what reads files and options (SECONDS=60 for all readers together; Linux, Python 3.11)
	@.venv/bin/python -m fuzz --seconds="$${SECONDS:-60}"

lint: $(INSTALLED) ## check format, lint and types
	@.venv/bin/python -m ruff format --check . && .venv/bin/python -m ruff check . && .venv/bin/python -m mypy

format: $(INSTALLED) ## format the code
	@.venv/bin/python -m ruff format . && .venv/bin/python -m ruff check --fix .

goldens: ## make the reference tensors of the tests again, with torch and transformers in .venv-goldens
	@python="$(PYTHON)"; [ -n "$$python" ] || { $(NO_PYTHON); }; "$$python" -m venv .venv-goldens && .venv-goldens/bin/python -m pip install --quiet --require-hashes -r requirements/goldens.txt && .venv-goldens/bin/python tests/goldens/make_goldens.py && .venv-goldens/bin/python tests/goldens/make_beam_goldens.py

docker-build: ## build the image of docker/Dockerfile (MACHINE=cuda|cpu, PIP_CONF=file with a registry of yours)
	@docker build --file docker/Dockerfile --build-arg MACHINE=$(IMAGE) --build-arg REVISION=$(IMAGE_REVISION) $${PIP_CONF:+--secret "id=pip,src=$$PIP_CONF"} --tag t5xpg:$(IMAGE) .

docker-train: docker-build ## train an experiment in the image, into runs/ (EXP=, GIN=, RUN=, LOGGER=, MACHINE=cuda|cpu)
	@mkdir -p data cache runs
	@docker run --rm --init $(GPUS) --shm-size 2g --user "$$(id -u):$$(id -g)" --volume "$$PWD/data:/data" --volume "$$PWD/cache:/cache" --volume "$$PWD/runs:/runs" t5xpg:$(IMAGE) train "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $(LOGGER_OPTION)

lock: $(INSTALLED) ## resolve pyproject.toml into the hashed locks of requirements/
	@.venv/bin/python requirements/lock.py

clean: ## remove exports, caches and compiled files; keeps .venv, runs and vocabularies
	@rm -rf cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . \( -path './.venv*' -o -path ./runs -o -path ./.git \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
	@for manifest in data/*/manifest.json; do \
		grep -q '"sha256"' "$$manifest" 2>/dev/null || continue; folder="$${manifest%/*}"; \
		rm -f "$$folder/train.jsonl" "$$folder/validation.jsonl" "$$folder/test.jsonl" "$$manifest"; \
		rmdir "$$folder" 2>/dev/null || :; done

clean-runs: $(INSTALLED) ## list the run directories, and delete them if the answer is yes
	@$(PROGRAM) clean-runs
