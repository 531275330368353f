# Targets only call scripts and Cargo. SKIP_SETUP=1 skips the set-up of any target.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help up up-workerd up-cluster test bare bench lab soak check screenshots docs package release setup clean build-core build-worker

SETUP := $(if $(filter 1,$(SKIP_SETUP)),:,scripts/setup.sh)
SETUP_UP := $(if $(filter 1,$(SKIP_SETUP)),:,scripts/setup.sh --up)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

up: ARGUMENTS := wrangler
up-workerd: ARGUMENTS := workerd
up-cluster: ARGUMENTS := wrangler cluster
up: ## run core and edge with a demo campaign; prints the page's address; Ctrl-C stops everything
up-workerd: ## like up, with the edge in plain workerd
up-cluster: ## like up, with two cores, PostgreSQL and a cluster of three primaries and three replicas; SERVER=redis|valkey
up-cluster: SETUP_UP := $(SETUP)
up up-workerd up-cluster:
	@$(SETUP_UP)
	@$(MAKE) --no-print-directory -j2 build-core build-worker
	@exec scripts/dev.sh $(ARGUMENTS)

test: ## run all tests but those of tests/soak.txt, with the edge in a real Worker runtime and the page in a real browser; OPTIONS="faults e2e" runs parts; SLOW=1 simulates a slow machine
	@$(SETUP)
	@exec scripts/test.sh $(OPTIONS)

build-core:
	@cargo build --bin claimgate
build-worker:
	@scripts/build-worker.sh

bare: ## run `make up` in a minimal Debian root file system like a newcomer with sudo (15 minutes); OPTIONS=--setup-only tests only the set-up
	@exec scripts/bare.sh $(OPTIONS)

bench: ## measure claimgate and its baselines, within 12 minutes; OPTIONS="--only batcher"; see bench/README.md
	@$(SETUP)
	@cargo build --release --bin claimgate
	@cargo build --release -p claimgate-bench
	@scripts/build-worker.sh
	@scripts/build-worker.sh bench/bare-edge
	@CLAIMGATE_PREVIOUS_EDGE="$$(scripts/previous.sh edge || true)" \
		exec cargo run --quiet --release -p claimgate-bench -- $(OPTIONS)

lab: ## compare all known methods against overselling, within 8 minutes; OPTIONS="--only row_lock"; see lab/README.md
	@$(SETUP)
	@cargo build --release -p claimgate-lab
	@exec cargo run --quiet --release -p claimgate-lab -- $(OPTIONS)

soak: ## run the long tests (hours), in parts; OPTIONS="failovers storm" runs parts, OPTIONS=--list lists them; SEED=, OPERATIONS=, ROUNDS= and others set their length (scripts/soak.sh)
	@$(SETUP) --soak
	@exec scripts/soak.sh $(OPTIONS)

package: ## build Debian packages of core and edge, with a bill of materials, into target/package; needs Debian
	@$(SETUP) --package
	@cargo build --release --bin claimgate
	@scripts/build-worker.sh
	@scripts/package.sh

release: ## build the files of a release on this machine, without publishing; VERSION=0.1.0; see docs/releasing.md
	@$(if $(filter 1,$(SKIP_SETUP)),:,scripts/setup.sh --release)
	@scripts/release.sh --dry-run "$(VERSION)"

check: ## check format, lints, licences, and security advisories if reachable
	@$(SETUP) --lint
	@scripts/check.sh

screenshots: ## take the pictures of the documents, docs/pictures, from a real core, edge and browser
	@$(SETUP)
	@exec scripts/screenshots.sh

docs: ## build the documents as a book with search in target/book, and check its links
	@$(SETUP) --docs
	@scripts/docs.sh

setup: ## install missing tools; the targets above do so themselves
	@scripts/setup.sh

clean: ## remove build output; keeps ./data
	@rm -rf target edge/build edge/assets/brand.js edge/assets/campaigns/index.html .wrangler
