# Everything a person or CI runs here. `make help` lists the targets.

PYTHON ?= python3
# The oldest version comes first: packages are locked under it (see `lock`).
PYTHON_VERSIONS := 3.11 3.12 3.13
PIPENV_VERSION := 2026.10.3
PIP_AUDIT_VERSION := 2.10.1
MUTANTS ?= --jobs $(shell nproc)
ARGS ?= --n_workers 16 PongNoFrameskip-v4
SWEEP ?= examples/cartpole.toml
BENCH ?=
PROFILE ?=

# The project's environment is always .venv beside the Pipfile, whatever environment is active outside.
export PIPENV_VENV_IN_PROJECT := 1
export PIPENV_IGNORE_VIRTUALENVS := 1

PIPENV := .pipenv/bin/pipenv
VENV_PYTHON := .venv/bin/python

# A stamp is written after its installation has succeeded, so an interrupted installation is repeated.
PIPENV_READY := .pipenv/ready-$(PIPENV_VERSION)
RUNTIME_READY := .venv/ready-runtime
DEV_READY := .venv/ready-dev
RAY_READY := .venv/ready-ray
PEER_READY := .peer/ready
EXTRA_READY := .extra/ready
AUDIT_READY := .audit/ready-$(PIP_AUDIT_VERSION)

FAST_TESTS := not slow and not weekly and not cluster
# Whole test files in parallel, in few processes, since each loads TensorFlow.
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 4 --dist loadfile
# The test files with examples that Hypothesis chooses.
SEARCHED = $(shell grep -rlE "^(import|from) hypothesis" --include="*_test.py" tests)

python_version = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1)
need_python = $(if $(filter $(1),$(python_version)),,$(error Python $(1) is needed, but "$(PYTHON)" is: $(python_version). \
	Name another: make PYTHON=python$(firstword $(1))))

.PHONY: help train sweep test check lint cluster-test test-slow soak mutants pins tables bench bench-long bench-scaling profile format images results audit lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 15

train: $(RUNTIME_READY) ## set up, then train: Pong with 16 workers, or make train ARGS="--n_workers 4 CartPole-v1"
	$(VENV_PYTHON) train.py $(ARGS)

sweep: $(RAY_READY) ## set up, Ray included, then train many runs: make sweep SWEEP="--seeds 3 --envs CartPole-v1 -- --preset cartpole"
	$(VENV_PYTHON) sweep.py $(SWEEP)

test: $(DEV_READY) ## set up, then run the test suite; prints the time of each room and the memory beside their budgets
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE)

lint: $(DEV_READY) ## format, lint and types
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy

check: lint ## the same, and the fast tests
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m "$(FAST_TESTS)"

cluster-test: $(DEV_READY) $(RAY_READY) ## set up, Ray included, then the tests that need it
	$(VENV_PYTHON) -m pytest -m cluster

test-slow: $(DEV_READY) $(EXTRA_READY) ## the tests that take too long for `make test`; CI runs them once a week
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m weekly
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) --hypothesis-profile "new ones" $(SEARCHED)

mutants: $(DEV_READY) ## make small mistakes in a3c/ and see the tests fail; takes hours, can be stopped and continued
	$(VENV_PYTHON) tests/tools/mutants.py $(MUTANTS)

tables: $(DEV_READY) ## write everything that is generated: the Pipfile, flags, proofs, and the tables of pins, benchmarks and runs
	$(VENV_PYTHON) -m tests.tools.pipfile
	$(VENV_PYTHON) -m tests.tools.flags_page
	$(VENV_PYTHON) -m tests.tools.proofs table
	$(VENV_PYTHON) -m tests.tools.pin_tables layout
	$(VENV_PYTHON) -m benchmarks.report
	$(VENV_PYTHON) -m results.report

bench: $(RUNTIME_READY) $(PEER_READY) ## throughput beside peers' and the machine's limit; BENCH="--only cartpole" for a part, BENCH=--anyway if busy
	$(VENV_PYTHON) -m benchmarks.bench $(BENCH)

bench-long: $(RUNTIME_READY) ## memory over a million steps, start-up, CartPole, evaluations beside training
	$(VENV_PYTHON) -m benchmarks.long $(BENCH)

bench-scaling: $(RUNTIME_READY) ## throughput and memory over workers and environments
	$(VENV_PYTHON) -m benchmarks.scaling $(BENCH)

profile: $(RUNTIME_READY) $(PEER_READY) ## where the time goes; PROFILE="--task CartPole --n_workers 2 --envs_per_worker 64" for another setting
	$(VENV_PYTHON) -m benchmarks.profiling $(PROFILE)

soak: $(DEV_READY) ## checks that take hours; can be stopped and continued; make soak PARTS=kill_toy runs one part
	$(VENV_PYTHON) -m tests.tools.soak $(PARTS)

