# Every target sets up what it needs first; a set-up that is ready takes a tenth of a second.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
comma := ,
EXTRAS := all,dev$(if $(BROWSER),$(comma)browser)$(if $(BENCH),$(comma)bench)
RUNS_DIR ?= runs

# Larger data sets for tests, when they lie beside the checkout; tests that want them skip without.
ifneq ($(wildcard ../shared/data),)
SEQSCALE_TEST_DATA ?= ../shared/data
export SEQSCALE_TEST_DATA
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full browser lint types dashboard clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## make .venv and fetch the demo's data (BROWSER=1, BENCH=1: for browser tests, for bench/)
	@$(PYTHON) infra/bootstrap.py --extras $(EXTRAS)

demo: setup ## run the whole pipeline on MovieLens-100K
	.venv/bin/seqscale run --runs-dir $(RUNS_DIR)

test: setup ## run the quick tests, less than half an hour on two cores
	.venv/bin/python -m pytest -q -m "not full and not gpu" --cov --cov-report=term:skip-covered

test-full: browser ## run what takes a fresh clone, a browser, TorchRec or minutes
	.venv/bin/python -m pytest -q -m "full"

# A browser for the tests: Debian's own, when this is a Debian and we may install.
browser:
	@$(MAKE) --no-print-directory setup BROWSER=1 BENCH=1
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get -q update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core \
			|| echo "chromium was not installed; tests that need a browser are skipped"; \
	fi

lint: setup ## check style and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup ## check types
	.venv/bin/mypy

dashboard: setup ## open the dashboard of the runs in runs/
	.venv/bin/seqscale dashboard --runs-dir $(RUNS_DIR)

clean: ## remove caches and builds; runs and .venv stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
