# Every target sets up what it needs: the virtual environment in .venv, and Debian packages when root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-dask-oldest
SOURCES := $(wildcard csrc/*.[ch] csrc/*.pxd dwsr_probe/*.p[yx][xd] dwsr_probe/*/*.p[yx][xd]) setup.py pyproject.toml

.PHONY: help demo rescue demo-gpu test results bench bench-budgets bench-fit bench-graphs bench-libraries bench-predict bench-tuning lint format sanitize test-c test-py test-unit test-integration test-dask-oldest test-gpu test-dashboards test-deploy test-pages dashboards pictures build clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{printf "%-18s %s\n", $$1, $$2}'

demo: build ## build, run examples/ under the probe, print the table
	$(BIN)/pip install -q 'numpy>=1.24'
	PATH="$(CURDIR)/$(BIN):$$PATH" dwsr-probe run python examples/filters.py
	PATH="$(CURDIR)/$(BIN):$$PATH" dwsr-probe doctor

rescue: build ## a job that dies of memory is measured, fitted, and finishes
	$(BIN)/pip install -q 'dask[array]>=2024.11' 'distributed>=2024.11' 'zarr>=3' 'numpy>=1.24' 'bokeh>=3.7' 'cloudpickle>=3'
	$(BIN)/python examples/rescue.py

demo-gpu: .venv-cupy-14/.installed build ## a CuPy job under the probe, on a stand-in: no GPU needed
	PATH="$(CURDIR)/.venv-cupy-14/bin:$$PATH" PYTHONPATH="$(CURDIR)" python -m tests.standin run python -m dwsr_probe run python examples/cupy_filters.py

# Two at a time: much of it is waiting for processes. The longest first.
TARGETS := test-integration sanitize test-deploy test-unit test-dask-oldest test-cupy-13 test-cupy-14 test-dashboards test-pages lint
RESULTS := $(CURDIR)/build/test-results

test: $(VENV)/.test $(OLDEST)/.installed .venv-cupy-13/.installed .venv-cupy-14/.installed ## all tests: C plain and under the sanitizers, lint, Python, the oldest Dask we support, CuPy, dashboards, deploy/, the report's page
	@$(MAKE) --no-print-directory results

# All targets run, also after a failure. The exit code is that of the list of what failed.
results:
	@rm -rf $(RESULTS) && mkdir -p $(RESULTS)
	@$(MAKE) --no-print-directory -j2 -Orecurse $(TARGETS:%=result-%)
	@$(PYTHON) -m tests.results $(RESULTS) $(TARGETS)

result-%:
	@began=$$(date +%s); TEST_RESULTS=$(RESULTS)/$* $(MAKE) --no-print-directory $*; code=$$?; \
	printf 'exit\t%d\t%d\t\n' $$(($$(date +%s) - began)) $$code >> $(RESULTS)/$*

test-c: $(VENV)/.system ## C tests, plain build only
	sh tests/c/run.sh plain

sanitize: $(VENV)/.system ## C tests plain, under ASan+UBSan, and under TSan
	sh tests/c/run.sh plain address thread

test-py: $(VENV)/.test build ## Python tests
	$(BIN)/pytest

test-unit test-integration: test-%: $(VENV)/.test build
	$(BIN)/pytest tests/$*

test-dask-oldest: $(OLDEST)/.installed build ## Dask's tests with the oldest release that has what we hook
	PYTHONPATH="$(CURDIR)" $(OLDEST)/bin/pytest -q -p no:cacheprovider tests/integration/test_dask.py tests/integration/test_graphs.py tests/integration/test_params.py -k "not hundred_thousand"

test-gpu: .venv-cupy-13/.installed .venv-cupy-14/.installed build ## CuPy 13 and 14, the real ones, on a stand-in for the GPU
	@$(MAKE) --no-print-directory test-cupy-13 test-cupy-14

test-cupy-%: .venv-cupy-%/.installed
	PYTHONPATH="$(CURDIR)" .venv-cupy-$*/bin/python -m pytest -q -p no:cacheprovider tests/standin tests/gpu

test-dashboards: $(VENV)/.test .venv-cupy-14/.installed build ## dashboards and rules, on a real Prometheus that scrapes a Dask and a CuPy job and a predictor
	@deploy/system-packages $(PYTHON) prometheus
	$(BIN)/pytest -q -p no:cacheprovider tests/dashboards

test-deploy: $(VENV)/.test build ## deploy/: each file by the strictest tool at hand, and run where that needs no container
	@deploy/system-packages $(PYTHON) shellcheck prometheus wget systemd munge slurm-wlm
	$(BIN)/pytest -q -p no:cacheprovider tests/deploy

test-pages: $(VENV)/.test build ## the HTML report in a real, headless Chromium
	@deploy/system-packages $(PYTHON) chromium
	$(BIN)/pytest -q -p no:cacheprovider tests/pages

