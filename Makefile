# The front door: every target does its own set-up, and does only what changed.
#
#   TORCH=2.14.1   another torch, in an environment of its own (.venv-2.14.1); it has CUDA, 6 GB
#   VERSIONS=...   the torch versions of test-versions (2.11.0 2.13.0 2.14.1 2.15.0)
#   PYTHON=...     the interpreter that .venv is made from
#   BENCH=...      arguments of bench-node and bench-peers: 'all_gather --sizes 8K,1M --ranks 2',
#                  and of bench-training: '--models wide --ranks 2'; parts of bench: 'tensors objects';
#                  of bench-micro: what names must match, 'reduce/AVX3/bfloat16'
#   JOBS=4         parallel compilations (a file with torch headers takes 1 GB)
#   V=1            show the output of every step

export TORCH PYTHON JOBS V

VENV_PYTHON = . scripts/common.sh && "$$VENV_PYTHON"
SHELL = bash

.DEFAULT_GOAL = help
.PHONY: help build demo test test-all test-versions unit asan tsan fuzz offline-bundle bench \
        bench-node bench-peers bench-training bench-docs bench-micro bench-offload instructions \
        instructions-record lint format clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  while IFS="$$(printf '\t')" read -r name what; do printf '  make %-19s %s\n' "$$name" "$$what"; done

build: ## a .venv in which any script can use the backend
	@scripts/setup.sh

demo: build ## train a small GPT with FSDP2 over tidegate and compare it with one process
	@$(VENV_PYTHON) -m tidegate demo --output build/demo

test: ## unit tests, sanitizers and a seeded slice of every matrix (ten minutes and the builds)
	@scripts/test.sh

test-all: ## everything, both sanitizers in full
	@scripts/test.sh all

test-versions: ## conformance, sharded training and registration on every supported torch
	@scripts/versions.sh $(VERSIONS)

unit: ## the C++ unit tests
	@scripts/unit.sh release

asan: ## the C++ unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/unit.sh asan

tsan: ## the C++ unit tests under ThreadSanitizer
	@scripts/unit.sh tsan

fuzz: ## the parsers of text from outside under libFuzzer, 60 s each (needs clang)
	@scripts/fuzz.sh 60

offline-bundle: ## .offline: what tests/gpu/run.sh needs on a GPU machine without a network
	@scripts/offline_bundle.sh

bench: build ## collectives next to gloo, as tables, and which aims hold (a quarter of an hour)
	@scripts/bench_torch.sh $(BENCH)

bench-node: ## the same at the level of C++, next to what memory allows, as tables
	@scripts/bench_node.sh $(BENCH)

bench-peers: ## the same next to Open MPI and MPICH, where they are installed
	@scripts/bench_peers.sh $(BENCH)

bench-training: build ## training steps under FSDP next to gloo and the null backend (BENCH='--ranks 2')
	@$(VENV_PYTHON) -m bench.fsdp_step $(BENCH)

bench-docs: ## measure anew and write the tables of docs/benchmarks (an hour)
	@scripts/bench_docs.sh $(BENCH)

bench-micro: ## kernels, barrier and executor by themselves, by google-benchmark (BENCH=filter)
	@scripts/bench_micro.sh $(BENCH)

bench-offload: ## optimizer steps next to torch's and DeepSpeed's (BENCH='--scenario many --vs deepspeed')
	@scripts/bench_offload.sh $(BENCH)

instructions: ## instructions of kernels, executor and preparation against the recorded budget
	@scripts/instructions.sh

instructions-record: ## the budget anew, after a change that is worth its instructions
	@scripts/instructions.sh --record

lint: ## ruff, clang-format, clang-tidy, mypy and the stub of the shim
	@scripts/lint.sh

format: ## what ruff, clang-format and the generator of the stub can put right
	@scripts/lint.sh fix

clean: ## remove the build folder; the environments stay
	rm -rf build
