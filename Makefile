# Two commands set everything up by themselves: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks examples tools
STAMP := $(VENV)/installed

.PHONY: venv demo test lint docs bench clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/semmix fit digits --out demo

test: $(STAMP) lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright

# The pages in site/; a dead link or anchor is an error.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# What a CPU can show; the other benchmarks want a GPU, their heads say how to run them.
bench: $(STAMP)
	$(BIN)/python benchmarks/bench_import.py
	$(BIN)/python benchmarks/bench_metrics.py
	$(BIN)/python benchmarks/bench_training.py --size 8 --images 1280

clean:
	rm -rf $(VENV) demo site
