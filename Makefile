# Berth: everything a person needs, in two commands: `make demo` and `make test`.
# `make help` prints the lines below that carry two hashes.

SLURM   ?= 24.11
PROFILE ?= base
FUZZ_SECONDS ?= 60
COUNT   ?= 100000000

VENV    := .venv
PY      := $(VENV)/bin/python
CLUSTER := python3 containers/cluster.py
PYDIRS  := topology policy prolog_epilog berth tests containers packaging

# Small matrices: more threads only wait for each other.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

LOCK := $(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

# Runs a recipe line with a Docker engine, and stops that engine again if it was started for it.
with-engine = containers/bootstrap engine-start && { $(1); rc=$$?; containers/bootstrap engine-stop; exit $$rc; }

# Pytest rewrites each test file as it loads it, and keeps the result: a third of the time of test-fast.
unexport PYTHONDONTWRITEBYTECODE

# Whether a cluster can run here: what that needs is installed and an engine answers. Else one sentence says why not.
cluster-runs = BERTH_RERUN="make $(firstword $(MAKECMDGOALS))" containers/bootstrap cluster-packages \
    && BERTH_RERUN="make $(firstword $(MAKECMDGOALS))" containers/bootstrap engine-start

.DEFAULT_GOAL := help
.PHONY: help setup docs keys demo demo-web test test-hard test-vm test-fast lint format bench check-artifact measurements pictures cluster-up cluster-down fuzz fuzz-tres coverage coverage-c mutants sanitize clean lock campaign deb rpm release pypi

help: ## this page
	@echo "Berth: the right GPUs for every Slurm job. Start with 'make demo'."
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: SLURM=24.11|26.05 PROFILE=base|scale|accounting FUZZ_SECONDS=$(FUZZ_SECONDS) COUNT=$(COUNT)"

$(VENV)/.installed: requirements/dev.lock pyproject.toml prolog_epilog/front/berth-prolog
	@BERTH_RERUN="make $(firstword $(MAKECMDGOALS) setup)" containers/bootstrap base-packages
	@echo "setup: Python environment in $(VENV)"
	@test -x $(PY) || python3 -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $<
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# On all cores, which pip does not do; a file that no Python reads (a template) is no failure.
	@$(PY) -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

setup: $(VENV)/.installed ## install what is missing: packages, Docker engine, Python environment
	@BERTH_RERUN="make $(firstword $(MAKECMDGOALS) setup)" containers/bootstrap packages

build/docs/venv/.installed: requirements/docs.lock
	@test -x build/docs/venv/bin/python || $(PY) -m venv build/docs/venv
	@build/docs/venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# What the quick start installs, and nothing that only developers need.
berth-try/bin/berth: pyproject.toml
	@BERTH_RERUN="make demo-web" containers/bootstrap base-packages
	@echo "demo-web: Python environment in berth-try"
	@test -x berth-try/bin/python || python3 -m venv berth-try
	@berth-try/bin/python -m pip install --quiet --disable-pip-version-check '.[daemon,report]'
	@touch $@

# A browser's remote control, for `make bench NAME=web` alone.
build/browser/.installed: requirements/browser.lock
	@test -x build/browser/bin/python || $(PY) -m venv build/browser
	@build/browser/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# PyTorch for CPUs, in an environment of its own: PyPI has it for GPUs only, which is 3 GB more.
build/torch/.installed: requirements/torch.txt
	@echo "test-hard: PyTorch in build/torch"
	@test -x build/torch/bin/python || python3 -m venv build/torch
	@build/torch/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 -r $<
	@touch $@

# Ansible for the role's test alone.
build/ansible/.installed: requirements/ansible.lock
	@test -x build/ansible/bin/python || python3 -m venv build/ansible
	@build/ansible/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

docs: $(VENV)/.installed build/docs/venv/.installed ## the documentation as a site, build/docs/html/index.html; a warning or a broken link is an error
	@$(PY) packaging/docs_site.py build/docs/source
	@build/docs/venv/bin/sphinx-build -q -W --keep-going -n build/docs/source build/docs/html
	@echo "docs: build/docs/html/index.html"

keys: ## write the tables and lists of berth.conf's keys anew from packaging/keys.toml
	@python3 packaging/keys.py

demo-web: berth-try/bin/berth ## a page of a simulated day, without Slurm and Docker: prints its address (WEB="--nodes 64")
	@berth-try/bin/python -m containers.demo_web $(WEB)

demo: $(VENV)/.installed ## bring a cluster up, show plain Slurm and Berth side by side, take it down (SLURM=...)
	@if $(cluster-runs); then $(call with-engine,$(PY) -m containers.demo --slurm $(SLURM)); \
	 else $(PY) -m containers.on_paper; fi

test: $(VENV)/.installed ## units, fuzzing, and real Slurm clusters of every tested version; what takes minutes is in test-hard
	@if $(cluster-runs); then $(call with-engine,FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.all); \
	 else FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.all --without-clusters; fi

test-hard: export BERTH_SEED := $(or $(BERTH_SEED),$(shell shuf -i 1-999999999 -n 1))
test-hard: setup build/torch/.installed build/ansible/.installed ## the larger clusters, 64 nodes and one with accounting, what takes minutes, and ten times the drawn examples
	@BERTH_EXAMPLES=10 $(PY) -m pytest tests/unit -m "hypothesis and not slow" -n auto
	@$(PY) -m pytest tests/unit tests/world -m "hard or published" -n auto
	@BERTH_TORCH_PYTHON=$(CURDIR)/build/torch/bin/python $(PY) -m pytest tests/unit -m torch
	@$(call with-engine,$(PY) -m tests.fuzz.tres --count 2000000 && $(PY) -m pytest tests/hard tests/slurm tests/hostile -m "(hard or any_slurm) and not vm" && BERTH_FULL_MATRIX=1 $(PY) -m pytest tests/slurm/test_matrix.py tests/slurm/test_best_set.py tests/slurm/test_like_plain.py -m "not hard")

campaign: setup ## seeded faults on the real test cluster while jobs of every kind run, and invariants after each (SLURM=26.05 SEED=39 MINUTES=30 PROFILE=scale BACKUP=yes)
	@$(call with-engine,$(PY) -m tests.hard.faults --slurm $(SLURM) --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(BACKUP),--backup))