pins: $(DEV_READY) ## renew the pinned runs and print what changed; CONTRIBUTING.md says when this is allowed
	$(VENV_PYTHON) -m tests.tools.pins

format: $(DEV_READY) ## rewrite the sources in the project's format
	$(VENV_PYTHON) -m ruff format .
	$(VENV_PYTHON) -m ruff check --fix .

images: $(RUNTIME_READY) ## the pictures of docs/looking-inside.md, from an agent's run folder: make images RUN=runs/<run>
	@test -n "$(RUN)" || { echo "name a run folder of an Atari agent that plays: make images RUN=runs/..." >&2; exit 2; }
	$(VENV_PYTHON) images/make_images.py "$(RUN)"

results: $(RUNTIME_READY) ## the tables and curves of trained agents, from the folders in results/
	$(VENV_PYTHON) -m results.report

# With --strict, a package that the database does not know is a failure, and so is a database that does not answer.
audit: $(PIPENV_READY) $(AUDIT_READY) ## ask the database of known vulnerabilities about every locked package
	$(PIPENV) requirements --categories "packages dev-packages ray" --hash > .audit/requirements.txt
	.audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement .audit/requirements.txt

clean: ## remove what set-up, tests and tools made; runs/ stays
	rm -rf .venv .pipenv .peer .extra .audit build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PIPENV_READY):
	@$(call need_python,$(PYTHON_VERSIONS))
	rm -rf .pipenv
	$(PYTHON) -m venv .pipenv
	.pipenv/bin/python -m pip install --quiet --disable-pip-version-check pipenv==$(PIPENV_VERSION)
	touch $@

# pip-audit has an environment of its own, so that it is not among the packages that it checks.
$(AUDIT_READY):
	rm -rf .audit
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT_VERSION)
	touch $@

# A folder that is not a working virtual environment (its creation was interrupted) is made again;
# otherwise packages would be installed into the Python that it was made from.
$(RUNTIME_READY): Pipfile.lock | $(PIPENV_READY)
	@$(VENV_PYTHON) -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null || rm -rf .venv
	$(PIPENV) sync
	touch $@

# This comes after the runtime packages, so that each stamp has one recipe. Two installations at once
# would disturb each other.
.NOTPARALLEL:
$(DEV_READY): $(RUNTIME_READY)
	$(PIPENV) sync --dev
	touch $@

# Ray comes beside the runtime packages, because trials and remote workers need both in one process.
$(RAY_READY): $(RUNTIME_READY)
	$(PIPENV) sync --categories ray
	touch $@

# The peers of `make bench` have an environment of their own, since we do not depend on torch.
$(PEER_READY): benchmarks/requirements.txt
	@$(call need_python,$(PYTHON_VERSIONS))
	rm -rf .peer
	$(PYTHON) -m venv .peer
	.peer/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Packages with environments that only the weekly tests train on.
$(EXTRA_READY): tests/requirements.txt | $(PIPENV_READY)
	rm -rf .extra
	.pipenv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target .extra -r $<
	touch $@

# pipenv writes three things into the lock that we remove:
# - the package index of this machine; pip's configuration decides which index is used. The list of
#   sources stays, empty, because `pipenv sync` fails without the key;
# - the name of that index at each package, which other machines do not know;
# - the marker of tensorflow-cpu at all packages that it needs, although tensorflow needs them too.
define CLEAN_LOCK
import json, sys
lock = json.load(sys.stdin)
lock["_meta"]["sources"] = []
cpu_marker = lock["default"]["tensorflow-cpu"]["markers"]
for section in lock.keys() - {"_meta"}:
    for name, entry in lock[section].items():
        entry.pop("index", None)
        if name != "tensorflow-cpu" and entry.get("markers") == cpu_marker:
            del entry["markers"]
        if not (entry.get("version") and entry.get("hashes")):
            sys.exit(f"{name} is locked without version or hashes: {entry}")
print(json.dumps(lock, indent=4, sort_keys=True))
endef
export CLEAN_LOCK

# We lock in a separate folder, so that Pipfile.lock is replaced completely or not at all, and with the oldest
# Python, so that all packages can be installed there.
lock: $(PIPENV_READY) ## renew Pipfile and Pipfile.lock from pyproject.toml, free of any package index
	@$(call need_python,$(firstword $(PYTHON_VERSIONS)))
	$(PYTHON) -m tests.tools.pipfile
	rm -rf .pipenv/lock
	$(PYTHON) -m venv .pipenv/lock/.venv
	cp Pipfile .pipenv/lock
	cd .pipenv/lock && ../bin/pipenv lock
	.pipenv/bin/python -c "$$CLEAN_LOCK" < .pipenv/lock/Pipfile.lock > .pipenv/lock/clean
	mv .pipenv/lock/clean Pipfile.lock
	rm -rf .pipenv/lock
