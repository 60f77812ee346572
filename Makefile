# Each target is one line that calls the program; `make help` lists them.
# Values come from the command line as environment variables, so that no shell reads them: EXP="my run" is safe.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

EXP ?= byt5_tiny_demo
DATASET ?= wikitext
TASK ?= wikitext_span_corruption
# Large pages for malloc: XLA's CPU backend otherwise loses a quarter of its time to page faults.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

# Make reads `$` in values; here a value is the text that was typed: PROMPT='It costs $5'.
VALUES := EXP DATASET TASK GIN FILES LIMIT ON_BAD_LINE FORCE RUNNER BEAM_OPTIONS MODULE_IMPORT PROMPT INPUT OUTPUT RUN
VALUES += JOBS STEPS RECORDED KILLS KILL_SEED PRICE_PER_HOUR SKIP_NONFINITE SECONDS TESTS ROWS REPEATS
define literal
override $(1) := $$(value $(1))
endef
$(foreach name,$(VALUES),$(eval $(call literal,$(name))))
export $(VALUES) GLIBC_TUNABLES

# The kind of machine chooses the lock: cpu, cuda, tpu or apple. The one that was installed stays until another is named.
MACHINES := apple cpu cuda tpu
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
PROGRAM := .venv/bin/python -m t5xpg

GIN_OPTION = $${GIN:+"--gin-overrides=$$GIN"}
RUN_OPTION = $${RUN:+"--run=$$RUN"}
MODULES = $${MODULE_IMPORT:+"--module-import=$$MODULE_IMPORT"}
STEPS_OPTION = $${STEPS:+"--steps=$$STEPS"}
VERIFIED = $(if $(filter-out 0 no false,$(VERIFY)),--verify)
FORCED = $(if $(filter-out 0 no false,$(FORCE)),--force)

.PHONY: help install demo data cache check estimate train record eval infer report reproduce prove-resume sweep test bench bench-peers fuzz \
	lint format goldens lock clean clean-runs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## install the packages of this kind of machine into .venv (MACHINE=cpu|cuda|tpu|apple, PYTHON=python3)

$(INSTALLED): requirements/$(MACHINE).txt requirements/bootstrap.txt requirements/install.py pyproject.toml
	@python="$(PYTHON)"; [ -n "$$python" ] || { $(NO_PYTHON); }; "$$python" requirements/install.py "$(MACHINE)"

demo: $(INSTALLED) ## the whole chain on text that is already on the machine: export, cache, train, evaluate, fill in blanks, report
	@$(PROGRAM) demo $(GIN_OPTION) $(RUN_OPTION)

data: $(INSTALLED) ## export a dataset to JSONL (DATASET=wikitext, FILES="train=a.txt validation=b.txt", LIMIT=n, ON_BAD_LINE=skip, FORCE=1)
	@$(PROGRAM) data "$$DATASET" $${FILES:+"--files=$$FILES"} $${LIMIT:+"--limit=$$LIMIT"} $${ON_BAD_LINE:+"--on-bad-line=$$ON_BAD_LINE"} $(FORCED) $(VERIFIED)

cache: $(INSTALLED) ## cache a task with SeqIO (TASK=wikitext_span_corruption, RUNNER=, BEAM_OPTIONS=, MODULE_IMPORT=, FORCE=1)
	@$(PROGRAM) cache "$$TASK" $${RUNNER:+"--runner=$$RUNNER"} $${BEAM_OPTIONS:+"--beam-options=$$BEAM_OPTIONS"} $(MODULES) $(FORCED) $(VERIFIED)

check: $(INSTALLED) ## say everything that can be known before training (EXP=, GIN=, RUN=, VERIFY=1)
	@$(PROGRAM) check "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $(VERIFIED)

estimate: $(INSTALLED) ## time some steps: parameters, memory, time and cost of the whole run (EXP=, GIN=, PRICE_PER_HOUR=)
	@$(PROGRAM) estimate "$$EXP" $(GIN_OPTION) $${PRICE_PER_HOUR:+"--price-per-hour=$$PRICE_PER_HOUR"}

