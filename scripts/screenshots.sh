#!/usr/bin/env bash
# Takes the pictures of the documents (docs/pictures) from a real core, edge and browser: `make screenshots`.
set -euo pipefail
cd "$(dirname "$0")/.."

taken=target/screenshots/documents
rm -rf $taken
cargo test --workspace --test e2e pictures:: -- --nocapture
[ -d $taken ] || { echo "screenshots: no pictures were taken: is Chromium installed?" >&2 && exit 1; }
mkdir -p docs/pictures
cp $taken/*.png docs/pictures/
ls -l docs/pictures
