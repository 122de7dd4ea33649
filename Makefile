# Berth: everything a person needs, in two commands: `make demo` and `make test`.
# `make help` prints the lines below that carry two hashes.

SLURM   ?= 24.11
PROFILE ?= base
FUZZ_SECONDS ?= 60
COUNT   ?= 100000000

VENV    := .venv
PY      := $(VENV)/bin/python
CLUSTER := python3 containers/cluster.py
PYDIRS  := topology policy prolog_epilog tests containers packaging

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
.PHONY: help setup docs demo demo-web test test-hard test-vm test-fast lint format bench bench-hook bench-passes bench-harm bench-topology bench-placement bench-simulate bench-philly bench-runtime bench-published bench-events bench-placement-speed bench-plan bench-gateway bench-replay bench-node bench-guard bench-injob bench-packing bench-company bench-predictor bench-matching bench-sharing-day bench-scores bench-stragglers bench-classify bench-retry bench-gpu-mps bench-gpu-guard check-artifact measurements pictures bench-scrape cluster-up cluster-down fuzz fuzz-tres coverage coverage-c mutants sanitize clean lock bench-flood bench-forms bench-gate bench-growth bench-load campaign deb rpm pypi

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

# A browser's remote control, for bench-web alone.
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

demo-web: $(VENV)/.installed ## a page of a simulated day, without Slurm and Docker: prints its address (WEB="--nodes 64")
	@$(PY) -m containers.demo_web $(WEB)

demo: $(VENV)/.installed ## bring a cluster up, show plain Slurm and Berth side by side, take it down (SLURM=...)
	@if $(cluster-runs); then $(call with-engine,$(PY) -m containers.demo --slurm $(SLURM)); \
	 else $(PY) -m containers.on_paper; fi

