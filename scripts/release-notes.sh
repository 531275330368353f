#!/usr/bin/env bash
# Prints a version's section of CHANGELOG.md, for its release notes; fails if there is none.
#
#   scripts/release-notes.sh 0.1.0 [FILE]       also accepts v0.1.0, the tag's name, and Unreleased
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: scripts/release-notes.sh VERSION [FILE]}
file=${2:-CHANGELOG.md}

notes=$(awk -v version="${version#v}" '
    /^## / { title = $2; gsub(/[][]/, "", title); is_in = title == version; next }
    is_in
' "$file" | sed -e '/./,$!d')
if [ -z "$notes" ]; then
    echo "$file has no section for version ${version#v}" >&2
    exit 1
fi
printf '%s\n' "$notes"
