#!/usr/bin/env bash
# `make docs`: builds the documents as a book with search into target/book, and checks every link in the book.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

scripts/book.mjs collect
"$(mdbook_program)" build docs
scripts/book.mjs check
echo "The book: target/book/index.html"