test-vm: setup ## the test cluster on fresh Debian 12 and 13 machines (virtual ones): systemd, cgroup v2, AppArmor
	@BERTH_RERUN="make test-vm" containers/bootstrap vm-packages
	@$(call with-engine,$(PY) -m pytest tests/hard -m vm)

test-fast: $(VENV)/.installed ## what needs no Slurm, under a minute
	@BERTH_EXAMPLES=0.2 $(PY) -m pytest tests/unit -m "not slow and not hard and not published and not torch" -n auto --quiet

lint: setup ## ruff, mypy --strict, import-linter, clang-format, gcc -Wall -Wextra -Werror, cppcheck
	@$(VENV)/bin/ruff check $(PYDIRS)
	@$(VENV)/bin/ruff format --check --quiet $(PYDIRS)
	@$(VENV)/bin/mypy --no-error-summary
	@$(VENV)/bin/mypy --no-error-summary $(wildcard packaging/*.py)
	@mkdir -p build
	@PYTHONPATH=. $(VENV)/bin/lint-imports --no-cache >build/lint-imports.txt || { cat build/lint-imports.txt; exit 1; }
	@$(MAKE) --silent -C slurm_plugins check
	@$(MAKE) --silent -C tests/fakes/nvml
	@$(MAKE) --silent -C tests/fakes/cuda
	@$(MAKE) --silent -C prolog_epilog/injob/c all check
	@for headers in $(wildcard build/headers/*); do \
	    $(MAKE) --silent -C slurm_plugins syntax SLURM_CFLAGS=-I../$$headers || exit 1; done
	@test -d build/headers || echo "lint: the Slurm-facing C was not compiled: no headers before the first image is built"
	@echo "lint: clean"

format: setup ## let ruff and clang-format rewrite what they would complain about
	@$(VENV)/bin/ruff check --fix --quiet $(PYDIRS); $(VENV)/bin/ruff format --quiet $(PYDIRS)
	@clang-format -i --style=file:slurm_plugins/.clang-format slurm_plugins/*/*.[ch] tests/fakes/nvml/*.[ch] tests/fuzz/*.c tests/bench/c/*.c tests/fakes/cuda/*.[ch]
	@clang-format -i --style=file:slurm_plugins/.clang-format $(wildcard prolog_epilog/injob/c/*.[ch] prolog_epilog/injob/c/*/*.[ch])

