#!/usr/bin/env bash
# Checks the part of CONTRIBUTING's writing rules that a program can check: replaced words and the lengths of function
# names and commit subjects.
set -euo pipefail
cd "$(dirname "$0")/.."

# Subjects of older commits are not checked.
base=392ffdf21c67
length_max=60
red=0

# Prints MESSAGE and FINDINGS if there are findings: fail MESSAGE FINDINGS
fail() {
    if [ -z "$2" ]; then return; fi
    printf '%s\n%s\n' "$2" "$1" >&2
    red=1
}

# The list has one whole word or phrase a line, case-sensitive. Excluded: migrations, which name old columns and never
# change; the changelog, which describes the past; and a Unix user that keeps its name.
list=scripts/replaced-words.txt
places=(. ":!$list" ':!core/migrations' ':!CHANGELOG.md' ':!*.lock' ':!package-lock.json'
    ':!test-support/src/postgres.rs')
# Lower-case words and phrases are also found within snake_case names, which -w takes for one word.
names=$(grep -E '^[a-z ]+$' "$list" | sed 's/ /[ _]/g' | paste -sd '|')
fail "replaced words: use the terms of docs/glossary.md instead" \
    "$(grep -vE '^#|^[a-z ]+$' "$list" | git grep -nwF -f - -- "${places[@]}" || true
        git grep -nE "(^|[^A-Za-z0-9])($names)([^A-Za-z0-9]|\$)" -- "${places[@]}" || true)"

fail "names of functions, tests included, have at most $length_max characters" \
    "$(git grep -nE "fn [a-z0-9_]{$((length_max + 1)),}\b" -- '*.rs' || true)"

if git merge-base --is-ancestor "$base" HEAD 2>/dev/null; then
    fail "commit subjects have at most $length_max characters" \
        "$(git log --no-merges --format='%h %s' "$base..HEAD" | grep -E "^[0-9a-f]+ .{$((length_max + 1)),}" || true)"
else
    echo "This checkout lacks the history since $base: commit subjects are skipped."
fi
exit $red
