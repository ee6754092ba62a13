# The only thing a machine needs is Python 3.11 or newer: every target makes and fills `.venv` first.
#
#   make test     every test, on all cores         ARGS="-k graph" narrows it, JOBS=1 uses one core
#   make check    format, lint, types, import rules, SQL lint, packaging: with `make test`, exactly what CI runs
#   make format   puts the code into the format that `make check` asks for
#   make demo     runs the examples on an engine that is killed half way, in under two minutes; what it writes is in build/demo/
#   make bench    runs the benchmarks
#   make build    makes the wheel and the source archive in dist/
#   make clean    removes everything that these targets made
#
#   PYTHON=/path/to/python chooses the interpreter of a new .venv

SHELL := /bin/sh
BIN := .venv/bin
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ARGS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help install test check check-format check-lint check-types check-imports check-sql check-packaging format demo bench build clean

help:
	@sed -n 's/^#   //p' Makefile

install: .venv/installed

# The first interpreter that runs, is new enough and can make virtual environments.
.venv/bin/python:
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  [ -n "$$python" ] || continue; \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "making .venv with $$("$$python" --version)"; \
	    "$$python" -m venv .venv || { rm -rf .venv; exit 1; }; \
	    exit 0; \
	  fi; \
	  [ "$$python" != "$(PYTHON)" ] || { echo "error: PYTHON=$(PYTHON) is not Python 3.11 or newer with its venv module" >&2; exit 1; }; \
	done; \
	echo "error: no Python 3.11 or newer with its venv module is on PATH; name one with: make PYTHON=/path/to/python" >&2; \
	exit 1

.venv/installed: pyproject.toml | .venv/bin/python
	@echo "installing dwarf and its tools into .venv"
	@$(PIP) install --editable '.[test,check,demo]'
	@touch $@

test: .venv/installed
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

check: check-format check-lint check-types check-imports check-sql check-packaging

check-format: .venv/installed
	@echo "== format"
	@$(BIN)/ruff format --check .

check-lint: .venv/installed
	@echo "== lint"
	@$(BIN)/ruff check .

check-types: .venv/installed
	@echo "== types"
	@$(BIN)/mypy

check-imports: .venv/installed
	@echo "== import rules"
	@$(BIN)/lint-imports --no-logo

check-sql: .venv/installed
	@echo "== SQL"
	@$(BIN)/python .ci/lint_sql.py sql

check-packaging: .venv/installed
	@echo "== packaging"
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/packaging tests/tidy

format: .venv/installed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

demo: .venv/installed
	@$(BIN)/python -m examples.demo $(ARGS)

bench: .venv/installed
	@for file in bench/[a-z]*.py; do name=$$(basename "$$file" .py); echo "== $$name"; $(BIN)/python -m "bench.$$name" $(ARGS) || exit 1; done

build: .venv/installed
	@rm -rf build dist dwarf_engine.egg-info
	@$(BIN)/python -m build

clean:
	@rm -rf .venv build dist dwarf_engine.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
