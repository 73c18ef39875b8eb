# Targets a person calls. Bare `make` prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Every test that starts a command would compile the whole project again; two thirds of `make check` went there.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## install everything into .venv, once

# Hashes pin every file; no build isolation, so nothing unpinned is fetched for a build either.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "soakd needs Python 3.11, 3.12 or 3.13; name one with PYTHON=...")'
	@echo "setup: installing pinned packages into $(VENV) (some minutes on two cores, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "setup: keeping Spark's classes as Java maps them (about half a minute, once)"
	@$(BIN)/python -m spark.cluster.class_archive >/dev/null || true
	@touch $@

.PHONY: demo
demo: $(STAMP) ## soak a real Kafka for four minutes, find the retention cliff, mail it, report it
	@$(BIN)/soak demo

# The static checks use one core and take as long as half of the tests: side by side both cores are busy.
.PHONY: check
check: $(STAMP) ## format, lint, types, layers and the fast tests
	@$(MAKE) --no-print-directory -j 2 -O static fast

.PHONY: static
static: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: fast
fast: $(STAMP)
	@$(BIN)/pytest -n 2

# Debian packages that some tests need: a browser, an injected drive, a Prometheus, a postfix. Without them these tests skip with the reason.
PACKAGES := chromium fuse3 libnbd-bin nbdkit nbdkit-plugin-python prometheus prometheus-node-exporter xfsprogs prometheus-alertmanager postfix

.PHONY: packages
packages: ## install Debian's packages that some tests need (root); their services are not started
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { apt-get -qq update && \
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $(PACKAGES) >/dev/null; }

