#!/usr/bin/env bash
# Finds tests that could fail only because the machine is slow. Each limit of a wait must be SOON,
# promised(…), or at least 20 s. Nothing may open or end some seconds from now. The exception is a line
# with a comment "real time", which says why lateness does no harm.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files 'tests/*.rs' 'test-support/*.rs')
awk '
    function seconds(text,   number) {
        if (!match(text, /from_(secs|millis)\([0-9_]+\)/)) return 1000
        number = substr(text, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", number)
        return text ~ /from_millis/ ? number / 1000 : number + 0
    }
    function count(text, what) { return gsub(what, "", text) }
    function fail(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, $0; wrong = 1 }
    # Whether the constant, of this file or of another one that exports it, is below 20 s.
    function is_short(name) { return (FILENAME, name) in value ? value[FILENAME, name] < 20 : name in exported && exported[name] < 20 }

    # The first pass reads the constants.
    /^ *(pub )?const [A-Z_]+: Duration =/ {
        if (pass == 1) {
            name = $0
            sub(/^ *(pub )?const /, "", name)
            sub(/:.*/, "", name)
            value[FILENAME, name] = seconds($0)
            if (/pub const/) exported[name] = seconds($0)
        }
        next
    }
    pass == 1 { next }
    # An assertion may span some lines.
    /assert!\(/ { whole = 1; line = ""; lines = 0 }
    whole {
        line = line $0
        if (count(line, "[(]") > count(line, "[)]") && ++lines < 6) next
        $0 = line
        whole = 0
    }
    # Not limits that fail a test: the time for which a load or a fault lasts, and that of a client.
    /^ *while / || /\.is_err\(\)/ || /\.timeout\(/ || /SOON/ || /promised\(/ || /real time/ { next }
    /\.contains\(&[a-z_.()]*as_secs\(\)\)/ { fail("a limit below 20 s") }
    /(eventually|until_[a-z_]+|timeout|\.wait|\.relayed)\(/ || /assert!\(.* <=? / {
        limit = $0
        if (/assert!/) sub(/.* <=? /, "", limit)
        gsub(/"[^"]*"/, "", limit)
        if (limit ~ /Duration::from_/ && seconds(limit) < 20) fail("a limit below 20 s")
        split(limit, words, /[^A-Z_]+/)
        for (at in words) if (words[at] ~ /^[A-Z]/ && is_short(words[at])) fail("a limit below 20 s")
    }
    /from_now\([1-9][0-9]?\)/ || /hold_seconds"\]?[ :=]*(json!\()?[1-9][0-9]?([^0-9_]|$)/ || /_hold(s|ing)\(.*, [1-9][0-9]?(\)|,)/ {
        fail("ends while the test runs")
    }
    END { exit wrong }
' pass=1 "${files[@]}" pass=2 "${files[@]}"
