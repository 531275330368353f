import assert from "node:assert/strict";
import { test } from "node:test";

import bound, { Ratelimit } from "./rate_limit.js";

const PERIOD_S = 10;

// Creates a limiter with its clock, and a function that returns how many of `count` consecutive requests it allows.
function limiter(limit, keys = 1000) {
    const clock = { now: 1_000_000 };
    const made = new Ratelimit(limit, PERIOD_S, { now: () => clock.now, keys });
    const pass = (key, count) => {
        let passed = 0;
        for (let n = 0; n < count; n++) passed += made.limit({ key }).success ? 1 : 0;
        return passed;
    };
    return { made, clock, pass };
}

test("a full bucket allows exactly its limit, for each key", () => {
    for (const limit of [1, 3, 7, 20, 60, 999]) {
        const { pass } = limiter(limit);
        assert.equal(pass("a", limit + 50), limit);
        assert.equal(pass("b", 1), 1);
    }
});

test("a bucket fills evenly, and a rejection takes no token", () => {
    const { clock, pass } = limiter(20);
    assert.equal(pass("a", 100), 20);
    clock.now += 499;
    assert.equal(pass("a", 100), 0);
    clock.now += 1;
    assert.equal(pass("a", 100), 1);
    clock.now += 5_000;
    assert.equal(pass("a", 100), 10);
});

test("a bucket is full after one period and never overfills", () => {
    for (const wait_s of [PERIOD_S, 1.5 * PERIOD_S, 5 * PERIOD_S]) {
        const { clock, pass } = limiter(20);
        pass("a", 21);
        clock.now += wait_s * 1000;
        assert.equal(pass("a", 100), 20);
    }
});

test("the limit holds over many periods", () => {
    const { clock, pass } = limiter(20);
    let passed = 0;
    for (let ms = 0; ms < 100_000; ms += 100, clock.now += 100) passed += pass("a", 1);
    assert.ok(passed >= 219 && passed <= 220, `${passed}`);
});

test("full buckets are evicted", () => {
    const { made, clock, pass } = limiter(20);
    for (let n = 0; n < 100; n++) pass(`k${n}`, 1);
    assert.equal(made.size, 100);
    clock.now += PERIOD_S * 1000;
    pass("a", 1);
    clock.now += PERIOD_S * 1000;
    pass("b", 1);
    assert.ok(made.size <= 2, `${made.size}`);
});

test("memory is bounded, and a busy key stays limited", () => {
    const { made, pass } = limiter(20, 100);
    assert.equal(pass("hasty", 21), 20);
    for (let n = 0; n < 10_000; n++) {
        pass(`k${n}`, 1);
        if (n % 40 === 0) assert.equal(pass("hasty", 1), 0);
        assert.ok(made.size <= 100, `${made.size}`);
    }
});

test("after the clock is set back, callers are rejected for one period at most", () => {
    const { clock, pass } = limiter(20);
    pass("a", 21);
    clock.now -= 3_600_000;
    assert.equal(pass("a", 1), 0);
    clock.now += PERIOD_S * 1000;
    assert.equal(pass("a", 100), 20);
});

test("0 is unlimited, and an unset variable has a default", () => {
    assert.equal(limiter(0).pass("a", 1000), 1000);
    const made = bound({ name: "L", limit: null, limitDefault: "3", period: "", periodDefault: "10" });
    const passed = [];
    for (let n = 0; n < 4; n++) passed.push(made.limit({ key: "a" }).success);
    assert.deepEqual(passed, [true, true, true, false]);
});

test("an invalid value is an error that names its variable", () => {
    const defaults = { name: "RATE_PER_USER_LIMIT", limitDefault: "3", periodDefault: "10" };
    for (const limit of ["-1", "x", "1.5", "1e3", "9999999", " "]) {
        assert.throws(() => bound({ ...defaults, limit }), /^Error: RATE_PER_USER_LIMIT must be/);
    }
    for (const period of ["0", "3601", "10s"]) {
        assert.throws(() => bound({ ...defaults, period }), /^Error: RATE_PERIOD_S must be/);
    }
});
