# Most targets only call the program; `make help` lists them, and `make help train` shows the variables of train.
# t5xpg/commands.py says which variables a command of the program takes: it finds them in its environment.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A value is the text that was typed, PROMPT='It costs $5' too: neither Make nor a shell reads anything in it. Recipes
# name values as the shell's "$$VARIABLE" alone.
TYPED_VARIABLES :=
define literal
override $(1) := $$(value $(1))
export $(1)
TYPED_VARIABLES += $(1)
endef
$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(eval $(call literal,$(name)))))
# The program refuses those that it does not know. MAKECMDGOALS itself would be the targets of a make within this one.
TYPED_TARGETS := $(MAKECMDGOALS)
export TYPED_VARIABLES TYPED_TARGETS

# Some systems set it to the machine's name.
ifeq ($(origin NAME),environment)
unexport NAME
endif

# The kind of machine chooses the lock. The one that was installed, or begun, stays until another is named.
# An image is for GPUs, wherever it is made, unless MACHINE is given.
MACHINES := apple cpu cuda tpu
ifneq ($(strip $(value MACHINE)),)
override MACHINE := $(value MACHINE)
IMAGE := $(MACHINE)
else
override MACHINE := $(firstword $(wildcard $(foreach state,installed installing,$(MACHINES:%=.venv/.$(state)-%))))
override MACHINE := $(lastword $(subst -, ,$(MACHINE)))
override MACHINE := $(or $(MACHINE),$(shell sh requirements/machine))
IMAGE := cuda
endif
ifneq ($(words $(MACHINE)):$(filter-out $(MACHINES),$(MACHINE)),1:)
$(error MACHINE=$(MACHINE) is none of: $(MACHINES))
endif
INSTALLED := .venv/.installed-$(MACHINE)
TOOLS := .venv/.installed-dev
GPUS := $(if $(filter cuda,$(IMAGE)),--gpus all)
IMAGE_REVISION = $(shell git rev-parse HEAD 2>/dev/null)$(shell [ -z "$$(git status --porcelain 2>/dev/null)" ] || echo +)

PROGRAM := .venv/bin/python -m t5xpg
# A worker that crashes ends the run: with another in its place, xdist can wait for ever.
PYTEST := .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Make says whether it is given: in bash, SECONDS is never empty.
FUZZ_SECONDS := $(if $(value SECONDS),--seconds="$$SECONDS")
# The locked jax-mps has wheels for Python 3.13 only.
WITH_PYTHON := python="$$(sh requirements/find_python $(if $(filter apple,$(MACHINE)),3.13))" &&

ifneq ($(filter help,$(or $(MAKECMDGOALS),help)),)
MAKEFLAGS += --silent
# The other words are what it is about.
export HELP_ON := $(filter-out help,$(MAKECMDGOALS))
.PHONY: help $(HELP_ON)
help:
	@for p in .venv/bin/python python3 python; do command -v "$$p" >/dev/null && exec "$$p" -m t5xpg.help_page; done; \
		echo "make: \`make help\` needs Python, which was not found" >&2; exit 1
$(HELP_ON): help
	@:
else

COMMANDS := demo data vocab tokens cache new check examples estimate plan train record eval infer tune-decoding significance runs export import convert-gin \
	report site watch reproduce verify-claim sweep speedrun-check prove-resume prove-hosts
.PHONY: $(COMMANDS) install docker-build docker-train test test-all prove lint format bench gpu bench-peers fuzz goldens lock clean clean-data

$(COMMANDS): $(INSTALLED)
	@$(PROGRAM) --from-make $@

install: $(INSTALLED)

$(INSTALLED): requirements/$(MACHINE).txt requirements/bootstrap.txt requirements/install.py pyproject.toml
	@$(WITH_PYTHON) "$$python" requirements/install.py $(MACHINE)

$(TOOLS): $(INSTALLED) requirements/dev.txt
	@.venv/bin/python requirements/install.py $(MACHINE) --part tools

