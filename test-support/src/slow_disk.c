// Simulates a slow disk through LD_PRELOAD: one sync in a hundred takes up to 1.5 s longer, as on a shared or
// worn disk.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ONE_IN = 100, DELAY_MS_MAX = 1500 };

// Applies SplitMix64 (Steele, Lea, Flood 2014) to a counter, so that threads share it without a lock.
static uint64_t next_random(void) {
    static _Atomic uint64_t count;
    uint64_t n = (atomic_fetch_add(&count, 1) + ((uint64_t)getpid() << 32)) * 0x9E3779B97F4A7C15u;
    n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9u;
    n = (n ^ (n >> 27)) * 0x94D049BB133111EBu;
    return n ^ (n >> 31);
}

static void delay(void) {
    uint64_t random = next_random();
    if (random % ONE_IN) return;
    long ms = (long)(random / ONE_IN % DELAY_MS_MAX);
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&rest, &rest)) {}
}

int fsync(int file) {
    delay();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    delay();
    return (int)syscall(SYS_fdatasync, file);
}
