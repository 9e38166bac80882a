# SPDX-License-Identifier: Apache-2.0
# The front door. Each target installs and builds what it needs first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
export NINJA_STATUS ?= [%p, %e s] 
# What `make run` needs of all that `make build` builds.
RUN_NEEDS := neotier gups neotier_plugin neotier_clock neotier_init

.PHONY: help bootstrap configure build run test test-all test-debug-kernel deb lint bench synth clean

help: ## what this prints
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bootstrap: ## install what is missing (root), unpack the guest kernels
	@scripts/bootstrap

configure: bootstrap
	@mkdir -p build && cmake --preset release > build/cmake.log 2>&1 || { cat build/cmake.log; exit 1; }

build: configure ## build everything: programs in build/bin, the module in build/kmod and, for 6.1, build/kmod-6.1
	@cmake --build --preset release -j $(JOBS)
	@$(MAKE) -s -C kmod KERNEL=6.12 BUILD=$(CURDIR)/build/kmod
	@$(MAKE) -s -C kmod KERNEL=6.1

run: configure ## the main job, some ten minutes: programs on the emulated CXL server, experts and KV blocks; plots in out/report.html
	@echo "Building what it needs: the first time some four minutes on two idle cores."
	@cmake --build --preset release -j $(JOBS) --target $(RUN_NEEDS)
	@$(MAKE) -s -C kmod KERNEL=6.12 BUILD=$(CURDIR)/build/kmod
	@scripts/demo

test: build ## all tests; ends with 'N passed, N failed, N skipped'
	@scripts/test

test-all: build ## every suite there is, for hours; goes on where it was interrupted; figures in out/test-all-<date>.json
	@scripts/test --all

test-debug-kernel: build ## the module's tests and a storm on a kernel with KASAN, lock checks and fault injection, built once
	@scripts/test debug $(addprefix storm-debug-,1 2 3)

deb: ## Debian packages of library, headers, daemon and command, for this Debian, in out/deb
	@scripts/deb

lint: build ## all static checks
	@scripts/lint

bench: build ## speed of the simulation and of the RTL; then what `make run` does in its long form, an hour
	@scripts/bench
	@scripts/demo --long

synth: bootstrap ## size of the RTL on an FPGA, by Yosys (an estimate)
	@fpga/synth

clean: ## remove what was built; keeps the guest kernels, unpacked or built
	@rm -rf build/release build/package build/asan build/tsan build/bin build/kmod build/kmod-6.1 build/kmod-newest build/kmod-debug build/share build/cmake.log out
