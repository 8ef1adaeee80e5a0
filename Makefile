# make install · setup · quickstart · test · test-fast · test-distributed · check · bench · sanitize · fuzz ·
# torture · torture-proof · docs · clean
# make install: the package alone; make setup: with the dependencies of tests and checks.
# PYTHON=python3.12 make setup uses another interpreter; JOBS=1 make test runs in one process;
# SEED=2 make torture injects other faults.

PYTHON ?= python3
JOBS   ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)
VENV   := .venv
RUN    := $(VENV)/bin/python
PIP    := $(RUN) -m pip --disable-pip-version-check
# Always with the constraints: without them pip may install another torch.
INSTALL := $(PIP) install --constraint constraints.txt

NATIVE_SOURCES := $(wildcard native/*.cpp)
NATIVE_FILES   := $(wildcard native/*)
INSTALLED := $(VENV)/.installed
DEV_INSTALLED := $(VENV)/.dev-installed
BENCH_INSTALLED := $(VENV)/.bench-installed
CLUSTER_INSTALLED := $(VENV)/.cluster-installed
DOCS_INSTALLED := $(VENV)/.docs-installed

.PHONY: install setup quickstart test test-fast test-distributed check bench sanitized sanitize fuzz torture torture-proof docs clean
.DEFAULT_GOAL := setup

install: $(INSTALLED)

setup: $(DEV_INSTALLED)

TOO_OLD := error: groundup needs Python 3.11 or later, and $(PYTHON) is older or missing: \
	choose another, as in make PYTHON=python3.12

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(TOO_OLD)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }

# Installs the dependencies and compiles native/ into src/groundup/_native.abi3.so.
$(INSTALLED): pyproject.toml constraints.txt $(NATIVE_FILES) | $(RUN)
	$(INSTALL) --quiet --editable .
	@touch $@

# groundup is already installed: these only install the packages of an extra.
$(DEV_INSTALLED): $(INSTALLED)
	$(INSTALL) --quiet 'groundup[dev]'
	@touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(INSTALL) --quiet 'groundup[bench]'
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(INSTALL) --quiet 'groundup[docs]'
	@touch $@

$(CLUSTER_INSTALLED): $(DEV_INSTALLED)
	$(INSTALL) --quiet 'groundup[ray]' flask flask-cors 'moto[s3]' s3fs
	@touch $@

quickstart: install
	$(RUN) -m groundup quickstart

# All tests of a file run in one process, so that they share their fixtures.
PYTEST := $(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# A test that hangs for 300 s prints the stack of each thread and fails; the others continue.
test: setup
	$(PYTEST) -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# For daily work: without tests that start a process, browser or compiler, or take seconds.
test-fast: setup
	$(PYTEST) -q -m "not slow" --hypothesis-profile=fast

# Tests with a Ray cluster of several nodes and an object store, which are slow to start.
test-distributed: $(CLUSTER_INSTALLED)
	$(RUN) -m pytest -m distributed -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

check: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) tools/check_examples.py
	$(PYTEST) -q -m "" tests/test_layering.py tests/test_docs.py tests/native
	$(PYTEST) -q -m hypothesis --hypothesis-profile=thorough

bench: $(BENCH_INSTALLED)
	$(RUN) benchmarks/tokenizer_training.py
	$(RUN) benchmarks/tokenizer_encoding.py
	$(RUN) benchmarks/train_step.py
	$(RUN) benchmarks/generation.py
	$(RUN) benchmarks/serving.py
	$(RUN) tools/write_benchmark_table.py

# Builds the site with its generated references in build/site; a broken link is an error.
docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

# A copy of the package whose native core is compiled with sanitizers, tested from Python.
# libstdc++ is preloaded with libasan, which otherwise cannot intercept C++ exceptions.
SANITIZE := build/sanitize
SANITIZE_TESTS ?= tests/tokenizer tests/text_files tests/data tests/nn
SANITIZE_OBJECTS := $(NATIVE_SOURCES:native/%.cpp=$(SANITIZE)/%.o)
SANITIZE_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZE_CXXFLAGS = -std=c++17 -O1 -g -fPIC -fno-omit-frame-pointer -fvisibility=hidden -pthread \
	-Wall -Wextra -DPy_LIMITED_API=0x030B0000 $(SANITIZE_FLAGS) \
	-I$(shell $(RUN) -c 'import sysconfig; print(sysconfig.get_path("include"))')
SANITIZE_PRELOAD = $(shell $(CXX) -print-file-name=libasan.so):$(shell $(CXX) -print-file-name=libstdc++.so)

SANITIZED = LD_PRELOAD=$(SANITIZE_PRELOAD) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	PYTHONPATH=$(CURDIR)/$(SANITIZE) PYTHONMALLOC=malloc $(RUN)

sanitized: setup
	mkdir -p $(SANITIZE)
	rm -rf $(SANITIZE)/groundup
	cp -R src/groundup $(SANITIZE)/groundup
	rm -f $(SANITIZE)/groundup/*.so
	$(MAKE) --jobs $(JOBS) $(SANITIZE)/groundup/_native.abi3.so

sanitize: sanitized
	$(SANITIZED) -m pytest -q --capture=sys -p no:xdist -p no:cacheprovider $(wildcard $(SANITIZE_TESTS))

# Fault injection: fuzz feeds the native core under the sanitizers; torture tests everything else
# and writes the table of docs/guides/reliability.md.
SEED ?= 1
FUZZ_MINUTES ?= 10
TORTURE_MINUTES ?= 10

fuzz: sanitized
	SEED=$(SEED) FUZZ_MINUTES=$(FUZZ_MINUTES) $(SANITIZED) -m pytest -q --capture=sys -p no:xdist \
		-p no:cacheprovider -m "" tests/native/test_fuzz.py

torture: setup
	$(RUN) tests/torture --seed $(SEED) --minutes $(TORTURE_MINUTES) --guide

# Checks the checks: each fault seeded into a copy of the package must be found.
torture-proof: setup
	$(RUN) tests/torture --seed $(SEED) --proof

$(SANITIZE)/groundup/_native.abi3.so: $(SANITIZE_OBJECTS)
	$(CXX) -shared $(SANITIZE_FLAGS) -pthread -o $@ $^

$(SANITIZE)/%.o: native/%.cpp $(filter-out %.cpp,$(NATIVE_FILES))
	$(CXX) $(SANITIZE_CXXFLAGS) -c -o $@ $<

clean:
	rm -rf build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f src/groundup/*.so $(INSTALLED) $(DEV_INSTALLED) $(BENCH_INSTALLED) $(CLUSTER_INSTALLED) $(DOCS_INSTALLED)
	find src tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