# A user's machine is left alone; CI's is there for this.
.PHONY: packages-in-ci
packages-in-ci:
	@if [ "$${CI:-}" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(MAKE) --no-print-directory packages || echo "packages: could not be installed; tests that need them skip"; fi

# Each round has new inputs and ends the command if one of them does harm; it is printed with the seed that makes it.
HOSTILE_MINUTES ?= 1
.PHONY: test-hostile
test-hostile: $(STAMP) ## attack every gate for HOSTILE_MINUTES=1, with the corpus and with inputs made at random
	@end=$$(( $$(date +%s) + 60 * $(HOSTILE_MINUTES) )); round=0; \
	while [ $$round = 0 ] || [ $$(date +%s) -lt $$end ]; do round=$$(( round + 1 )); \
		HOSTILE_SEED=$$(date +%s)000 $(BIN)/pytest tests/hostile -n 2 -m 'not broker and not spark and not slow' --hypothesis-profile=hostile -p no:cacheprovider; \
	done; echo "test-hostile: $$round rounds"

.PHONY: test
test: check packages-in-ci ## everything CI runs: check, then the tests on a real Kafka and a real Spark
	@$(BIN)/pytest -m $(PROPERTIES) -n 2 $(FULL)
	@$(BIN)/pytest -m $(LONG) -n 2 $(FULL) $(addprefix --ignore=,$(COMPUTING))
	@$(MAKE) --no-print-directory -j $(AT_ONCE) -O with-kafka with-other-servers-and-computing

LONG := 'long and not broker and not spark and not slow'
# `make check` makes a fifth of the examples of each property.
PROPERTIES := 'hypothesis and not long and not broker and not spark and not slow'
FULL := --hypothesis-profile=full
# Long tests that compute and neither wait nor start a process. At the lowest priority they take the processor time
# that the tests of servers leave; nothing in them depends on how long that is.
COMPUTING := $(addprefix tests/unit/,bench core detectors omb spark)
.PHONY: with-other-servers-and-computing
with-other-servers-and-computing: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 -O with-other-servers computing

.PHONY: computing
computing: $(STAMP)
	@nice -n 19 $(BIN)/pytest -m $(LONG) -n 2 $(FULL) -o timeout=1800 $(COMPUTING)

# Most of these tests wait: AT_ONCE=2 runs the two parts side by side, on a machine that does nothing else.
AT_ONCE ?= 1
.PHONY: with-kafka
with-kafka: $(STAMP)
	@$(BIN)/pytest -m '(broker or spark or slow) and kafka' -rs --durations=10

.PHONY: with-other-servers
with-other-servers: $(STAMP)
	@$(BIN)/pytest -m '(broker or spark or slow) and not kafka' -rs --durations=10

.PHONY: test-drills
test-drills: $(STAMP) packages-in-ci ## two short drills on an injected drive: found, notified and resolved (four minutes)
	@$(BIN)/pytest -m drills -rs --durations=2

.PHONY: test-restarts
test-restarts: $(STAMP) ## ten kills of a Kafka at full load, without one false loss (four minutes)
	@$(BIN)/pytest -m restarts --durations=3

.PHONY: test-memory
test-memory: $(STAMP) ## ten million messages and a week's seconds through the load daemons and the audit, memory flat (seven minutes)
	@$(BIN)/pytest -m memory --durations=4 -s

.PHONY: test-wheel
test-wheel: $(STAMP) ## a wheel in an empty environment, outside the repository: installed, and its demo (six minutes)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/pip -q wheel --no-deps --wheel-dir "$$folder" . && python3 -m venv "$$folder/env" && \
	"$$folder/env/bin/pip" -q install "$$folder"/soakd-*.whl && cd "$$folder" && ./env/bin/soak demo

.PHONY: test-service
test-service: $(STAMP) ## runs that pause, reboot, miss their end and go on, under a real systemd manager
	@$(BIN)/pytest -m service --durations=3

LENGTH ?= 2h
EVERY ?= 5min
.PHONY: test-endurance
test-endurance: $(STAMP) ## two hours under a real systemd manager, a daemon killed every five minutes; LENGTH=30min EVERY=2min
	@ENDURANCE_LENGTH=$(LENGTH) ENDURANCE_KILL_EVERY=$(EVERY) $(BIN)/pytest -m endurance -s -rs

.PHONY: chaos
chaos: $(STAMP) ## fifty kills of a run's processes and twenty troubles: nothing lost, no false finding (15 minutes); ARGS=--help
	@$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: test-damage
test-damage: $(STAMP) ## a thousand damaged plans, journals, databases and OMB files: each is an error or a gap (two minutes)
	@$(BIN)/pytest -m damage --durations=3 -s

.PHONY: bench
bench: bench-load bench-probes bench-detect bench-spark ## measure against the brokers' own tools, side by side: tables of ratios

.PHONY: bench-load
bench-load: $(STAMP) ## the same, of the load alone; ARGS=--quick tries it, ARGS=--help has more
	@$(BIN)/python -m tests.bench.load $(ARGS)

.PHONY: bench-probes
bench-probes: $(STAMP) ## what all probes cost beside a node_exporter (Debian's); ARGS=--quick tries it
	@$(BIN)/python -m tests.bench.probes $(ARGS)

.PHONY: bench-detect
bench-detect: $(STAMP) ## how good the detectors are, beside other methods: accuracy, false alarms, delays, cost; hours, ARGS=--quick: minutes
	@$(BIN)/python -m tests.bench.detect $(ARGS)

.PHONY: bench-spark
bench-spark: $(STAMP) ## what reports of 36 hours, the streaming detector and a fleet cost, beside naive forms; ARGS=--quick: reports of two hours
	@$(BIN)/python -m tests.bench.pipeline $(ARGS)
	@$(BIN)/python -m tests.bench.stream
	@$(BIN)/python -m tests.bench.stream --backlog 5400
	@$(BIN)/python -m tests.bench.stream --backlog 5400 --shards 2
	@$(BIN)/python -m tests.bench.naive
	@$(BIN)/python -m tests.bench.topic_source --detect --rest
	@$(BIN)/python -m tests.bench.cluster

.PHONY: bench-long
bench-long: $(STAMP) ## 3,000 batches of the streaming detector: heap, memory, descriptors, files flat; an hour or two, ARGS=--help
	@$(BIN)/python -m tests.bench.long_life $(ARGS)

.PHONY: bench-kills
bench-kills: $(STAMP) ## thirty kill -9 of the streaming detector's processes, results compared row by row; half an hour; ARGS=--help
	@$(BIN)/python -m tests.bench.kills $(ARGS)

.PHONY: bench-hostile
bench-hostile: $(STAMP) ## floods of 5,000 findings and 100,000 foreign producers beside usual work, four minutes; ARGS="--rounds 1"
	@$(BIN)/python -m tests.bench.hostile $(ARGS)

.PHONY: bench-compare
bench-compare: $(STAMP) ## how often soak compare is right about equal and slower runs; ten minutes, ARGS="--run DIR" adds recorded runs
	@$(BIN)/python -m tests.bench.comparison $(ARGS)

.PHONY: bench-report
bench-report: $(STAMP) ## the report of 36 hours with every kind of trouble: is each seen at once, time, size, memory; ARGS=--quick: two hours
	@$(BIN)/python -m tests.bench.report $(ARGS)

.PHONY: bench-trials
bench-trials: $(STAMP) ## judge today's detector by the trials that were recorded; ARGS="--use tuning", ARGS=--help has more
	@$(BIN)/python -m tests.bench.trials $(ARGS)

# A peer of bench-detect that asks for another numpy than ours; the bench says when it is not there.
OTAVA := build/otava
.PHONY: otava
otava: $(OTAVA)/.installed ## install Otava for bench-detect into an environment of its own

$(OTAVA)/.installed:
	@$(PYTHON) -m venv --clear $(OTAVA)
	@$(OTAVA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps apache-otava==0.8.0 numpy==2.2.6 scipy==1.16.3
	@touch $@

.PHONY: reference
reference: $(STAMP) ## write the generated parts of docs/reference from the code
	@$(BIN)/python -m tests.docs.reference

# The site has an environment of its own: MkDocs and its packages are no part of what `make setup` installs.
DOCS_ENV := build/docs-env
.PHONY: docs
docs: $(DOCS_ENV)/.installed ## build the documentation as a site with search, build/site/index.html; it opens without a network
	@$(PYTHON) -m tests.docs.site stage build/docs
	@NO_MKDOCS_2_WARNING=1 $(DOCS_ENV)/bin/mkdocs build --quiet -f build/docs/mkdocs.yml
	@$(PYTHON) -m tests.docs.site check build/site

$(DOCS_ENV)/.installed: requirements-docs.lock
	@echo "docs: installing MkDocs into $(DOCS_ENV) (once)"
	@$(PYTHON) -m venv --clear $(DOCS_ENV)
	@$(DOCS_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-docs.lock
	@touch $@

.PHONY: format
format: $(STAMP) ## put the code in format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: lock
lock: ## resolve the pinned packages anew (needs uv)
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --extra dev pyproject.toml -o requirements.lock
	@echo mkdocs-material | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header - -o requirements-docs.lock
	@$(BIN)/python -m tests.support.locks runtime

.PHONY: audit
audit: $(STAMP) ## is what is installed what the locks say, file by file; writes build/sbom.json for a scanner of vulnerabilities
	@mkdir -p build
	@$(BIN)/python -m tests.support.locks sbom > build/sbom.json
	@$(BIN)/python -m tests.support.locks audit

.PHONY: clean
clean: ## remove what was built; runs stay
	@rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
