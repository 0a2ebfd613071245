# Two commands set everything up by themselves: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks examples tools
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Without an NVIDIA GPU: torch's CPU build, where an index that pip knows has one (PIP_EXTRA_INDEX_URL).
TORCH := $(shell command -v nvidia-smi > /dev/null || sed -n 's/^torch==.*/&+cpu/p' constraints.txt)

.PHONY: venv demo test tests quick lint docs dist bench clean

venv: $(VENV)/all

$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	test -n "$(TORCH)" && $(PIP) "$(TORCH)" 2> $(VENV)/torch.log || $(PIP) torch
	touch $@

# What the demo needs: semmix and no more.
$(VENV)/demo: pyproject.toml constraints.txt $(VENV)/torch
	$(PIP) -e .
	touch $@

# What the tests need as well: every extra, and the tools.
$(VENV)/all: pyproject.toml constraints.txt $(VENV)/torch
	$(PIP) -e ".[dev]"
	touch $@

demo: $(VENV)/demo
	$(BIN)/semmix fit digits --out demo

test: lint docs tests

tests: $(VENV)/all
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# Before a commit: lint, types, and the tests of what changed since main; under 90 seconds.
quick: $(VENV)/all
	OMP_NUM_THREADS=1 $(BIN)/python tools/quick.py

lint: $(VENV)/all
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright

# The pages in site/; a dead link or anchor is an error.
docs: $(VENV)/all
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What pip installs, in dist/: semmix, its sources, and the zoo's models, each below 100 MB.
dist: $(VENV)/all
	$(BIN)/python -m hatchling build -d $(CURDIR)/dist
	for model in zoo/*/; do (cd $$model && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist) || exit 1; done

# What a CPU can show; the other benchmarks want a GPU, their heads say how to run them.
bench: $(VENV)/all
	$(BIN)/python benchmarks/bench_import.py
	$(BIN)/python benchmarks/bench_metrics.py
	$(BIN)/python benchmarks/bench_training.py --size 8 --images 1280

clean:
	rm -rf $(VENV) demo site dist
