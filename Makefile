# `make demo`, `make test` and every other target install what they need into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := $(VENV)/.peers

.PHONY: install demo test test-slow test-peers lint format types bench docs clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into $(VENV), which takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,peers]"
	touch $@

demo: install          ## train on the bundled bars, backtest on bars never seen, write runs/demo/report.html
	rm -rf runs/demo
	$(BIN)/jaxrl-trade train ppo --out runs/demo

test: install          ## the tests that fit in 10 minutes on 2 cores
	$(BIN)/python -m pytest -q -n auto --dist loadscope -m "not slow and not peers" --durations=15

test-slow: install     ## kills, fuzzing, two processes, learning on many seeds
	$(BIN)/python -m pytest -q -m slow --durations=15

test-peers: $(PEERS)   ## beside PyTorch and Stable-Baselines3, on a CPU
	$(BIN)/python -m pytest -q -m peers --durations=5 tests/peers

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install
	$(BIN)/mypy

bench: install         ## every way of collecting, every pass and a PPO iteration side by side, into runs/benchmark.*
	$(BIN)/python scripts/benchmark.py --out runs/benchmark.json --markdown runs/benchmark.md

docs: install          ## the reference of the public functions, into build/docs/index.html
	JAX_PLATFORMS=cpu $(BIN)/python scripts/api_reference.py build/docs

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
