// A rate limiter for plain workerd with Cloudflare's interface: a token bucket per key, in the memory of one process.
// edge/workerd.capnp uses it as an internal module that wraps the settings. Its tests run in node.

const KEYS_MAX = 100_000;
const LIMIT_MAX = 1_000_000;
const PERIOD_S_MAX = 3_600;

export class Ratelimit {
    #limit;
    #periodMs;
    #now;
    #keysMax;
    // A bucket is one number: the time at which it is full again. A full bucket need not be stored, so two generations
    // are enough: a rotation drops the keys that were last used before the younger generation began.
    #young = new Map();
    #old = new Map();
    #youngSince = -Infinity;

    // Allows `limit` tokens per `periodS` seconds and key; 0 is unlimited. `keys` is the maximum number of stored keys.
    constructor(limit, periodS, { now = Date.now, keys = KEYS_MAX } = {}) {
        this.#limit = limit;
        this.#periodMs = periodS * 1000;
        this.#now = now;
        this.#keysMax = keys;
    }

    // Returns the outcome instead of a promise: awaiting one costs the Worker more than the count.
    limit({ key }) {
        if (this.#limit === 0) return { success: true };
        const now = this.#now();
        this.#evict(now);
        const full = this.#fullAt(String(key), now);
        const taken = full + this.#periodMs / this.#limit;
        // The half millisecond makes up for rounding errors in the sum of tokens.
        const success = taken <= now + this.#periodMs + 0.5;
        this.#young.set(String(key), success ? taken : full);
        return { success };
    }

    // Returns the number of stored keys.
    get size() {
        return this.#young.size + this.#old.size;
    }

    // Returns when the key's bucket is full, at most a period from now even if the clock was set back.
    #fullAt(key, now) {
        const kept = this.#young.get(key) ?? this.#old.get(key) ?? now;
        return Math.min(Math.max(kept, now), now + this.#periodMs);
    }

    #evict(now) {
        const age = now - this.#youngSince;
        const isOld = age < 0 || age >= this.#periodMs;
        // With too many keys, the least recently used keys get a full bucket early.
        if (!isOld && this.#young.size < this.#keysMax / 2) return;
        this.#old = this.#young;
        this.#young = new Map();
        this.#youngSince = now;
    }
}

// Parses the environment variable `name`. An invalid value prevents the start, so that it does not count as "no limit".
function wholeNumber(name, text, min, max) {
    const number = Number(text);
    if (/^\d{1,9}$/.test(text) && number >= min && number <= max) return number;
    throw new Error(`${name} must be a whole number from ${min} to ${max}, but is ${JSON.stringify(text)}`);
}

export default function ({ name, limit, limitDefault, period, periodDefault }) {
    return new Ratelimit(
        wholeNumber(name, limit || limitDefault, 0, LIMIT_MAX),
        wholeNumber("RATE_PERIOD_S", period || periodDefault, 1, PERIOD_S_MAX),
    );
}
