# make quickstart   set up, build t4-probe for real, publish, pull, verify and run it
# make test         set up and run the tests
# make test-slow    the tests that download gigabytes or compile for minutes
# make lint         ruff
.PHONY: help quickstart test test-slow lint setup clean

TOOLCHAIN ?= cuda-12.4-debian12

help:
	@sed -n 's/^# //p' Makefile

setup:
	@scripts/setup

quickstart:
	@scripts/setup
	@TOOLCHAIN=$(TOOLCHAIN) scripts/quickstart

test:
	@scripts/setup --tests
	@.venv/bin/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow:
	@scripts/setup --tests
	@.venv/bin/python -m pytest -m slow $(PYTEST_ARGS)

lint:
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

clean:
	rm -rf dist .venv
