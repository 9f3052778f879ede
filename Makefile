# make          build: leaves build/lazy and build/liblazy_ops.so
# make python   complete .venv, so that its Python can import torch, transformers and lazy_attention
# make demo     install what is missing, build, train a Lazy model beside its softmax twin, write the report
# make check    build, run the unit tests (under three minutes after a build)
# make test     install what is missing, build, run every test
# make help     the rest
.DEFAULT_GOAL := build
.PHONY: build setup install python demo docs check test test-isa test-gpu test-asan test-tsan test-kills wheels test-wheels fuzz lint tidy \
        format clean help

PRESET ?= $(if $(CI),ci,release)
JOBS   ?= $(shell nproc)
PREFIX ?= $(HOME)/.local
export LAZY_PYTHON
# on, off or auto; if it is not set, a build folder keeps its setting (scripts/build.sh).
export LAZY_CUDA
# The program with its CUDA kernels, which take minutes to compile, on a machine with a GPU or if LAZY_CUDA requests them.
PROGRAM := $(if $(wildcard /dev/nvidiactl)$(filter on ON,$(LAZY_CUDA)),lazy_program,lazy lazy_ops)
# CUDA kernels that the build folder already has are brought up to date before they are installed.
INSTALLED := $(if $(wildcard build/liblazy_ops_cuda.so),lazy_program,$(PROGRAM))
# The tests find real text, tokenizers and benchmarks here, and skip what needs them where it is unset.
export LAZY_TEST_DATA

setup:          ## install system packages, the virtual environment and SentencePiece's source
	@scripts/setup.sh

build: setup    ## build build/lazy and build/liblazy_ops.so; with a GPU or LAZY_CUDA=on, also the CUDA kernels
	@scripts/build.sh $(PRESET) build $(PROGRAM)

install: setup  ## install the program as PREFIX/bin/lazy (default: ~/.local); it uses the PyTorch that it was built with
	@scripts/build.sh $(PRESET) build $(INSTALLED)
	@cmake --install build --prefix "$(PREFIX)" --component program

python:         ## build the package lazy_attention and install what importing it needs into .venv (4.3 GB)
	@scripts/setup.sh python
	@scripts/build.sh $(PRESET) build lazy lazy_ops lazy_python

demo: build     ## train, evaluate and report on real text, in ten minutes on two cores
	@scripts/demo.sh

docs: build     ## the documentation as a site in build/site, with its links checked; DOCS=serve shows it while it is written
	@scripts/docs.sh $(DOCS)

check:          ## build and run the unit tests: under three minutes after a build
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) build
	@scripts/test.sh build unit

test:           ## build and run every test
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) build
	@scripts/test.sh build
	@$(MAKE) --no-print-directory test-tsan
	@FUZZ_SEED=1 FUZZ_SECONDS=$${FUZZ_SECONDS:-$(if $(CI),20,5)} scripts/fuzz.sh build/fuzz-seeds

test-isa:       ## the numerical tests with the instructions of an AVX2 machine, and with SSE alone
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) build
	@scripts/test_isa.sh build

test-gpu:       ## the operator's tests on the GPU (the same binaries), with the count of those that ran
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) build lazy_ops_cuda attention_tests ops_tests mixer_tests serve_tests
	@scripts/test_gpu.sh build

test-asan:      ## every test under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup.sh test
	@scripts/build.sh asan build-asan
	@scripts/test.sh build-asan

test-tsan:      ## what uses threads, under ThreadSanitizer (without LibTorch; the engine beside it, not instrumented)
	@scripts/build.sh tsan build-tsan
	@scripts/test.sh build-tsan
	@scripts/build.sh $(PRESET) build engine_tsan_tests
	@OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 build/tests/engine_tsan_tests --gtest_brief=1

test-kills:     ## KILLS (default 100) kill -9 at random instants, of one process and of one of two ranks; nothing may be lost
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) build train_tests
	@LAZY_KILL_ROUNDS=$${KILLS:-100} build/tests/train_tests --gtest_filter='Kill.*'

wheels:         ## the wheels of the operator and of the program, in dist/
	@scripts/setup.sh
	@scripts/wheels.sh

test-wheels:    ## install dist/'s wheels beside PyTorch LAZY_WHEEL_TORCH (default 2.11,2.13,2.15), without a compiler; test
	@[ -x .deps/wheels/bin/python ] || { echo "test-wheels: run 'make wheels' first" >&2; exit 2; }
	@.deps/wheels/bin/python scripts/test_wheels.py

fuzz:           ## fuzz every reader, FUZZ_SECONDS (default 600) each, two at a time
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) build fuzz_tests
	@build/tests/fuzz_tests --gtest_brief=1 --gtest_filter='Fuzz.Seeds_*'
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-600} scripts/fuzz.sh build/fuzz-seeds

lint:           ## formatting, Python lint and spelling of every file; fails if anything is to be mended
	@scripts/lint.sh check

tidy:           ## clang-tidy over the sources that differ from LAZY_BASE (default HEAD~1); needs a build
	@scripts/lint.sh tidy build

format:         ## format every source file in place
	@scripts/lint.sh format

clean:          ## remove build folders and wheels; .venv and .deps stay
	rm -rf build build-* dist

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1\t/' | expand -t 20
	@echo
	@echo 'LAZY_CUDA=off     omits the CUDA kernels in all targets; on requires them; auto: if there is an nvcc. It is kept in build/'
	@echo 'LAZY_PYTHON=FILE  uses the PyTorch of this interpreter instead of .venv'
