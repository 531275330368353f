# shellcheck shell=bash
# Checks of a test script that sources this after processes.sh. The script defines show_logs, which prints the logs after
# a failure.

say() { printf '%4d s  %s\n' $SECONDS "$*"; }

# Runs a command; ends the script if the command fails.
expect() { # WHAT COMMAND...
    local what=$1
    shift
    if ! "$@"; then
        show_logs
        die "failed: $what"
    fi
    say "$what"
}

# Repeats a command until it succeeds; fails after the deadline.
within() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

contains() { [[ $1 == *"$2"* ]]; }