test: $(VENV)/.installed ## units, fuzzing, and real Slurm clusters of every tested version; what takes minutes is in test-hard
	@if $(cluster-runs); then $(call with-engine,FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.all); \
	 else FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.all --without-clusters; fi

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
	@clang-format -i --style=file:slurm_plugins/.clang-format prolog_epilog/injob/c/*.[ch]

bench: bench-hook bench-flood bench-passes bench-gateway bench-plan bench-scrape bench-topology bench-placement bench-events bench-placement-speed bench-published bench-simulate bench-philly bench-runtime bench-node bench-guard bench-injob bench-packing bench-company bench-predictor bench-matching bench-sharing-day bench-scores bench-stragglers bench-classify bench-retry ## every benchmark, each beside its peer; tables here, figures in build/bench/*.json

bench-hook: setup ## latency of job_submit and submissions a second: no plugin, a bare echo, Berth (HOOK="--turns 6")
	@$(call with-engine,$(PY) -m tests.bench.hook --slurm $(SLURM) $(HOOK))

bench-passes: setup ## what slurmctld needs for jobs that start and jobs that wait on 1,024 nodes, with Berth and without (PASSES="--nodes 64")
	@$(call with-engine,$(PY) -m tests.bench.passes --slurm $(SLURM) $(PASSES))

bench-harm: setup ## a job that asks nothing of Berth, beside plain Slurm in the same run (HARM="--turns 20")
	@$(call with-engine,$(PY) -m tests.bench.harm --slurm $(SLURM) $(HARM))

bench-flood: setup ## one user sends a thousand of the dearest requests a second; another user's hook (FLOOD="--seconds 20")
	@$(call with-engine,$(PY) -m tests.bench.flood --slurm $(SLURM) $(FLOOD))

bench-forms: setup ## how often plain Slurm gives a job the best linked GPUs of a node, by the form of its request
	@$(call with-engine,$(PY) -m tests.bench.request_forms --slurm $(SLURM))

bench-gateway: setup ## how long it takes to read Slurm and to pin a job: the program on libslurm, pyslurm, the commands
	@$(call with-engine,$(PY) -m tests.bench.gateway --slurm $(SLURM))

bench-plan: setup ## planning passes and Epilog notices at 8,192 and 100,000 GPUs
	@$(PY) -m tests.bench.plan

bench-growth: setup ## how each cost of berthd and of the simulator grows, up to 100,000 GPUs and a million waiting jobs; a quarter of an hour (GROWTH="--jobs 100000")
	@$(ONE_THREAD) $(PY) -m tests.bench.growth $(GROWTH)

bench-gate: setup ## a fast part of each benchmark against the figures kept at the last release; fails beyond a band (GATE="--only guard")
	@if $(cluster-runs); then $(call with-engine,$(ONE_THREAD) $(PY) -m tests.bench.gate $(GATE)); \
	 else $(ONE_THREAD) $(PY) -m tests.bench.gate --without-clusters $(GATE); fi

bench-load: $(VENV)/.installed ## berthd's own processes under a workload of tests/load, Slurm on paper; fails beyond its thresholds (LOAD="small", LOAD="busy --minutes 10")
	@$(ONE_THREAD) $(PY) -m tests.bench.load $(LOAD)

bench-web: setup build/browser/.installed ## the page in a real browser: first paint, bytes, axe-core's findings, pictures in build/bench/web
	@$(PY) -m tests.bench.web_page

bench-scrape: setup ## a scrape of berthd's metrics at 8,192 and 100,000 GPUs, and what it costs berthd's other processes
	@$(PY) -m tests.bench.scrape

bench-replay: setup ## Berth beside plain Slurm on a real Slurm of 64 nodes, five seeds; hours (SLURM=... REPLAY="--seeds 1")
	@$(call with-engine,$(PY) -m tests.bench.replay --slurm $(SLURM) $(REPLAY))

bench-node: setup ## Prolog, Epilog and guard on one node, with a simulated driver and MPS
	@$(PY) -m tests.bench.node

bench-guard: setup ## the guard in a closed loop beside TGS, AntMan, PI, MuxFlow and an oracle (CASES=file)
	@$(PY) -m tests.bench.guard

bench-injob: setup ## launches, gate and hooks inside the job (BERTH_TORCH_PYTHON=a Python with torch)
	@$(PY) -m tests.bench.injob

bench-packing: setup ## shares of GPUs fed to Alibaba's cluster until one finds no place, beside best fit and FGD
	@$(PY) -m tests.bench.packing

bench-company: setup ## packed jobs put together by room alone, and by what they would lose beside each other
	@$(ONE_THREAD) $(PY) -m tests.bench.company

bench-predictor: setup ## the speed of two jobs on one GPU, predicted, on pairs and models never seen
	@$(ONE_THREAD) $(PY) -m tests.bench.predictor --nested 12

bench-matching: setup ## guests to hosts: time for 5,000 of each, and what comes of it beside an oracle and a greedy rule
	@$(ONE_THREAD) $(PY) -m tests.bench.matching

bench-sharing-day: setup ## a day of services with guests on a thousand GPUs, before and after
	@$(ONE_THREAD) $(PY) -m tests.bench.sharing_day

bench-scores: setup ## scores of simulated fleets with known truth beside the exact posterior, and what PAL gains by them
	@$(PY) -m tests.bench.scores

bench-stragglers: setup ## how often `berth why --slow` names the right cause and rank, over drawn jobs of known truth
	@$(PY) -m tests.bench.stragglers

bench-classify: setup ## failure classes on real logs, of programs seen and never seen
	@$(PY) -m tests.bench.classify

bench-retry: setup ## GPU time lost to failed trials: fixed and adaptive retries, pre-flight; waits with and without moving
	@$(PY) -m tests.bench.retry

bench-gpu-mps: setup ## MPS on a real GPU: limits, escapes, faults, shares of two loops (skipped without one)
	@$(PY) -m pytest tests/gpu/test_mps_gpu.py -q

bench-gpu-guard: setup ## a host and its guest on a real GPU: exclusive, time slices, MPS, guard (skipped without one)
	@$(PY) -m pytest tests/gpu/test_guard_gpu.py -q

bench-topology: setup ## a cluster of 12,500 nodes loaded, its node sets, the best of 16 GPUs
	@$(PY) -m tests.bench.topology

bench-placement: setup ## the policy beside PAL on the honest set of machines and traces, and under Slurm's own rules; an hour on two cores (PLACEMENT="--quick --family slurm")
	@$(PY) -m tests.bench.placement $(PLACEMENT)

bench-simulate: setup ## how long simulations take: PAL's published one, Philly's week, 100,000 jobs on 100,000 GPUs
	@$(PY) -m tests.bench.simulate

bench-philly: setup ## Philly under Slurm's rules: waits by reason, levels, times beside plain Slurm's placement
	@$(PY) -m tests.bench.philly

bench-runtime: setup ## run times predicted from history beside limits and simple rules
	@$(PY) -m tests.bench.runtime

bench-events: setup ## slow nodes: Berth and PAL told by the detector, and by an oracle
	@$(PY) -m tests.bench.events_bound

bench-placement-speed: setup ## one round of each policy; beside PAL's own code where BERTH_PAL_ARTIFACT is a checkout of it
	@$(PY) -m tests.bench.placement_speed

check-artifact: setup ## every placement of PAL's published simulations beside PAL's own code (BERTH_PAL_ARTIFACT=...)
	@NPY_DISABLE_CPU_FEATURES="AVX512F AVX512_SKX" $(PY) -W ignore -m tests.bench.artifact_check

bench-published: setup ## PAL's published simulations, other orders, and a load sweep
	@$(PY) -m tests.bench.published

measurements: setup ## write docs/results/tables.md from what tests and benchmarks left under build/, then the pictures
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

mutants: setup ## small changes of the code that decides, and whether a unit test notices; after make coverage (MUTANTS="policy/plan/plan.py --sample 100")
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
	@printf 'furo\nmyst-parser\nsphinx\n' | $(LOCK) - -o requirements/docs.lock
	@printf 'axe-playwright-python\nplaywright\n' | $(LOCK) - -o requirements/browser.lock
	@printf 'ansible-core\n' | $(LOCK) - -o requirements/ansible.lock

deb: ## Debian packages in dist/, for this machine and its Slurm (IN=trixie: in a container of that Debian; PYTHON=python3)
	@packaging/build.py deb $(if $(IN),--in $(IN)) $(if $(PYTHON),--python $(PYTHON))

rpm: ## RPMs in dist/, for this machine and its Slurm (IN=bookworm, PYTHON=python3.11)
	@packaging/build.py rpm $(if $(IN),--in $(IN)) $(if $(PYTHON),--python $(PYTHON))

pypi: $(VENV)/.installed ## the wheel and the source archive, as PyPI takes them, in dist/pypi
	@$(PY) -m hatchling build -d dist/pypi

clean: ## remove what was built here (not the images)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@$(MAKE) --no-print-directory -C slurm_plugins clean
