// A rate limiter with the interface of Cloudflare's, for plain workerd: a token bucket per key, in the memory of one
// process. An internal module that wraps the settings in edge/workerd.capnp; its tests run it in node.

const KEYS_MAX = 100_000;
const LIMIT_MAX = 1_000_000;
const PERIOD_S_MAX = 3_600;

// workers-rs recognizes the binding by the name of its class.
export class Ratelimit {
    #limit;
    #periodMs;
    #now;
    #keysMax;
    // A bucket is one number: the time at which it will be full again. Full buckets need not be kept, so two generations are
    // enough: keys last seen before the younger one began are dropped when that one becomes the old one.
    #young = new Map();
    #old = new Map();
    #youngSince = -Infinity;

    // `limit` tokens per `periodS` seconds and key; a limit of 0 is no limit. `keys` bounds the keys that are kept.
    constructor(limit, periodS, { now = Date.now, keys = KEYS_MAX } = {}) {
        this.#limit = limit;
        this.#periodMs = periodS * 1000;
        this.#now = now;
        this.#keysMax = keys;
    }

    async limit({ key }) {
        if (this.#limit === 0) return { success: true };
        const now = this.#now();
        this.#evict(now);
        const full = this.#fullAt(String(key), now);
        const taken = full + this.#periodMs / this.#limit;
        // Half a millisecond: whole tokens, whatever their sum lost in rounding.
        const success = taken <= now + this.#periodMs + 0.5;
        this.#young.set(String(key), success ? taken : full);
        return { success };
    }

    // The number of keys that are kept.
    get size() {
        return this.#young.size + this.#old.size;
    }

    // A clock that was set back must not keep a bucket empty for longer than a period.
    #fullAt(key, now) {
        const kept = this.#young.get(key) ?? this.#old.get(key) ?? now;
        return Math.min(Math.max(kept, now), now + this.#periodMs);
    }

    #evict(now) {
        const age = now - this.#youngSince;
        const isOld = age < 0 || age >= this.#periodMs;
        // Too many keys at once: those unseen for longest get a full bucket early.
        if (!isOld && this.#young.size < this.#keysMax / 2) return;
        this.#old = this.#young;
        this.#young = new Map();
        this.#youngSince = now;
    }
}

// The whole number in the environment variable `name`. A wrong value must not count as "no limit", so the Worker does not
// start with one.
function wholeNumber(name, text, min, max) {
    const number = Number(text);
    if (/^\d{1,9}$/.test(text) && number >= min && number <= max) return number;
    throw new Error(`${name} must be ${min} to ${max}, but is ${JSON.stringify(text)}`);
}

export default function ({ name, limit, limitDefault, period, periodDefault }) {
    return new Ratelimit(
        wholeNumber(name, limit || limitDefault, 0, LIMIT_MAX),
        wholeNumber("RATE_PERIOD_S", period || periodDefault, 1, PERIOD_S_MAX),
    );
}
