#!/usr/bin/env bash
# Words that were replaced stay out of code, documents, metrics and messages: docs/glossary.md has what to write instead.
set -euo pipefail
cd "$(dirname "$0")/.."

# Whole words or phrases, letter case as written, one a line; words that are plain English too are not listed.
list=scripts/replaced-words.txt
# Migrations name old columns, and never change; the changelog tells of the past; a Unix user is called as it is.
found=$(grep -v '^#' "$list" | git grep -nwF -f - -- . ":!$list" ':!core/migrations' ':!CHANGELOG.md' \
    ':!*.lock' ':!package-lock.json' ':!test-support/src/postgres.rs' || true)
if [ -n "$found" ]; then
    printf '%s\n' "$found" >&2
    echo "replaced words came back: see docs/glossary.md" >&2
    exit 1
fi
