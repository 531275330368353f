#!/usr/bin/env bash
# Prints what CHANGELOG.md says of a version, for the notes of its release; fails when it says nothing.
#
#   scripts/release-notes.sh 0.1.0 [FILE]       also: v0.1.0, the name of its tag, and Unreleased
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: scripts/release-notes.sh VERSION [FILE]}
file=${2:-CHANGELOG.md}

notes=$(awk -v version="${version#v}" '
    /^## / { title = $2; gsub(/[][]/, "", title); is_in = title == version; next }
    is_in
' "$file" | sed -e '/./,$!d')
if [ -z "$notes" ]; then
    echo "$file says nothing of version ${version#v}" >&2
    exit 1
fi
printf '%s\n' "$notes"
