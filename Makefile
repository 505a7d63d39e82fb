# make demo    plain, prompt-lookup and Medusa decoding side by side
# make test    lint, types and tests;  make test PYTHON=python3.12 for another Python,
#              make test EXTRAS=test,tfds,aot with the compilers of TPUs and GPUs
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(if $(shell command -v $(p)),$(p))))
EXTRAS ?= test,tfds
VENV := $(if $(filter python3.11 python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin

.PHONY: demo test lint docs clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py $(PROMPTS)

test: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest -q -n 2 tests

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .[docs]
	$(BIN)/mkdocs build --strict

$(VENV)/.installed: setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .[tfds]
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .[$(EXTRAS)]
	touch $@

clean:
	rm -rf .venv .venv-* .jax_cache build *.egg-info
