#!/bin/sh
# Creates the demo campaign if it does not exist. `make up`, compose.yaml and the demo image use it.
#
#   scripts/demo-campaign.sh [PROGRAM]    the command line (default claimgate); its variables name core
set -eu
claimgate=${1:-claimgate}

# Checks first whether the campaign exists: on a later day, `create` would fail because the end differs.
create() {
    "$claimgate" campaign show demo >/dev/null 2>&1 ||
        "$claimgate" campaign create demo --name Demo --time-zone Asia/Shanghai \
            --ends-at +30d \
            --total 100 --per-user 3 --per-user-per-day 1 --per-claim 1 >/dev/null
}

# A slow machine's store may time out: status 3 means retry.
tries=1
while :; do
    status=0
    create || status=$?
    if [ $status = 0 ]; then break; fi
    if [ $status != 3 ] || [ $tries = 5 ]; then exit $status; fi
    tries=$((tries + 1))
    sleep 1
done
