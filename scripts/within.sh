#!/usr/bin/env bash
# Runs tests, or a build, within deadlines, and copies their output as it arrives. If one test, or all tests together,
# take too long, the script prints the names of the running tests, the stacks of their threads and all processes. Then it
# stops them and exits with status 124.
#
#   scripts/within.sh cargo test --workspace --test e2e -- --format=pretty
#
# Needs --format=pretty: libtest says that a test runs only after a minute, and that one has ended only in this format.
set -euo pipefail

# Several times what the slowest part of `make test` and the slowest test took, and far less than CI's 90 minutes.
total_s=${TOTAL_S:-1800} test_s=${TEST_S:-600}
if [ "${SLOW:-}" = 1 ]; then total_s=$((4 * total_s)) test_s=$((4 * test_s)); fi
# Start of each test that has run for over 60 seconds, in seconds since this script began.
declare -A began=()

# `timeout` makes a process group and passes signals on to it. Its own deadline is for a caller who stopped reading.
exec {output}< <(exec timeout --kill-after=30 $((total_s + 120)) "$@" 2>&1 </dev/null)
group=$!
trap 'kill -TERM $group 2>/dev/null; exit 130' INT HUP
trap 'late "ended from outside"' TERM

# note LINE: follows which tests run.
note() {
    if [[ $1 =~ ^test\ ([^ ]+)\ has\ been\ running\ for\ over\ 60 ]]; then
        began[${BASH_REMATCH[1]}]=$((SECONDS - 60))
    elif [[ $1 =~ ^test\ ([^ ]+).*\ \.\.\.\  ]]; then
        unset "began[${BASH_REMATCH[1]}]"
    fi
}

# Prints a process and all that it started, directly or not.
family() {
    echo "$1"
    local child
    for child in $(pgrep -P "$1"); do family "$child"; done
}

# Prints the stack of each running test's thread. A thread's name has the first 15 characters of the test's.
stacks() {
    local pid task test
    for pid in $(pgrep -g $group); do
        for task in /proc/"$pid"/task/*; do
            for test in "${!began[@]}"; do
                if [ "$(cat "$task/comm" 2>/dev/null)" = "${test:0:15}" ]; then
                    printf '\n'
                    timeout 60 eu-stack -1 -p "${task##*/}" 2>&1 | cut -c 1-200 || true
                fi
            done
        done
    done
}

# late WHAT: reports and stops the tests.
late() {
    local test family
    printf '\nDEADLINE: %s\n' "$1"
    for test in "${!began[@]}"; do printf 'test %s has been running for %d s\n' "$test" $((SECONDS - began[$test])); done
    stacks
    family=$(family $group | paste -sd, -)
    printf '\n'
    ps --forest -o pid,stat,etimes,wchan:20,args -p "$family" | cut -c 1-200
    kill -TERM $group
    timeout 60 cat <&"$output" >/dev/null || true
    exit 124
}

line=''
while :; do
    status=0
    IFS= read -rt 5 rest <&"$output" || status=$?
    line+=$rest
    if [ $status = 0 ]; then
        printf '%s\n' "$line"
        note "$line"
        line=''
    elif [ $status -le 128 ] || ! kill -0 $group 2>/dev/null; then
        printf '%s' "$line"
        break
    fi
    for test in "${!began[@]}"; do
        if [ $((SECONDS - began[$test])) -gt "$test_s" ]; then late "a test may take $test_s s"; fi
    done
    if [ $SECONDS -gt "$total_s" ]; then late "all together may take $total_s s"; fi
done
wait $group
