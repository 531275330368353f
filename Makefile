# Thin: what a target does is in scripts/ and in Cargo.toml. SKIP_SETUP=1 skips the set-up in each.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help up up-workerd up-cluster test bare bench lab soak check package setup clean build-core build-worker

SETUP := $(if $(filter 1,$(SKIP_SETUP)),:,scripts/setup.sh)
SETUP_UP := $(if $(filter 1,$(SKIP_SETUP)),:,scripts/setup.sh --up)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

up: ARGUMENTS := wrangler
up-workerd: ARGUMENTS := workerd
up-cluster: ARGUMENTS := wrangler cluster
up: ## core and edge with a demo campaign; prints the page's address; Ctrl-C stops it all
up-workerd: ## the same with the edge in plain workerd
up-cluster: ## the same with two cores, a PostgreSQL and a cluster of three primaries and three replicas; SERVER=redis|valkey
up-cluster: SETUP_UP := $(SETUP)
up up-workerd up-cluster:
	@$(SETUP_UP)
	@$(MAKE) --no-print-directory -j2 build-core build-worker
	@exec scripts/dev.sh $(ARGUMENTS)

test: ## every test but those of tests/soak.txt, with the edge in a real Worker runtime and the page in a real browser; OPTIONS="faults e2e" for parts; SLOW=1: as on a slow machine
	@$(SETUP)
	@exec scripts/test.sh $(OPTIONS)

build-core:
	@cargo build --bin claimgate
build-worker:
	@scripts/build-worker.sh

bare: ## `make up` in a bare Debian root as a newcomer with sudo; a quarter of an hour; OPTIONS=--setup-only for the set-up alone
	@exec scripts/bare.sh $(OPTIONS)

bench: ## claimgate beside its baselines, in figures, within 12 minutes; OPTIONS="--only batcher"; see bench/README.md
	@$(SETUP)
	@cargo build --release --bin claimgate
	@cargo build --release -p claimgate-bench
	@scripts/build-worker.sh
	@scripts/build-worker.sh bench/bare-edge
	@exec cargo run --quiet --release -p claimgate-bench -- $(OPTIONS)

lab: ## every known way to stop overselling, side by side, within 8 minutes; OPTIONS="--only row_lock"; see lab/README.md
	@$(SETUP)
	@cargo build --release -p claimgate-lab
	@exec cargo run --quiet --release -p claimgate-lab -- $(OPTIONS)

soak: export CLAIMGATE_BIN = $(CURDIR)/target/release/claimgate
soak: ## the tests of tests/soak.txt, the model for long, twenty rounds of the storm, 1,000 failovers (hours), 500 campaigns over slow connections, 10,000 at rest, slots moved to and fro twenty times, the previous version beside this one, the packages installed and run, all interleavings, everything on every topology, and every mutant; SEED=, OPERATIONS=, ROUNDS=, LIVE=, ENDED=
	@$(SETUP)
	@cargo build --release --bin claimgate
	@scripts/test.sh soak
	@OPERATIONS=$${OPERATIONS:-1000000} cargo test -p claimgate-tests --test model -- --nocapture
	@ROUNDS=$${ROUNDS:-20} cargo test -p claimgate-tests --test faults storm -- --nocapture
	@for server in redis valkey; do export CLAIMGATE_TEST_SERVER=$$server; \
		ROUNDS=$${ROUNDS:-50} cargo test -p claimgate-tests --test faults failovers -- --nocapture; \
		MOVES=$${MOVES:-40} cargo test -p claimgate-tests --test faults a_slot_moves -- --nocapture; \
		CLAIMS=$${CLAIMS:-1000000} CAMPAIGNS=$${CAMPAIGNS:-10000} \
			cargo test -p claimgate-tests --test faults promotion -- --nocapture; \
	done
	@CAMPAIGNS=$${CAMPAIGNS:-500} cargo test -p claimgate-tests --test faults delayed -- --nocapture
	@tests/previous.sh
	@$(MAKE) package
	@tests/packages.sh
	@LIVE=$${LIVE:-10000} ENDED=$${ENDED:-1000000} REST_S=$${REST_S:-60} \
		cargo test -p claimgate-tests --test faults at_rest -- --nocapture
	@INTERLEAVINGS_ALL=1 cargo test -p claimgate-tests --test interleavings -- --nocapture
	@scripts/topologies.sh all
	@tests/mutants/run.sh

package: ## Debian packages and images of core and edge, with a list of what is in them, into target/package; needs Debian
	@$(SETUP) --package
	@cargo build --release --bin claimgate
	@scripts/build-worker.sh
	@scripts/package.sh

check: ## format, lints, licences, and advisories where reachable
	@$(SETUP) --lint
	@scripts/check.sh

setup: ## bring what is missing; the targets above do it themselves
	@scripts/setup.sh

clean: ## remove what was built; keeps ./data
	@rm -rf target edge/build .wrangler
