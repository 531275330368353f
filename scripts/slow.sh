#!/usr/bin/env bash
# Runs a command as if on a slow machine: with half of the processors, and a disk on which one sync in a hundred takes
# up to 1.5 s longer (test-support/src/slow_disk.c). Applies to all its child processes.
#
#   scripts/slow.sh cargo test --workspace --test e2e claim_flow
#
# Needs Linux cgroups, hence root or sudo without a password, and a C compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
write() { echo "$1" | as_root tee "$2" >/dev/null; }

period_us=100000
quota_us=$((period_us * $(nproc) / 2))
if [ -d /sys/fs/cgroup/cpu ]; then root=/sys/fs/cgroup/cpu; else root=/sys/fs/cgroup; fi
group=$root/claimgate-slow-$$
library=$(mktemp -d)

# rmdir fails until the kernel has emptied the group, shortly after its last process ends.
clean_up() {
    rm -rf "$library"
    local tries=50
    until as_root rmdir "$group" 2>/dev/null || [ $((tries -= 1)) = 0 ]; do sleep 0.1; done
}
trap clean_up EXIT
trap 'exit 130' INT TERM

cc -O1 -shared -fPIC -o "$library/slow_disk.so" "$here/test-support/src/slow_disk.c"
chmod -R a+rX "$library" # PostgreSQL runs as another user
as_root mkdir "$group"
if [ -e "$group/cpu.cfs_quota_us" ]; then
    write $period_us "$group/cpu.cfs_period_us"
    write $quota_us "$group/cpu.cfs_quota_us"
else
    write "$quota_us $period_us" "$group/cpu.max"
fi
echo "slow: $quota_us of every $period_us µs of processor time, one sync in a hundred up to 1.5 s longer" >&2

export CLAIMGATE_TEST_SLOW=1
status=0
(
    write $BASHPID "$group/cgroup.procs"
    LD_PRELOAD=$library/slow_disk.so${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"
) || status=$?
exit $status
