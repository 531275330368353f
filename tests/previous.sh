#!/usr/bin/env bash
# Runs the previous version, which scripts/previous.sh builds, together with this one (tests/faults/rolling.rs and
# tests/faults/upgrade.rs), for `make soak`.
set -euo pipefail
cd "$(dirname "$0")/.."
CLAIMGATE_PREVIOUS_BIN=$(scripts/previous.sh core)
CLAIMGATE_PREVIOUS_EDGE=$(scripts/previous.sh edge)
export CLAIMGATE_PREVIOUS_BIN CLAIMGATE_PREVIOUS_EDGE
cargo test --workspace --test faults rolling_upgrade -- --nocapture