docker-build:
	@docker build --file docker/Dockerfile --build-arg MACHINE=$(IMAGE) --build-arg REVISION=$(IMAGE_REVISION) \
		$${PIP_CONF:+--secret "id=pip,src=$$PIP_CONF"} --tag t5xpg:$(IMAGE) .

docker-train: docker-build
	@mkdir -p data cache runs
	@docker run --rm --init $(GPUS) --shm-size 2g --user "$$(id -u):$$(id -g)" --volume "$$PWD/data:/data" \
		--volume "$$PWD/cache:/cache" --volume "$$PWD/runs:/runs" \
		$(addprefix --env ,$(sort EXP GIN RUN $(TYPED_VARIABLES) TYPED_VARIABLES TYPED_TARGETS)) \
		t5xpg:$(IMAGE) --from-make train

test: $(TOOLS)
	@set -f; $(PYTEST) --tier=units $$TESTS

test-all: $(TOOLS)
	@set -f; $(PYTEST) --tier=processes $$TESTS

prove: $(TOOLS)
	@set -f; $(PYTEST) --tier=proofs $$TESTS
	@[ -n "$$TESTS" ] || .venv/bin/python -m fuzz $(FUZZ_SECONDS)

lint: $(TOOLS)
	@.venv/bin/python -m ruff format --check . && .venv/bin/python -m ruff check . && .venv/bin/python -m mypy

format: $(TOOLS)
	@.venv/bin/python -m ruff format . && .venv/bin/python -m ruff check --fix .

bench: $(INSTALLED)
	@set -f; .venv/bin/python -m benchmarks $${REPEATS:+"--repeats=$$REPEATS"} -- $$ROWS

# PART_SECONDS is what each part may take.
gpu: $(TOOLS)
	@set -f; .venv/bin/python -m benchmarks.gpu $${PART_SECONDS:+"--seconds=$$PART_SECONDS"} -- $$PARTS

bench-peers:
	@$(WITH_PYTHON) "$$python" -m venv .venv-bench && \
		.venv-bench/bin/python -m pip install --quiet --require-hashes -r requirements/bench.txt

fuzz: $(INSTALLED)
	@.venv/bin/python -m fuzz $(FUZZ_SECONDS)

goldens: bench-peers
	@for kind in "" beam_ family_; do .venv-bench/bin/python "tests/goldens/make_$${kind}goldens.py" || exit; done

lock: $(INSTALLED)
	@.venv/bin/python requirements/lock.py $${UPGRADE:+--upgrade}

clean:
	@rm -rf cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . \( -path './.venv*' -o -path ./runs -o -path ./.git \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# DATASET has the names of what is deleted.
clean-data:
	@set --; for manifest in data/*/manifest.json; do folder="$${manifest%/*}"; \
		if grep -q '"sha256"' "$$manifest" 2>/dev/null; then case " $$DATASET " in \
			"  " | *" $${folder#data/} "*) set -- "$$@" "$$folder";; esac; fi; done; \
	[ $$# -gt 0 ] || { echo "data/ has no exported text$${DATASET:+ of this name: $$DATASET}"; exit 0; }; \
	du -sh "$$@"; \
	[ -n "$$DATASET" ] || { echo 'Name what to delete: make clean-data DATASET="…"'; exit 1; }; \
	printf 'Delete the text in them? Vocabularies stay. [y/N] '; read -r answer || echo; \
	case "$$answer" in [yY] | [yY][eE][sS]) ;; *) echo "nothing was deleted"; exit 1;; esac; \
	for folder; do \
		for file in "$$folder"/*.jsonl; do split="$${file##*/}"; \
			if grep -qF "\"$${split%.jsonl}\": {" "$$folder/manifest.json"; then rm -f "$$file"; fi; done; \
		rm -f "$$folder/manifest.json" "$$folder/.t5xpg_digests.json"; \
		rmdir "$$folder" 2>/dev/null || :; done

endif