pictures: $(VENV)/.test ## remake docs/pictures from a real run
	@deploy/system-packages $(PYTHON) chromium tmux
	$(BIN)/python docs/pictures/make.py

dashboards: $(VENV)/.test ## rewrite dashboards/*.json from build.py
	$(BIN)/python dashboards/build.py

PYTHON_FILES := dwsr_probe tests examples dashboards deploy docs setup.py
C_FILES := $(wildcard csrc/*.[ch] examples/*.c tests/*/*.[ch] tests/*/*.cpp)

lint: $(VENV)/.test ## what the linters and formatters say, without changing anything
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint dwsr_probe csrc
	$(BIN)/mypy
	$(BIN)/mdformat --check *.md */*.md

format: $(VENV)/.test ## let the formatters rewrite Python, C and Markdown
	$(BIN)/ruff format $(PYTHON_FILES)
	$(BIN)/clang-format -i $(C_FILES)
	$(BIN)/mdformat *.md */*.md

bench: $(VENV)/.bench .venv-cupy-13/.installed .venv-cupy-14/.installed build ## figures, as ratios measured side by side; rewrites BENCHMARKS.md
	$(BIN)/python -m tests.bench

bench-budgets: $(VENV)/.bench build ## every budget, met or above; rewrites its section
	$(BIN)/python -m tests.bench.budgets

bench-fit: $(VENV)/.bench build ## blocks that are chosen for functions, against those of others, on real Dask clusters; rewrites its section
	$(BIN)/python -m tests.bench.fit $(if $(QUICK),--quick)

bench-graphs: $(VENV)/.bench build ## real graphs: the share of memory that inputs explain, the cost; BEFORE=DIR is a built checkout to compare with; rewrites its section
	$(BIN)/python -m tests.bench.graphs $(if $(BEFORE),--before $(BEFORE))

bench-libraries: $(VENV)/.bench build ## what following asyncio, Arrow, zarr and Dask DataFrames costs; rewrites its section
	$(BIN)/python -m tests.bench.libraries

bench-predict: $(VENV)/.bench build ## forecasts against what others do, on operators measured here; rewrites their section of BENCHMARKS.md
	$(BIN)/python -m tests.bench.predict

bench-tuning: build ## the same from measured records, without frozen groups, as short tables; PARTS="small rolling"
	$(BIN)/python -m tests.bench.predict --tuning-only $(PARTS)

build: $(VENV)/.built ## the extension and the command line, in .venv

clean: ## remove everything that was built
	rm -rf $(VENV) $(OLDEST) .venv-cupy-* build dist *.egg-info dwsr_probe/*.c dwsr_probe/*/*.c dwsr_probe/*.so .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -exec rm -rf {} +

# A compiler, Python's headers and venv: from Debian when they are missing and we may install.
$(VENV)/.system:
	@deploy/system-packages $(PYTHON)
	@mkdir -p $(VENV) && touch $@

$(VENV)/.venv: $(VENV)/.system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q 'setuptools>=77' wheel 'Cython>=3.1'
	@touch $@

# Plain .pth instead of an import hook: nothing of ours in the start-up of a bare Python.
$(VENV)/.built: $(VENV)/.venv $(SOURCES)
	$(BIN)/pip install -q --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

# Allocators that the accounting is tested with, preloaded; what lists system calls; a real Prometheus; what checks deploy/; a terminal; a browser.
$(VENV)/.test: $(VENV)/.built
	@deploy/system-packages $(PYTHON) g++ libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 binutils strace prometheus tmux chromium
	$(BIN)/pip install -q --no-build-isolation --config-settings editable_mode=compat -e '.[test]'
	@touch $@

$(OLDEST)/.installed: $(VENV)/.system
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install -q 'dask[array,dataframe]==2024.11.2' 'distributed==2024.11.2' 'numpy<2.3' 'pandas<3' scipy dask-jobqueue click rich psutil prometheus-client pytest
	@touch $@

CUPY_13 := 'cupy-cuda12x==13.6.*'
CUPY_14 := 'cupy-cuda12x==14.*'
.venv-cupy-%/.installed: $(VENV)/.system
	$(PYTHON) -m venv .venv-cupy-$*
	.venv-cupy-$*/bin/pip install -q $(CUPY_$*) rmm-cu12 'dask[array]>=2024.11' 'distributed>=2024.11' pandas nvidia-ml-py click rich psutil prometheus-client 'pytest>=9'
	@touch $@

$(VENV)/.bench: $(VENV)/.built
	@deploy/system-packages $(PYTHON) valgrind chromium g++
	$(BIN)/pip install -q --no-build-isolation --config-settings editable_mode=compat -e '.[bench]'
	@touch $@