train: $(INSTALLED) ## train an experiment, or continue it where it stopped (EXP=byt5_tiny_mps, GIN="--gin.TRAIN_STEPS=200", RUN=folder, RECORDED=folder, PROFILE=1, SKIP_NONFINITE=n, VERIFY=1)
	@$(PROGRAM) train "$$EXP" $(GIN_OPTION) $${SKIP_NONFINITE:+"--gin.SKIP_NONFINITE=$$SKIP_NONFINITE"} $(RUN_OPTION) $${RECORDED:+"--recorded=$$RECORDED"} $(VERIFIED) $(if $(filter-out 0 no false,$(PROFILE)),--profile)

record: $(INSTALLED) ## write the batches of a run, to train from them without TensorFlow (EXP=, STEPS=1000, GIN=, OUTPUT=folder, FORCE=1)
	@$(PROGRAM) record "$$EXP" $(GIN_OPTION) $(STEPS_OPTION) $${OUTPUT:+"--output=$$OUTPUT"} $(FORCED) $(VERIFIED)

eval: $(INSTALLED) ## measure a run's last checkpoint on the validation split (EXP=, GIN=, RUN=, VERIFY=1)
	@$(PROGRAM) eval "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $(VERIFIED)

infer: $(INSTALLED) ## fill in blanks (EXP=, PROMPT="The <extra_id_0> ruined my sleep", or INPUT=file.jsonl OUTPUT=file.jsonl)
	@$(PROGRAM) infer "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $${PROMPT:+"--prompt=$$PROMPT"} $${INPUT:+"--input=$$INPUT"} $${OUTPUT:+"--output=$$OUTPUT"}

report: $(INSTALLED) ## publish a run: results.json, the README's results block and the curve of experiments/EXP
	@$(PROGRAM) report "$$EXP" $(RUN_OPTION)

reproduce: $(INSTALLED) ## train again in a clean run directory and compare with the published results (EXP=, STEPS=n, RUN=)
	@$(PROGRAM) reproduce "$$EXP" $(STEPS_OPTION) $(RUN_OPTION)

prove-resume: $(INSTALLED) ## kill a run again and again, and compare it with one that was not (EXP=, KILLS=20, KILL_SEED=0, GIN=, RUN=)
	@$(PROGRAM) prove-resume "$$EXP" $(GIN_OPTION) $(RUN_OPTION) $${KILLS:+"--kills=$$KILLS"} $${KILL_SEED:+"--kill-seed=$$KILL_SEED"}

sweep: $(INSTALLED) ## train the runs of a sweep, or those that are left (EXP=optimizers_tiny, JOBS=1, RUN=; TIMES=1: measure their steps)
	@$(PROGRAM) sweep "$$EXP" $(RUN_OPTION) $${JOBS:+"--jobs=$$JOBS"} $(if $(filter-out 0 no false,$(TIMES)),--times)

test: $(INSTALLED) ## run the tests (TESTS="tests/models tests/test_step.py" for a part)
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
	@python="$(PYTHON)"; [ -n "$$python" ] || { $(NO_PYTHON); }; "$$python" -m venv .venv-goldens && .venv-goldens/bin/python -m pip install --quiet --require-hashes -r requirements/goldens.txt && .venv-goldens/bin/python tests/goldens/make_goldens.py

lock: $(INSTALLED) ## resolve pyproject.toml into the hashed locks of requirements/
	@.venv/bin/python requirements/lock.py

clean: ## remove exports, caches and compiled files; keeps .venv and runs
	@rm -rf cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . \( -path './.venv*' -o -path ./runs -o -path ./.git \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
	@for manifest in data/*/manifest.json; do \
		grep -q '"sha256"' "$$manifest" 2>/dev/null || continue; folder="$${manifest%/*}"; \
		rm -f "$$folder/train.jsonl" "$$folder/validation.jsonl" "$$folder/test.jsonl" "$$manifest"; \
		rmdir "$$folder" 2>/dev/null || :; done

clean-runs: $(INSTALLED) ## list the run directories, and delete them if the answer is yes
	@$(PROGRAM) clean-runs