bench: setup $(if $(filter web,$(NAME)),build/browser/.installed) ## all benchmarks, each beside its peer: tables here, figures in build/bench/*.json; or one (NAME=hook ARGS="--turns 6"; NAME=list lists them)
	@SLURM=$(SLURM) $(PY) -m tests.bench $(NAME) $(ARGS)

check-artifact: setup ## every placement of PAL's published simulations beside PAL's own code (BERTH_PAL_ARTIFACT=...)
	@NPY_DISABLE_CPU_FEATURES="AVX512F AVX512_SKX" $(PY) -W ignore -m tests.bench.artifact_check

measurements: setup ## write docs/results/tables from what tests and benchmarks left under build/, then the pictures
	@$(PY) -m tests.bench.page

pictures: $(VENV)/.installed ## draw the plots of docs/results from its tables, and write its page
	@$(PY) -m tests.bench.results

cluster-up: setup ## start the Dockerized test cluster and leave it running (SLURM=... PROFILE=...)
	@containers/bootstrap engine-start
	@$(CLUSTER) up --slurm $(SLURM) --profile $(PROFILE)

cluster-down: ## take the test cluster down, and the Docker engine if we started it
	@$(CLUSTER) down --slurm $(SLURM)
	@containers/bootstrap engine-stop

fuzz: setup ## fuzz the plugin's parsers (FUZZ_SECONDS=...)
	@$(MAKE) --no-print-directory -C tests/fuzz run SECONDS=$(FUZZ_SECONDS)

fuzz-tres: setup ## read random TRES requests beside each tested Slurm's own function (COUNT=... for each)
	@$(call with-engine,$(PY) -m tests.fuzz.tres --count $(COUNT))

coverage: setup ## lines of our Python that the unit tests run, also in the programs that they start
	@$(PY) -m tests.bench.coverage

mutants: setup ## small changes of the code that decides, and whether a unit test notices; after make coverage (MUTANTS="policy/plan/queue/plan.py --sample 100")
	@$(ONE_THREAD) $(PY) -m tests.bench.mutants $(MUTANTS)

coverage-c: setup ## lines of the plugins' C that unit tests and the fuzzer's inputs run, by file
	@$(PY) -m tests.fuzz.instrumented

sanitize: setup ## the same tests under ASan and UBSan
	@$(PY) -m tests.fuzz.instrumented --sanitize

lock: setup ## renew requirements/*.lock from pyproject.toml (needs uv)
	@$(VENV)/bin/pip install --quiet uv
	@for extra in daemon node simulate report; do $(LOCK) --extra $$extra pyproject.toml -o requirements/$$extra.lock || exit 1; done
	@$(LOCK) --extra daemon --group dev pyproject.toml -o requirements/dev.lock
	@printf 'hatchling\nshtab\n' | $(LOCK) - -o requirements/packaging.lock
	@printf 'cyclonedx-bom\n' | $(LOCK) - -o requirements/sbom.lock
	@printf 'furo\nmyst-parser\nsphinx\n' | $(LOCK) - -o requirements/docs.lock
	@printf 'axe-playwright-python\nplaywright\n' | $(LOCK) - -o requirements/browser.lock
	@printf 'ansible-core\n' | $(LOCK) - -o requirements/ansible.lock

deb: ## Debian packages in dist/, for this machine and its Slurm (IN=trixie: in a container of that Debian; PYTHON=python3)
	@packaging/build.py deb $(if $(IN),--in $(IN)) $(if $(PYTHON),--python $(PYTHON))

rpm: ## RPMs in dist/, for this machine and its Slurm (IN=bookworm, PYTHON=python3.11)
	@packaging/build.py rpm $(if $(IN),--in $(IN)) $(if $(PYTHON),--python $(PYTHON))

release: ## sdist, wheel, packages, SBOM, notes, sums: VERSION=1.0.0 DEB="trixie forky" RPM=bookworm MORE="--slurm /opt/slurm --sign KEY"
	@python3 packaging/release.py $(VERSION) $(DEB:%=--deb %) $(RPM:%=--rpm %) $(MORE)

pypi: $(VENV)/.installed ## the wheel and the source archive, as PyPI takes them, in dist/pypi
	@$(PY) -m hatchling build -d dist/pypi

clean: ## remove what was built here (not the images)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@$(MAKE) --no-print-directory -C slurm_plugins clean
