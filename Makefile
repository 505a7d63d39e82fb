# make demo       a chat model and a denoiser, plainly and in parallel, side by side
# make test       lint, types and the quick tier of the tests
# make test-fast  tests that compile nothing large, in less than 3 minutes
# make test-slow  the quick tier, and what trains and decodes from end to end
# make test-all   every test, compiled as a user's program is
#                 PYTHON=python3.12 for another Python,
#                 EXTRAS=test,tfds,aot with the compilers of TPUs and GPUs, TESTS=tests/trees for some
# make accelerator
#                 what only an accelerator can show, in less than 25 minutes; CHIP=tpu on a TPU
# make docs       the documentation, with the API reference
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(if $(shell command -v $(p)),$(p))))
EXTRAS ?= test,tfds
CHIP ?= cuda
TESTS ?= tests
VENV := $(if $(filter python3.11 python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal
FAST := $(addprefix tests/,data trees verifiers test_bad_arguments.py test_bad_input.py test_sampling.py \
  cli/test_bad_commands.py diffusion/test_unmasking.py draft_length/test_draft_length.py \
  names/test_names.py train/test_bad_options.py)
# Else each process compiles anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-slow test-all lint docs accelerator clean

demo: $(VENV)/.with-tfds
	$(BIN)/python examples/demo.py $(PROMPTS)

test: lint
	$(PYTEST) $(TESTS)

test-fast: lint
	$(PYTEST) $(FAST)

test-slow: lint
	$(PYTEST) --slow $(TESTS)

test-all: lint
	$(PYTEST) --full $(TESTS)

lint: $(VENV)/.with-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

accelerator: $(VENV)/.with-$(CHIP)
	$(BIN)/python benchmarks/accelerator.py

# Python compiles what it imports; pip would compile all of every package.
$(VENV)/.with-%: setup.py pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -e .[$*]
	touch $@

clean:
	rm -rf .venv .venv-* .jax_cache build *.egg-info
