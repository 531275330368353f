#!/usr/bin/env bash
# Checks that tests/soak.txt names only tests that exist, each by its full name with a reason, and leaves each
# invariant of tests/README.md a test in the gate. Prints how many tests of each invariant the gate has. Needs built
# tests.
set -euo pipefail
cd "$(dirname "$0")/.."

all=$(mktemp)
trap 'rm -f "$all"' EXIT
for binary in e2e faults strategies; do
    cargo test --quiet --workspace --test $binary -- --list --format terse 2>/dev/null | sed -n "s/^\(.*\): test$/$binary \1/p"
done >"$all"

awk '
    function fail(text) { print text; wrong = 1 }
    # A name of the table: a test or a module of faults, else of e2e.
    function in_gate(name,   binary, test, found) {
        binary = "e2e"
        if (sub(/^faults::/, "", name)) binary = "faults"
        for (test in tests) {
            split(test, of, " ")
            if (of[1] == binary && (of[2] == name || index(of[2], name "::") == 1) && !(test in soak)) found++
        }
        return found + 0
    }
    FILENAME == ARGV[1] { tests[$1 " " $2] = 1; next }
    FILENAME == ARGV[2] {
        if (/^#/ || NF == 0) next
        matching = 0
        # libtest skips by a part of the name.
        for (test in tests) if (split(test, of, " ") && of[1] == $1 && index(of[2], $2)) matching++
        if (!(($1 " " $2) in tests)) fail("tests/soak.txt: no such test: " $1 " " $2)
        else if (matching > 1) fail("tests/soak.txt: " $2 " is a part of another name")
        else if (NF < 3) fail("tests/soak.txt: no reason: " $2)
        soak[$1 " " $2] = 1
        next
    }
    split($0, cell, "|") > 4 && cell[2] ~ /^ [0-9]+ $/ {
        rest = cell[4]
        count = 0
        while (match(rest, /`[a-z_0-9:]+`/)) {
            count += in_gate(substr(rest, RSTART + 1, RLENGTH - 2))
            rest = substr(rest, RSTART + RLENGTH)
        }
        printf "invariant%s: %d tests in the gate\n", cell[2], count
        if (count == 0) fail("no test in the gate guards invariant" cell[2])
        rows++
    }
    END {
        if (rows == 0) fail("tests/README.md: no table of invariants")
        exit wrong
    }
' "$all" tests/soak.txt tests/README.md
